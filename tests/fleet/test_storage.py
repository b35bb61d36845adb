"""All kinds of store behave like a dict of bytes, and a file in them is complete or does not exist."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.common.atomic_write import Draft, draft_name
from sardonyx.errors import OutputError, UsageError
from sardonyx.fleet import storage
from sardonyx.fleet.storage import Contents, Store, open_store

NAMES = ("a.json", "cells/order/a model.json", "cells/order/b.json", "cells/b.json", "models/.hidden.onnx", "é/ü.json")
KINDS = ("folder", "file", "memory", "local")  # `local` is the disk through fsspec: written beside, then renamed


def fresh(kind: str, folder: Path) -> Store:
    """Return an empty store."""
    where = folder / uuid.uuid4().hex
    return open_store({"folder": str(where), "memory": f"memory://{where.name}"}.get(kind, f"{kind}://{where}"))


def as_dict(store: Store) -> dict[str, bytes | None]:
    names = store.names()
    assert store.read_all(names) == [store.read(name) for name in names]
    return {name: store.read(name) for name in names}


STEPS = st.lists(
    st.tuples(st.sampled_from(("write", "remove", "upload")), st.sampled_from(NAMES), st.binary(max_size=9)),
    max_size=12,
)


def apply_steps(store: Store, steps: list[tuple[str, str, bytes]], folder: Path) -> dict[str, bytes]:
    """Do the steps on a store and on a dict, and return the dict."""
    expected: dict[str, bytes] = {}
    for step, name, data in steps:
        if step == "remove":
            store.remove(name)
            expected.pop(name, None)
        elif step == "upload":
            with store.scratch() as scratch:
                (scratch / "draft").write_bytes(data)
                store.upload(scratch / "draft", name)
                assert name in store.names()
            expected[name] = data
        else:
            store.write(name, data)
            expected[name] = data
    for name in NAMES:
        if name in expected:
            store.download(name, folder / "download")
            assert (folder / "download").read_bytes() == expected[name]
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "memory", "local"])
@settings(max_examples=15)
@given(steps=STEPS, prefix=st.sampled_from(("", "a", "cells/", "cells/o", "cells/order/b", "none/", "a.json/")))
def test_a_store_is_a_dict(
    kind: str, steps: list[tuple[str, str, bytes]], prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = pickle.loads(pickle.dumps(fresh(kind, folder)))
    expected = apply_steps(store, steps, folder)
    assert as_dict(store) == as_dict(open_store(store.url)) == expected
    assert store.names(prefix) == sorted(name for name in expected if name.startswith(prefix))
    assert all(store.read(name) == expected.get(name) for name in (*NAMES, "cells", "a.json/b"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_exists_only_in_a_folder(kind: str, tmp_path: Path) -> None:
    store = fresh(kind, tmp_path)
    store.write("a/b.json", b"data")
    path = store.path("a/b.json")
    if kind in ("folder", "file"):
        assert path is not None
        assert path.read_bytes() == b"data"
    else:
        assert path is None
    with pytest.raises(OutputError, match=r"missing\.json does not exist"):
        store.download("missing.json", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_changed_does_not_match(kind: str, tmp_path: Path) -> None:
    store = fresh(kind, tmp_path)
    (tmp_path / "file").write_bytes(b"data")
    contents = Contents.of(tmp_path / "file")
    assert store.tag("a") is None
    assert not store.matches("a", contents)
    for data in (b"", b"dat", b"atad", b"data"):
        store.write("a", data)
        assert store.matches("a", contents) is (data == b"data")
    tag = store.tag("a")
    store.write("a", b"other data")
    assert None not in (tag, store.tag("a"))
    assert tag != store.tag("a")


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a//b", "a/./b", "a\\b", ".x.json.1234.part", "a/"])
def test_a_name_that_leaves_the_store_is_refused(name: str, tmp_path: Path) -> None:
    for kind in KINDS:
        with pytest.raises(OutputError, match="is not the name of a file in"):
            fresh(kind, tmp_path).write(name, b"")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_below_a_file_is_one_line(kind: str, tmp_path: Path) -> None:
    store = fresh(kind, tmp_path)
    store.write("a", b"data")
    with pytest.raises(OutputError, match="a/b cannot be written: ") as caught:
        store.write("a/b", b"data")
    assert "\n" not in caught.value.message
    assert as_dict(store) == {"a": b"data"}


def test_a_relative_folder_is_the_same_in_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(open_store("out"))
    monkeypatch.chdir("/")
    pickle.loads(pickled).write("a.json", b"data")
    assert (tmp_path / "out" / "a.json").read_bytes() == b"data"


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_not_listed(kind: str, tmp_path: Path) -> None:
    store = fresh(kind, tmp_path)
    store.write("a.json", b"old")
    with store.scratch() as scratch:
        (scratch / "model.onnx").write_bytes(b"half")
        assert as_dict(store) == {"a.json": b"old"}
    assert not scratch.exists()
    if kind == "local":
        Path(store.url.removeprefix("local://"), ".b.json.1234.part").touch()
        assert store.names() == ["a.json"]


ENDLESS = """
import sys
from sardonyx.fleet.storage import open_store
store = open_store(sys.argv[1])
for number in range(10**9):
    store.write("one.bin", bytes([number % 256]) * 3_000_000)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_a_complete_file(tmp_path: Path) -> None:
    """Whatever it was doing, the file has the bytes of one write, and its draft is not listed."""
    store = open_store(tmp_path)
    for attempt in range(4):
        writer = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.003 * attempt)
        writer.kill()
        writer.communicate()
        assert store.names() == ["one.bin"]
        data = store.read("one.bin")
        assert data is not None
        assert len(data) == 3_000_000
        assert len(set(data)) == 1


def test_only_abandoned_drafts_are_removed(tmp_path: Path) -> None:
    """They are old, or their process has ended; another one may still be writing, perhaps on another machine."""
    store = open_store(tmp_path)
    store.write("cells/a.json", b"data")
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = draft_name("scratch")
    names = {
        mine: True,
        mine.replace(f"-{os.getpid()}-", f"-{ended.pid}-"): False,
        f".scratch.0123abcd-{ended.pid}-ff.part": True,  # of another machine
        ".scratch.old.part": False,
        ".scratch.changed.part": True,
    }
    for name in names:
        (tmp_path / name / "folder").mkdir(parents=True)
        (tmp_path / name / "folder" / "model.onnx").write_bytes(b"half")
    old_draft = tmp_path / "cells" / ".b.json.5678.part"
    old_draft.touch()
    two_days_ago = time.time() - 2 * 86400
    for path in (old_draft, *tmp_path.glob(".scratch.old.part/**/*"), *tmp_path.glob(".scratch.[oc]*")):
        os.utime(path, (two_days_ago, two_days_ago))
    with Draft(str(tmp_path / "cells" / "b.json")) as draft:
        store.remove_abandoned()
        draft.commit(replace=True)
    assert {path.name for path in tmp_path.iterdir()} == {"cells"} | {name for name, stays in names.items() if stays}
    assert sorted(os.listdir(tmp_path / "cells")) == ["a.json", "b.json"]


@pytest.mark.parametrize("kind", ["folder", "local"])
def test_a_file_that_becomes_too_large_leaves_the_old_one(kind: str, tmp_path: Path) -> None:
    store = fresh(kind, tmp_path)
    store.write("a.json", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(OutputError, match=r"a\.json cannot be written: .*File too large") as caught:
            store.write("a.json", b"x" * 5000)
        assert caught.value.hint is not None
        assert "\n" not in caught.value.message
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert as_dict(store) == {"a.json": b"old"}
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.json"]


def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of 64 KiB, if the machine allows mounting one; drafts come from another one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        store = open_store(disk)
        store.write("cells/a.json", b"old")
        (tmp_path / "model.onnx").write_bytes(b"x" * 100_000)
        for action in (
            lambda: store.write("cells/a.json", b"x" * 100_000),
            lambda: store.upload(tmp_path / "model.onnx", "cells/a.json"),
        ):
            with pytest.raises(OutputError, match="No space left") as caught:
                action()
            assert caught.value.hint == "free some space, or write to another disk"
        assert as_dict(store) == {"cells/a.json": b"old"}
        assert os.listdir(disk / "cells") == ["a.json"]
        (tmp_path / "model.onnx").write_bytes(b"small")
        store.upload(tmp_path / "model.onnx", "model.onnx")  # copied, as it is on another file system
        assert store.read("model.onnx") == b"small"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    storage._file_system.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # of an earlier test
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"s3://bucket/x cannot be opened: .*s3fs") as caught:
        open_store("s3://bucket/x")
    assert caught.value.hint == "install the package that it names"
    with pytest.raises(UsageError, match="Protocol not known: nowhere"):
        open_store("nowhere://bucket/x")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="memory://x needs fsspec, which is not installed") as caught:
        open_store("memory://x")
    assert caught.value.hint == 'in a checkout of sardonyx: pip install ".[fleet]"'
