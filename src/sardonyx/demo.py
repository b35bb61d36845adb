"""The tour in one command: BERT-tiny from its config, exported, inspected, optimized, proven, and a layer cut out.

Nothing is downloaded: the weights are random but seeded. Every step is the command a user would type, run as that user
would run it.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sardonyx.errors import SardonyxError, UsageError

SOURCE = "hf-config:BertConfig?hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"


def run(folder: Path, *, say: Callable[[str], None] | None = None) -> None:
    """Run the tour, leaving the models and their records in `folder`; the commands write to the terminal themselves.

    Args:
        folder: created when missing; files of an earlier demo in it are replaced.
        say: receives each step's line just before the step; by default it goes to standard output.
    """
    for package in ("torch", "transformers", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"the demo needs {package}, which is not installed", hint='pip install "sardonyx[torch]"')
    tell = say or _tell
    folder.mkdir(parents=True, exist_ok=True)
    model, small, layer = (str(folder / f"bert-tiny{part}.onnx") for part in ("", ".small", ".layer0"))
    exported, optimized = str(folder / "export.json"), str(folder / "run.json")
    tell("BERT-tiny (2 layers, width 128, 2 heads), built from its config with seeded weights")
    _command(["export", SOURCE, "-o", model, "--force", "--dynamic", "auto", "--record", exported], tell)
    _command(["inspect", model], tell)
    _command(["optimize", model, "-o", small, "--force", "--record", optimized], tell)
    _command(["verify", model, small], tell)
    _command(["extract", small, "--module", "encoder.layer.0", "-o", layer, "--force", "--source", SOURCE], tell)
    tell(f"\nYours to look at: {', '.join((model, small, layer, exported, optimized))}")


def _command(arguments: list[str], tell: Callable[[str], None]) -> None:
    tell(f"\n$ sardonyx {shlex.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", "sardonyx", *arguments], check=False)
    if done.returncode:
        raise SardonyxError(f"`sardonyx {arguments[0]}` ended with exit code {done.returncode}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
