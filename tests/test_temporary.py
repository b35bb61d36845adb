"""Temporary folders say who owns them, and those of processes that have ended are deleted."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx.parser

from sardonyx.common.atomic_write import draft_name
from sardonyx.common.temporary import temporary_folder
from sardonyx.runtime import remote

SOURCES = Path(__file__).parents[1] / "src" / "sardonyx"
MAKE = (
    "import sys; from sardonyx.common.temporary import *; folder = temporary_folder(); print(folder.name, flush=True)"
)


CONSTANT = (
    '<ir_version: 9, opset_import: ["" : 18]> g () => (float[2] y) { y = Constant <value = float[2] {1.0, 2.0}> () }'
)


def test_folders_of_ended_processes_are_deleted_and_no_others(tmp_path: Path) -> None:
    def start(then: str) -> tuple[subprocess.Popen[bytes], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{MAKE}; {then}"],
            env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().decode().strip())

    killed, left = start("sys.stdin.read()")
    (left / "inside").mkdir()
    (left / "inside" / "model.onnx").touch()
    running, kept = start("sys.stdin.read()")
    killed.kill()
    killed.communicate()
    others = [
        tmp_path / "sardonyx-of-somebody",
        tmp_path / draft_name("another"),
        tmp_path / ".sardonyx.0123-1-ff.part",
    ]
    for other in others:
        other.mkdir()
    target = tmp_path.parent / f"{tmp_path.name}-target"
    target.mkdir()
    link = tmp_path / left.name.replace(".part", "0.part")
    link.symlink_to(target)
    ended, own = start("pass")
    ended.communicate()
    assert left.parent == kept.parent == own.parent == tmp_path
    assert sorted(tmp_path.iterdir()) == sorted([*others, kept, link])
    assert target.is_dir(), "a link is not followed"
    running.communicate()
    assert not kept.exists()


def test_a_fork_does_not_delete_the_folders_of_its_parent() -> None:
    """A fork that verifies drops the worker of its parent, whose runtime writes into its folder."""
    model = onnx.parser.parse_model(CONSTANT)
    remote.evaluate(model)
    folder, own = remote._shared.worker()._folder.name, temporary_folder()
    process = multiprocessing.get_context("fork").Process(
        target=remote.evaluate, args=(onnx.parser.parse_model(CONSTANT),)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    if not (child := os.fork()):
        own.cleanup()
        os._exit(0)
    os.waitpid(child, 0)
    assert Path(folder).is_dir()
    assert Path(own.name).is_dir()
    own.cleanup()
    assert not Path(own.name).exists()


def test_every_temporary_folder_says_who_owns_it() -> None:
    direct = re.compile(r"TemporaryDirectory\(|mkdtemp\((?!dir=)|NamedTemporaryFile|mkstemp")
    files = [path for path in SOURCES.rglob("*.py") if path.name != "temporary.py"]
    assert [path.name for path in files if direct.search(path.read_text(encoding="utf-8"))] == []
