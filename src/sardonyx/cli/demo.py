"""`sardonyx demo`: the tour in one command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put
from sardonyx.errors import OutputError, SardonyxError
from sardonyx.frontend.installed import require_installed
from sardonyx.reporting.formatting import Style, seconds, size
from sardonyx.reporting.table import Column, Line, table, text_column

# The whole house in one command: a transformer and a CNN, from their configs to one page about both.
#
# Nothing is downloaded: the weights are random but seeded. Every step is the command a user would type, run as that
# user
# would run it; of what it says the closing lines are shown, and all of it is kept in `log.txt`.

Say = Callable[[str], None]

TRANSFORMER = "hf-config:BertConfig?hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"
CNN = (
    "hf-config:ResNetForImageClassification"
    "?embedding_size=16,hidden_sizes=[16,32,64,128],depths=[2,2,2,2],layer_type=basic"
)
LAYER = "encoder.layer.0"
NAMES = {"transformer": "bert-tiny", "cnn": "resnet-tiny"}  # what the page calls the models, by folder


class Stopped(SardonyxError):
    """One of the commands failed; ends with its exit code."""

    def __init__(self, verb: str, code: int) -> None:
        super().__init__(f"`sardonyx {verb}` ended with exit code {code}, and the demo with it")
        self.exit_code = code if code > 0 else 1  # one that a signal ended has none of its own


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A command, and what a newcomer should know of it."""

    why: str
    arguments: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Left:
    """A file that is left for the user."""

    path: Path
    what: str


def steps(folder: Path) -> list[DemoStep]:
    """The tour: every command, in order."""
    one, two = folder / "transformer", folder / "cnn"
    page, small = str(folder / "report.html"), str(_small(one))
    layer, apart, memory = (str(one / name) for name in ("layer0.onnx", "decomposed.pt", "memory.svg"))
    cut = ["extract", small, "--module", LAYER, "-o", layer, "--source", TRANSFORMER, "--force"]
    return [
        DemoStep(
            "A small transformer (2 layers, width 128), exported with its modules, proven", _export(TRANSFORMER, one)
        ),
        DemoStep("Made smaller, proven, timed against the original, profiled, and a page of it", _optimize(one)),
        DemoStep(
            "Its attention spelled out, as a graph of primitives", ["decompose", TRANSFORMER, "-o", apart, "--force"]
        ),
        DemoStep("What that costs, and fused again", ["analyze", TRANSFORMER, "--svg", memory, "--force"]),
        DemoStep("One layer of the small file as a model of its own, held to the live module", cut),
        DemoStep("A small CNN (ResNet, 20 convolutions), the same way", _export(CNN, two)),
        DemoStep("Made smaller, proven, timed against the original, profiled, and a page of it", _optimize(two)),
        DemoStep("One page about both", ["report", str(one), str(two), "-o", page, "--force"]),
    ]


def _model(folder: Path) -> Path:
    return folder / f"{NAMES[folder.name]}.onnx"


def _small(folder: Path) -> Path:
    return folder / f"{NAMES[folder.name]}.small.onnx"


def _export(source: str, folder: Path) -> list[str]:
    record = ["--record", str(folder / "export.json")]
    return ["export", source, "-o", str(_model(folder)), "--dynamic", "auto", *record, "--force"]


def _optimize(folder: Path) -> list[str]:
    run = ["--run", str(folder), "--force"]
    return ["optimize", str(_model(folder)), "-o", str(_small(folder)), *run]


def run(folder: Path, *, say: Say | None = None) -> None:
    """Run the tour; models, records and the page are left in `folder`, and their progress goes to the terminal.

    Args:
        folder: created when missing; files of an earlier demo in it are replaced.
        say: receives each line of the tour; by default it goes to standard output.
    """
    for package in ("torch", "transformers", "onnxscript"):
        require_installed(package, "the demo needs")
    tell = say or _tell
    planned = steps(folder)
    for part in NAMES:
        (folder / part).mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    log.write_text("", encoding="utf-8")
    began = perf_counter()
    for number, step in enumerate(planned, 1):
        tell(f"[{number}/{len(planned)}] {step.why}")
        _command(step.arguments, log, tell)
    tell(f"Done in {seconds(perf_counter() - began)}, every result proven. What lies where:")
    for line in _listed(folder):
        tell(line)
    tell(f"\nOpen {folder / 'report.html'} in a browser.")


def _command(arguments: Sequence[str], log: Path, tell: Say) -> None:
    """Run one; its progress goes to the terminal, its result into the log, its last lines to the user."""
    shown = f"$ sardonyx {shlex.join(arguments)}"
    tell(shown)
    command = [sys.executable, "-m", "sardonyx", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, errors="replace")
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"{shown}\n{done.stdout}\n")
    said = done.stdout.rstrip()
    if done.returncode:
        for line in said.splitlines()[-1:]:  # what went wrong is on standard error already; the log has the rest
            tell(line)
        raise Stopped(arguments[0], done.returncode)
    tell(said.rpartition("\n\n")[2] + "\n")


def _listed(folder: Path) -> list[str]:
    """Every file that the tour leaves, with what it is."""
    found = [left for left in _left(folder) if left.path.is_file()]
    lines = [Line((str(left.path), size(left.path.stat().st_size), left.what)) for left in found]
    return table((text_column("file"), Column("size"), text_column("what it is")), lines, Style())


def _left(folder: Path) -> list[_Left]:
    one = folder / "transformer"
    return [
        _Left(folder / "report.html", "the page about both models: start here"),
        *(left for part in NAMES for left in _left_of(folder / part)),
        _Left(one / "layer0.onnx", f"{LAYER} as a model of its own"),
        _Left(one / "decomposed.pt", "attention spelled out: torch.load(…, weights_only=False)"),
        _Left(one / "memory.svg", "memory over time: as it is, spelled out, fused"),
        _Left(folder / "log.txt", "everything that the commands said"),
    ]


def _left_of(folder: Path) -> list[_Left]:
    return [
        _Left(_model(folder), "as exported, every node with its module"),
        _Left(_small(folder), "optimized, verified against it"),
        _Left(folder / "export.json", "record of the export, with its proof against PyTorch"),
        _Left(folder / "run.json", "record of the optimization: every rewrite, refusal and proof"),
        _Left(folder / "bench.json", "record of the times, every round"),
        _Left(folder / "profile.json", "record of where the time goes, by module"),
        _Left(folder / "analysis.json", "record of operations, bytes and memory"),
        _Left(folder / "report.html", "the page of this model alone"),
    ]


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


SUMMARY = "Take a small transformer and a CNN all the way to one page about both."
HELP = """\b
Example:
  sardonyx demo
  sardonyx demo tour/ --force

Builds both from their configs with seeded weights; nothing is downloaded. Exports them with their modules, optimizes
with proof, times, profiles and analyzes before and after, spells attention out, cuts one layer out, and writes
FOLDER/report.html. Each command is printed just before it runs, as you would type it, and its closing lines after; what
it said in whole is in FOLDER/log.txt. Takes a minute or two on two cores. Needs the torch extra.

Exit: 0 done, 2 usage, else the exit code of the command that failed.
"""

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where the files go.")]


def demo(folder: Folder = Path("demo"), force: options.Force = False, debug: options.Debug = False) -> int:
    """Run the tour."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="name another one")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise OutputError(f"{folder} is not empty", hint="--force replaces the files of an earlier demo in it")

    run(folder, say=lambda line: put(line + "\n"))
    return 0
