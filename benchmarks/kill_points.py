"""Kill commands before every file operation, and in the middle of every write; check what is left.

    python benchmarks/kill_points.py [COMMAND ...] [--every N]

Each command writes a model with weights inside or beside it over no model, one with weights inside, and one with
weights beside it. After a kill the destination must be the old or the new model, which onnx and ONNX Runtime load;
the same command must then end well and leave the new model, its data and the other files of the folder, nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx
from onnx import TensorProto, helper

from sardonyx.ir import io

MODEL = "model.onnx"
_CHANGES = frozenset(
    ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "os.symlink", "os.utime")
)  # audit events; `open` is another, if it is for writing
_WRITES = ("write", "pwrite", "copy_file_range", "sendfile")
_SILENT = ("fsync", "fdatasync", "fchmod")  # without an audit event
_FACTORY = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
"""
_QUICK = ("--verify", "off", "--exporter", "torchscript", "--input", "input=float32[2,64]")


# Kill a process at one of its file operations.


class Killer:
    """Kills this process at the `at`th file operation inside a folder, counted from 1; a write counts twice."""

    def __init__(self, folder: Path, at: int) -> None:
        self._folder = os.path.realpath(folder)
        self._at = at
        self._count = 0
        for name in _WRITES:
            setattr(os, name, self._writing(name, getattr(os, name)))
        for name in _SILENT:
            setattr(os, name, self._counted(getattr(os, name)))
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
            self._step(path)
        elif event in _CHANGES:
            self._step(*(path for path in args if isinstance(path, str | bytes | os.PathLike | int)))

    def _step(self, *paths: Any) -> None:
        if any(self._is_inside(path) for path in paths):
            self._count += 1
            if self._count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)

    def _is_inside(self, path: str | bytes | os.PathLike[str] | int) -> bool:
        """Return whether a path or a descriptor is of something in the folder; one of these is a folder for a name."""
        if isinstance(path, int):
            with contextlib.suppress(OSError):
                return path > 2 and os.readlink(f"/proc/self/fd/{path}").startswith(self._folder)
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self._folder)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(fd: int, *args: Any) -> Any:
            self._step(fd)
            return call(fd, *args)

        return counted

    def _writing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def writing(*args: Any) -> Any:
            to = args[1] if name == "copy_file_range" else args[0]
            if self._is_inside(to):
                self._step(to)
                if self._count + 1 == self._at:
                    half = list(args)
                    if name in ("write", "pwrite"):
                        half[1] = memoryview(args[1]).cast("B")[: memoryview(args[1]).nbytes // 2]
                    else:
                        half[2 if name == "copy_file_range" else 3] //= 2
                    call(*half)
                self._step(to)
            return call(*args)

        return writing


def in_child(action: Callable[[], object], log: Path) -> int:
    """Run a function in a forked process, with its output in a file; return the exit code, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _run(action, log)


def _run(action: Callable[[], object], log: Path) -> NoReturn:
    code = 99
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        action()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 98
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def kills(action: Callable[[], object], folder: Path, log: Path, every: int = 1) -> Iterator[int]:
    """Run an action again and again, each time killed at a later operation; yield after each kill."""
    at = 1
    while True:
        number = at

        def killed(number: int = number) -> None:
            Killer(folder, number)
            action()

        code = in_child(killed, log)
        if code != -signal.SIGKILL:
            if code:
                raise AssertionError(f"exit {code} instead of a kill at operation {at}:\n{log.read_text()}")
            return
        yield at
        at += every


# What must be left.


def content(path: Path) -> bytes:
    """Return a model with its weights as bytes, wherever these are stored; it must be one that every tool loads."""
    onnx.checker.check_model(str(path))
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")
    return model.SerializeToString(deterministic=True)


def check_runs(path: Path) -> None:
    """Run a model with ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    shape = [size if isinstance(size, int) else 2 for size in given.shape]
    session.run(None, {given.name: np.ones(shape, np.float32)})


def old_model(path: Path, *, external: bool) -> None:
    """Write the model that is there before."""
    weight = np.full((64, 64), 3, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "old",
        [helper.make_tensor_value_info("x", 1, ["batch", 64])],
        [helper.make_tensor_value_info("y", 1, ["batch", 64])],
        [TensorProto(name="w", data_type=1, dims=weight.shape, raw_data=weight.tobytes())],
    )
    proto = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    io.save(io.from_proto(proto), path, external=external, durable=False)


class Folder:
    """A folder with a model, and with another one that must stay as it is."""

    def __init__(self, path: Path, old: bool | None) -> None:
        self.path = path
        self.model = path / MODEL
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        old_model(path / "other.onnx", external=True)
        if old is not None:
            old_model(self.model, external=old)
        self._others = {name: (path / name).read_bytes() for name in ("other.onnx", "other.onnx.data")}
        self.before = content(self.model) if old is not None else None

    def check_killed(self, after: bytes) -> None:
        """Check that the model is the old or the new one, and that it runs."""
        if self.model.exists():
            assert content(self.model) in (self.before, after), "neither the old nor the new model"
            check_runs(self.model)
        else:
            assert self.before is None, "there is no model any more"
        self._check_others()

    def check_done(self, after: bytes | None, *, external: bool, more: tuple[str, ...] = ()) -> bytes:
        """Check that the new model is there, and nothing else; return it."""
        new = content(self.model)
        assert after in (None, new), "another model than without a kill"
        check_runs(self.model)
        self._check_others()
        data = io.external_files(self.model)
        assert len(data) == external, f"data files: {data}"
        left = set(os.listdir(self.path)) - {MODEL, *data, *self._others, *more}
        assert not left, f"left over: {sorted(left)}"
        return new

    def _check_others(self) -> None:
        assert {name: (self.path / name).read_bytes() for name in self._others} == self._others


# The commands.


class Case(NamedTuple):
    """A command that writes a model, over nothing (None) or a model with weights inside (False) or beside it (True)."""

    command: str
    old: bool | None
    new: bool

    def words(self, sources: Path, folder: Path) -> list[str]:
        """Return the words of the command."""
        source, place = str(sources / ("external.onnx" if self.new else "inline.onnx")), str(folder / MODEL)
        where = "--external-data" if self.new else "--inline"
        words = {
            "optimize": [source, "-o", place, "--verify", "off", where, "--record", str(folder / "record.json")],
            "in-place": [place, "-o", place, "--verify", "off", where],
            "quantize": [source, "-o", place, "--to", "int8"],
            "export": [f"{sources / 'factory.py'}:build", "-o", place, where, *_QUICK],
            "extract": [source, "--module", "0", "-o", place, "--verify", "off"],
        }
        return ["optimize" if self.command == "in-place" else self.command, *words[self.command]]

    def __str__(self) -> str:
        names = {None: "none", False: "inline", True: "external"}
        return f"{self.command:<9} {names[self.old]:>8} -> {names[self.new]:<8}"


def cases(commands: list[str]) -> list[Case]:
    """Return every combination."""
    return [
        Case(command, old, new)
        for command in commands
        for old in (None, False, True)
        for new in (False, True)
        if old is not None or command != "in-place"
    ]


def run(words: list[str]) -> None:
    """Run a command in this process."""
    from sardonyx.cli.main import main

    sys.argv = ["sardonyx", *words]
    main()


def load_modules(words: list[str], log: Path) -> None:
    """Import what a command imports, so that processes forked later need not."""

    def names() -> None:
        with contextlib.suppress(SystemExit):
            run(words)
        log.with_name("modules.txt").write_text("\n".join(sys.modules))

    in_child(names, log)
    for name in log.with_name("modules.txt").read_text().splitlines():
        with contextlib.suppress(Exception):  # some exist only while another is imported
            importlib.import_module(name)


def campaign(case: Case, sources: Path, folder: Path, every: int) -> int:
    """Kill a command at every file operation; return how many there are."""
    log, words = sources / "log.txt", case.words(sources, folder)
    more = ("record.json",) if case.command == "optimize" else ()

    def again(place: Folder, after: bytes | None) -> None:
        run_child = in_child(lambda: run([*words, "--force"]), log)
        assert run_child == 0, f"exit {run_child} of the next run:\n{log.read_text()}"
        code = in_child(lambda: place.check_done(after, external=case.new, more=more), log)
        assert code == 0, log.read_text()

    place = Folder(folder, case.old)
    load_modules([*words, "--force"], log)
    again(place, None)
    after = content(place.model)
    place = Folder(folder, case.old)
    points = 0
    for at in kills(lambda: run([*words, *(["--force"] if case.old is not None else [])]), folder, log, every):
        try:
            code = in_child(lambda: place.check_killed(after), log)  # noqa: B023 (called at once)
            assert code == 0, log.read_text()
            again(place, after if case.command != "in-place" else None)
        except AssertionError as error:
            raise AssertionError(f"{case}, killed at operation {at}: {sorted(os.listdir(folder))}\n{error}") from error
        place = Folder(folder, case.old)
        points += 1
    return points


def main() -> int:
    """Run the campaign and print a row for each case; 1 if something was lost or left."""
    known = ["optimize", "in-place", "quantize", "export", "extract"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--every", type=int, default=1, help="only every N-th operation")
    options = parser.parse_args()
    failures = total = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        sources = Path(temporary) / "sources"
        sources.mkdir()
        (sources / "factory.py").write_text(_FACTORY)
        import torch  # once, before processes are forked

        torch.set_num_threads(1)
        import sardonyx

        namespace: dict[str, Any] = {}
        exec(_FACTORY, namespace)
        model = sardonyx.export(namespace["build"](), torch.ones(2, 64), verify="off").model
        assert model is not None
        for name in ("inline", "external"):
            io.save(model, sources / f"{name}.onnx", external=name == "external")
        for case in cases(options.commands or known):
            try:
                points = campaign(case, sources, Path(temporary) / "place", options.every)
            except AssertionError as error:
                failures += 1
                print(f"{case} FAILED\n{error}", flush=True)
            else:
                total += points
                print(f"{case} {points:4} kill points, all well", flush=True)
    print(f"{total} kill points; {failures} cases failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
