"""A store in S3, against a real server, with and without faults."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import signal
import time
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given, settings

import sardonyx
from fleet.s3_server import AFTER, BEFORE, Server, running_server
from fleet.test_storage import NAMES, STEPS, apply_steps, as_dict
from quantization.small_model import build
from sardonyx.errors import OutputError
from sardonyx.fleet import storage
from sardonyx.fleet.storage import Store, open_store

pytestmark = pytest.mark.slow  # the server takes a second to start


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """A server with one empty bucket; its clients wait less than usual."""
    with pytest.MonkeyPatch.context() as patch, running_server() as running:
        patch.setitem(storage._S3_CLIENT, "read_timeout", 1)  # pyright: ignore[reportPrivateUsage]
        patch.setitem(storage._S3_CLIENT, "retries", {"total_max_attempts": 1})  # pyright: ignore[reportPrivateUsage]
        patch.setattr(storage, "_FIRST_PAUSE_SECONDS", 0.02)
        yield running
        forget_clients()


@pytest.fixture
def store(server: Server) -> Generator[Store]:
    """An empty store on a server without faults."""
    server.faults()
    forget_clients()
    yield open_store(f"s3://bucket/{uuid.uuid4().hex}")
    server.faults()


def forget_clients() -> None:
    """Let the next store read the settings again."""
    import s3fs

    storage._file_system.cache_clear()  # pyright: ignore[reportPrivateUsage]
    s3fs.S3FileSystem.clear_instance_cache()


@settings(max_examples=3)
@given(steps=STEPS)
def test_a_store_in_s3_is_a_dict(
    server: Server, steps: list[tuple[str, str, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    server.faults()
    store = pickle.loads(pickle.dumps(open_store(f"s3://bucket/{uuid.uuid4().hex}")))
    expected = apply_steps(store, steps, tmp_path_factory.mktemp("s3"))
    assert as_dict(store) == expected
    assert store.read("cells") is None


def test_faults_do_not_change_what_is_stored(
    server: Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although answers are lost after the work was done."""
    monkeypatch.setattr(storage, "_MAX_TRIES", 12)  # with every third request failing, five in a row are common
    drawn = random.Random(0)
    kinds = ("write", "remove", "upload")
    steps = [(drawn.choice(kinds), drawn.choice(NAMES), drawn.randbytes(drawn.randrange(999))) for _ in range(25)]
    server.faults(rate=0.3, seed=0)
    expected = apply_steps(store, steps, tmp_path)
    assert as_dict(store) == expected
    counts = server.counts()
    assert all(counts[fault] for fault in BEFORE + AFTER)


def test_a_read_is_one_request(server: Server, store: Store) -> None:
    """Two of them could return parts of two versions, and take twice the time."""
    store.write("a.json", b"data")
    before = server.counts()["requests"]
    assert store.read("a.json") == b"data"
    assert store.read("missing.json") is None
    assert server.counts()["requests"] == before + 2


@pytest.mark.parametrize("megabytes", [8, 101])  # one request, and several parts
def test_a_killed_upload_leaves_no_object(megabytes: int, server: Server, store: Store, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(megabytes << 20)
    server.faults(pause=30)
    writer = multiprocessing.get_context("fork").Process(target=store.upload, args=(tmp_path / "large", "model.onnx"))
    writer.start()
    limit = time.monotonic() + 60
    while not server.counts()["uploads"] and time.monotonic() < limit:
        time.sleep(0.02)
    writer.kill()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert server.counts()["uploads"]
    server.faults()
    assert store.names() == []
    assert store.read("model.onnx") is None


def test_errors_that_do_not_pass_are_one_line_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.faults()
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("a permanent error is not repeated"))
    store = open_store("s3://missing/x")
    for action in (lambda: store.read("a"), lambda: store.write("a", b""), store.names):
        with pytest.raises(OutputError, match=r"^s3://missing/x.* cannot be .*: .*bucket does not exist") as caught:
            action()
        assert caught.value.hint == "create the bucket first"
        assert "\n" not in caught.value.message
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    forget_clients()
    with pytest.raises(OutputError, match="Unable to locate credentials") as caught:
        open_store("s3://bucket/x").write("a", b"")
    assert caught.value.hint == "check the credentials, such as AWS_ACCESS_KEY_ID, and what they permit"


def test_a_server_that_stays_down_is_one_line(server: Server, store: Store) -> None:
    server.faults(rate=1.0)
    with pytest.raises(OutputError, match=r"/a\.json cannot be written: ") as caught:
        store.write("a.json", b"data")
    assert caught.value.hint == "it failed 5 times; check the connection and run it again"
    assert "\n" not in caught.value.message
    assert 5 <= sum(server.counts()[fault] for fault in BEFORE + AFTER) <= 10  # aiohttp repeats a lost request once


def test_a_study_of_models_in_s3_gives_what_a_folder_gives(
    server: Server, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_MAX_TRIES", 12)
    (tmp_path / "models").mkdir()
    for number in range(2):
        model = build(tmp_path / "models" / f"m{number}.onnx", seed=number)
        (tmp_path / "copy").write_bytes(model.read_bytes())
        store.upload(tmp_path / "copy", f"models/m{number}.onnx")
    only = {"only": ["families", "shape-chains"], "workers": 2}
    here = sardonyx.study([tmp_path / "models"], tmp_path / "study", **only)
    server.faults(0.1, seed=1)
    there = sardonyx.study([f"{store.url}/models"], f"{store.url}/study", **only)
    again = sardonyx.study([f"{store.url}/models"], f"{store.url}/study", **only)
    assert there.tables == here.tables
    assert [row[0] for row in there.tables[0].rows] == ["m0", "m1"]
    assert again.reused == again.cells == there.cells == 4
    assert any(name.startswith("study/cells/families/m0.") for name in store.names("study/"))
    assert "study/status.json" in store.names("study/")
