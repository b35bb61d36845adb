"""A save that is killed at any file operation leaves the old or the new model; the next one leaves nothing else."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kill_points import Folder, content, in_child, kills, old_model
from sardonyx.common.atomic_write import draft_folder
from sardonyx.ir import io


def new_model(path: Path) -> None:
    old_model(path, external=False)
    proto = io.to_proto(io.load(path))
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    path.write_bytes(proto.SerializeToString())


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [*itertools.product((None, False, True), (False, True))])
def test_a_kill_loses_nothing_and_leaves_nothing(old: bool | None, new: bool, tmp_path: Path) -> None:
    new_model(tmp_path / "new.onnx")
    after, log = content(tmp_path / "new.onnx"), tmp_path / "log.txt"
    place = Folder(tmp_path / "place", old)

    def save(*, force: bool = True) -> None:
        io.save(io.load(tmp_path / "new.onnx"), place.model, force=force, external=new)

    points = 0
    for _ in kills(lambda: save(force=old is not None), place.path, log):
        points += 1
        place.check_killed(after)
        save()
        place.check_done(after, external=new)
        place = Folder(tmp_path / "place", old)
    assert points >= 9 + 8 * new + 4 * bool(old), "operations are counted"


@pytest.mark.medium
def test_kills_one_after_another_leave_no_more_than_one(tmp_path: Path) -> None:
    """Each save is killed one operation later than the one before, also while it removes what that one left."""
    place, log = Folder(tmp_path / "place", True), tmp_path / "log.txt"
    new_model(tmp_path / "new.onnx")
    after = content(tmp_path / "new.onnx")

    def save() -> None:
        io.save(io.load(tmp_path / "new.onnx"), place.model, force=True, external=True)

    for _ in kills(save, place.path, log):
        place.check_killed(after)
    place.check_done(after, external=True)


@pytest.mark.parametrize("existing", [None, "empty", "link", "full"])
def test_a_folder_appears_at_once_unless_it_has_files(existing: str | None, tmp_path: Path) -> None:
    place = tmp_path / "outer" / "place"
    place.parent.mkdir()
    files = {"a.json": "new", "b.json": "new"}

    def write(stop: Callable[[], object] = lambda: None) -> None:
        with draft_folder(str(place), force=True) as folder:
            for name, text in files.items():
                Path(folder, name).write_text(text)
            stop()

    def prepare() -> None:
        if existing == "link":
            (tmp_path / "outer" / "real").mkdir(exist_ok=True)
            place.symlink_to(tmp_path / "outer" / "real")
        elif existing is not None:
            place.mkdir()
        if existing == "full":
            for name in ("a.json", "mine.txt"):
                (place / name).write_text("old")

    def found() -> dict[str, str]:
        return {path.name: path.read_text() for path in place.iterdir()} if place.exists() else {}

    def clear() -> None:
        for path in sorted(tmp_path.joinpath("outer").rglob("*"), reverse=True):
            path.unlink() if path.is_symlink() or path.is_file() else path.rmdir()

    prepare()
    before = found()
    for _ in kills(write, place.parent, tmp_path / "log.txt"):
        left = found()
        if existing == "full":
            assert all(left[name] in ("old", "new") for name in left)
            assert left["mine.txt"] == "old"
        else:
            assert left in (before, files)
        write()
        assert found() == before | files
        assert not [name for name in os.listdir(place.parent) if name.startswith(".")]
        clear()
        prepare()
    assert in_child(lambda: write(lambda: os.kill(os.getpid(), signal.SIGKILL)), tmp_path / "log.txt") == -9
    assert any(re.fullmatch(r"\.(place|real)\..*\.part", name) for name in os.listdir(place.parent))
