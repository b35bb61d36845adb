"""The command as a process: its imports, its output streams, closed pipes and interrupts."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import onnx.parser
import pytest

import sardonyx

FORBIDDEN = ("torch", "onnx", "onnx_ir", "onnxruntime", "numpy", "sympy")
TESTS = Path(__file__).parents[1]
# A stub verb that needs no model and returns the handmade Run.
STAGED = """
import sys, time
from types import SimpleNamespace
from reporting.sample_run import sample_run
def optimize(source, output, *, progress, **_):
    if progress: progress("fold-constants [red]", 0.5)
    if "wait" in str(source):
        print("ready", file=sys.stderr, flush=True)
        time.sleep(60)
    return sample_run()
sys.modules["sardonyx.verbs.optimize.pipeline"] = SimpleNamespace(optimize=optimize)
from sardonyx.cli import options
options.is_there = lambda path: True  # the stub reads no file
from sardonyx.cli.main import main
main()
"""


def _environment(**extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path, "TERM": "xterm"} | extra


def _staged(*arguments: str) -> list[str]:
    return [sys.executable, "-c", STAGED, *arguments]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["optimize", "--help"],
        ["verify", "-h"],
        ["inspect", "--help"],
        ["analyze", "--help"],
        ["decompose", "-h"],
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from sardonyx.cli.main import run; code = run(sys.argv[1:]); "
        f"loaded = [name for name in {FORBIDDEN} if name in sys.modules]; "
        "sys.exit(f'imported {loaded}' if loaded else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.index("Example:") < done.stdout.index("Options:")


TEXT = '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { a = Identity(x) y = Exp(a) }'
PRINTING = {"cli", "common", "errors", "records", "reporting", "verbs"}
READING = PRINTING | {"ir"}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "packages", "most"),
    [
        (["--help"], PRINTING, 15),
        (["nonsense"], PRINTING, 16),  # with what replaces parameters by flags in hints
        (["optimize", "missing.onnx"], PRINTING | {"verbs.optimize"}, 28),
        (["dag", "model.onnx", "-o", "dag.json"], READING | {"verbs.dag", "verbs.analyze"}, 76),
        (["compare", "model.onnx", "model.onnx"], READING | {"verbs.compare", "verbs.analyze"}, 76),
        (["inspect", "model.onnx"], READING | {"verbs.analyze"}, 99),
        (["verify", "model.onnx", "model.onnx"], READING | {"inputs", "runtime", "verification"}, 111),
        (["passes"], READING | {"passes"}, 184),
        (
            ["optimize", "model.onnx", "--verify", "off"],
            READING | {"verbs.analyze", "verbs.optimize", "passes", "runtime"},
            225,
        ),
    ],
)
def test_a_command_loads_only_the_packages_that_it_uses(
    arguments: list[str], packages: set[str], most: int, tmp_path: Path
) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "model.onnx")
    code = (
        "import sys; from sardonyx.cli.main import run; run(sys.argv[1:]); "
        "print(*[name for name in sys.modules if name.startswith('sardonyx.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = done.stderr.splitlines()[-1].split()
    verbs = {path.name for path in (Path(sardonyx.__file__).parent / "verbs").iterdir() if path.is_dir()}
    parts = [name.split(".")[1:] for name in loaded]
    used = {f"verbs.{part[1]}" if part[0] == "verbs" and {*part[1:2]} & verbs else part[0] for part in parts}
    assert used <= packages
    assert len(loaded) <= most
    assert "sardonyx.verbs.optimize.details" not in loaded  # what only reports need


def test_every_option_with_a_default_shows_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sardonyx", "optimize", "--help", "-v"], capture_output=True, text=True, check=True
    )
    text = " ".join(done.stdout.split())
    for default in ("[default: portable]", "[default: end]", "[default: 0", "[default: all cores]"):
        assert default in text


@pytest.mark.slow
def test_a_closed_pipe_is_no_error() -> None:
    process = subprocess.Popen(
        _staged("optimize", "m.onnx"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    assert process.stdout is not None
    process.stdout.close()  # before anything is written, as `| head -0` does
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_under_standard_output_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            _staged("optimize", "m.onnx"), stdout=full, stderr=subprocess.PIPE, env=_environment(), check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: cannot write to standard output: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_the_help_goes_to_a_closed_pipe_or_a_full_disk_as_results_do() -> None:
    command = [sys.executable, "-m", "sardonyx", "verify", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment())
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait()) == (b"", 0)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=_environment(), check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: cannot write to standard output: ")


@pytest.mark.slow
def test_a_closed_standard_output_is_an_error_before_the_work() -> None:
    command = f"{sys.executable} -m sardonyx optimize no-such-model.onnx >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, env=_environment(), check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, b"error: standard output is closed")


@pytest.mark.slow
def test_an_interrupt_during_the_work() -> None:
    process = subprocess.Popen(
        _staged("optimize", "wait.onnx"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    assert process.stderr is not None
    assert process.stderr.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"interrupted\n")


@pytest.mark.slow
def test_an_ascii_terminal_gets_ascii() -> None:
    done = subprocess.run(
        _staged("optimize", "m.onnx", "-q"),
        capture_output=True,
        env=_environment(PYTHONIOENCODING="ascii"),
        check=True,
    )
    assert b"324 -> 187 nodes (-42 %), 17.4 -> 17.4 MB" in done.stdout


def _on_terminal(*arguments: str, **environment: str) -> tuple[str, str]:
    """Standard output and standard error when both are terminals."""
    text: list[str] = []
    pairs = [pty.openpty(), pty.openpty()]
    process = subprocess.Popen(
        _staged(*arguments), stdout=pairs[0][1], stderr=pairs[1][1], env=_environment(**environment)
    )
    assert process.wait(timeout=60) == 0
    for master, slave in pairs:
        os.set_blocking(master, False)
        pieces: list[bytes] = []
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                pieces.append(os.read(master, 1 << 16))
            except BlockingIOError:
                break
        os.close(slave)
        os.close(master)
        text.append(b"".join(pieces).decode())
    return text[0], text[1]


@pytest.mark.slow
def test_colour_and_progress_on_a_terminal_only() -> None:
    out, err = _on_terminal("optimize", "m.onnx", "-q")
    assert out.startswith("\x1b[1m324 → 187 nodes")
    assert err == ""  # quiet: no progress
    _out, err = _on_terminal("optimize", "m.onnx")
    assert "fold-constants [red]" in err  # progress, its text taken literally
    done = subprocess.run(_staged("optimize", "m.onnx"), capture_output=True, env=_environment(), check=True)
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""


@pytest.mark.slow
def test_no_color_is_respected() -> None:
    out, err = _on_terminal("optimize", "m.onnx", "-q", NO_COLOR="1")
    assert "\x1b" not in out + err


@pytest.mark.slow
def test_force_color_colours_a_pipe_unless_no_color_is_set() -> None:
    outputs = [
        subprocess.run(
            _staged("optimize", "m.onnx", "-q"), capture_output=True, env=_environment(**variables), check=True
        ).stdout
        for variables in ({"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"})
    ]
    assert outputs[0].startswith(b"\x1b[1m324")
    assert b"\x1b" not in outputs[1]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 200])
def test_output_fits_the_terminal(columns: int) -> None:
    out, _err = _on_terminal("optimize", "m.onnx", COLUMNS=str(columns), NO_COLOR="1")
    lines = out.splitlines()
    assert 15 < len(lines) <= 30
    assert max(map(len, lines)) <= columns
    assert sum(line.lstrip().startswith("fold-constants ") for line in lines) == 1
