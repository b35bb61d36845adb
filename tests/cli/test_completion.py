"""Shell completion: the scripts, what they complete, and that completing loads nothing heavy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Result

Command = Callable[..., Result]
HEAVY = ("torch", "onnx", "onnx_ir", "onnxruntime", "numpy")


def _completed(shell: str, words: str, place: int = 0) -> list[str]:
    """Return what a shell offers after these words, and check what was loaded for it."""
    code = (
        "import sys\nfrom sardonyx.cli.main import run\ntry:\n    run([])\nfinally:\n"
        f"    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    environment = os.environ | {"_SARDONYX_COMPLETE": f"complete_{shell}", "COMP_CWORD": str(place)}
    environment["COMP_WORDS" if shell == "bash" else "_TYPER_COMPLETE_ARGS"] = words
    if shell == "fish":
        environment["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    return done.stdout.split("\n")


@pytest.mark.medium
def test_commands_options_and_values_are_completed() -> None:
    assert _completed("bash", "sardonyx ins", 1) == ["inspect", ""]
    assert _completed("bash", "sardonyx optimize --out", 2) == ["--output", "--out-dir", ""]
    assert _completed("bash", "sardonyx optimize --target ", 3)[:3] == ["portable", "ort", "cuda"]
    assert _completed("bash", "sardonyx optimize --verify ", 3) == ["each", "end", "off", ""]
    assert "_files" in _completed("zsh", "sardonyx optimize m"), "other arguments are files"
    assert any(line.startswith("verify") for line in _completed("fish", "sardonyx ver"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_the_shell_accepts_it(command: Command, shell: str, tmp_path: Path) -> None:
    result = command("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert "sardonyx" in result.out
    program = shutil.which(shell)
    if program is None:
        return
    script = tmp_path / "script"
    script.write_text(result.out)
    subprocess.run([program, "-n", script], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(command: Command, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(command("completion", "bash").out)
    program = tmp_path / "sardonyx"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sardonyx "$@"\n')
    program.chmod(0o755)
    lines = (
        'source "$1"; COMP_WORDS=(sardonyx optimize --dry); COMP_CWORD=2; _sardonyx_completion "$2"; echo $COMPREPLY'
    )
    done = subprocess.run(
        ["bash", "-c", lines, "bash", tmp_path / "script", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "--dry-run\n"


def test_an_unknown_shell_is_a_usage_error(command: Command) -> None:
    result = command("completion", "tcsh")
    assert (result.code, result.out) == (2, "")
    assert "tcsh" in result.err
