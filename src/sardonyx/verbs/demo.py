"""Take a small transformer and a CNN from config to report.

Example:
  sardonyx demo
  sardonyx demo tour/ --force

Builds both models from their configs with seeded random weights; nothing is downloaded. Exports and optimizes them,
verifies every result, times, profiles and analyzes both files, decomposes attention, extracts one layer, and writes
FOLDER/report.html. Each command is printed before it runs, as you would type it, followed by the last lines of its
output; FOLDER/log.txt has the whole output. Takes a minute or two on two cores. Needs the torch extra.

Exit: 0 done, 1 failed, 2 usage, otherwise the exit code of the command that failed.
"""

# Nothing is downloaded: the weights are random, from a fixed seed. Every step is a command that a user could type, run
# in its own process. The last lines of its output are shown; the whole output is in `log.txt`.

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from msgspec import Struct

from sardonyx.cli.console import put
from sardonyx.cli.options import FORCE, argument
from sardonyx.cli.verb import Given, Verb
from sardonyx.errors import OutputError, SardonyxError
from sardonyx.frontend.installed import require_installed
from sardonyx.reporting.document import Column, Row, Table, text_column
from sardonyx.reporting.formatting import seconds, size
from sardonyx.reporting.writers.terminal import table_lines

TRANSFORMER = "hf-config:BertConfig?hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"
CNN = (
    "hf-config:ResNetForImageClassification"
    "?embedding_size=16,hidden_sizes=[16,32,64,128],depths=[2,2,2,2],layer_type=basic"
)
LAYER = "encoder.layer.0"
NAMES = {"transformer": "bert-tiny", "cnn": "resnet-tiny"}  # names of the models in the report, by folder


class Stopped(SardonyxError):
    """One of the commands failed; the demo exits with its exit code."""

    def __init__(self, verb: str, code: int) -> None:
        super().__init__(f"the demo stopped: `sardonyx {verb}` failed with exit code {code}")
        self.exit_code = code if code > 0 else 1  # a command that a signal ended has a negative one


class DemoStep(Struct, frozen=True):
    """A command and one line that explains it."""

    description: str
    arguments: Sequence[str]


def steps(folder: Path) -> list[DemoStep]:
    """Return every command of the demo, in order."""
    one, small = folder / "transformer", str(_small(folder / "transformer"))
    layer, decomposed, memory = (str(one / name) for name in ("layer0.onnx", "decomposed.safetensors", "memory.svg"))
    cut = ["extract", small, "--module", LAYER, "-o", layer, "--live", TRANSFORMER]
    report = ["report", str(one), str(folder / "cnn"), "-o", str(folder / "report.html")]
    listed = [
        *_made("a small transformer (2 layers, width 128)", TRANSFORMER, one),
        ("Decompose its attention into primitive operations", ["decompose", TRANSFORMER, "-o", decomposed]),
        ("Count its costs as it is, decomposed and fused", ["analyze", TRANSFORMER, "--svg", memory]),
        ("Extract one layer of the optimized file and verify it against the PyTorch module", cut),
        *_made("a small CNN (ResNet, 20 convolutions)", CNN, folder / "cnn"),
        ("Write one report about both models", report),
    ]
    return [DemoStep(description, [*words, "--force"]) for description, words in listed]


def _made(what: str, source: str, folder: Path) -> list[tuple[str, list[str]]]:
    """Return the steps from a source to an optimized file."""
    model, record = str(_model(folder)), str(folder / "export.json")
    optimized = "Optimize it, verify the result, time and profile both files, and write a report"
    return [
        (f"Export {what} and verify it", ["export", source, "-o", model, "--dynamic", "auto", "--record", record]),
        (optimized, ["optimize", model, "-o", str(_small(folder)), "--run", str(folder)]),
    ]


def _model(folder: Path) -> Path:
    return folder / f"{NAMES[folder.name]}.onnx"


def _small(folder: Path) -> Path:
    return folder / f"{NAMES[folder.name]}.small.onnx"


def run(folder: Path, *, say: Callable[[str], object]) -> None:
    """Run every command of the demo; models, records and reports are written to `folder`.

    Args:
        folder: created if it does not exist; files of an earlier demo in it are replaced.
        say: receives each line of output.
    """
    for package in ("torch", "transformers", "onnxscript"):
        require_installed(package, "the demo needs")
    demo_steps = steps(folder)
    for model in NAMES:
        (folder / model).mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    log.write_text("", encoding="utf-8")
    start = perf_counter()
    for number, step in enumerate(demo_steps, 1):
        say(f"[{number}/{len(demo_steps)}] {step.description}")
        _run_command(step.arguments, log, say)
    say(f"Done in {seconds(perf_counter() - start)}, every result verified. Files:")
    files = [(path, what) for path, what in _files(folder).items() if path.is_file()]
    rows = [Row((str(path), size(path.stat().st_size), what)) for path, what in files]
    for line in table_lines(Table((text_column("file"), Column("size"), text_column("what it is")), rows)):
        say(line)
    say(f"\nOpen {folder / 'report.html'} in a browser.")


def _run_command(arguments: Sequence[str], log: Path, say: Callable[[str], object]) -> None:
    """Run one command: its progress goes to the terminal, its output to the log, and its last lines to `say`."""
    command_line = f"$ sardonyx {shlex.join(arguments)}"
    say(command_line)
    command = [sys.executable, "-m", "sardonyx", *arguments]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, errors="replace")
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"{command_line}\n{done.stdout}\n")
    output = done.stdout.rstrip()
    if done.returncode:
        for line in output.splitlines()[-1:]:  # the error is on standard error already; the log has the rest
            say(line)
        raise Stopped(arguments[0], done.returncode)
    say(output.rpartition("\n\n")[2] + "\n")


def _files(folder: Path) -> dict[Path, str]:
    """Return what each file is that the demo writes."""
    one = folder / "transformer"
    files = {folder / "report.html": "the report about both models: start here"}
    for each in (folder / model for model in NAMES):
        files |= {
            _model(each): "the exported model, every node tagged with its module",
            _small(each): "the optimized model, verified against the exported one",
            each / "export.json": "record of the export, with its verification against PyTorch",
            each / "run.json": "record of the optimization: rewrites, missed fusions, verification",
            each / "certificate.json.gz": "every rewrite, for sardonyx-check",
            each / "bench.json": "record of the times, every round",
            each / "profile.json": "record of the time by module",
            each / "analysis.json": "record of operations, bytes and memory",
            each / "report.html": "the report about this model alone",
        }
    return files | {
        one / "layer0.onnx": f"{LAYER} as a model of its own",
        one / "decomposed.safetensors": "decomposed attention: sardonyx.load_decomposed(…)",
        one / "memory.svg": "memory over time: as it is, decomposed, fused",
        folder / "log.txt": "the whole output of every command",
    }


def _run(given: Given) -> int:
    """Check that the folder is free, and run the demo."""
    folder: Path = given.folder
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="name another one")
    if folder.is_dir() and any(folder.iterdir()) and not given.force:
        raise OutputError(f"{folder} is not empty", hint="--force replaces the files of an earlier demo in it")

    run(folder, say=lambda line: put(line + "\n"))
    return 0


VERB = Verb(
    options=(
        argument("folder", "[FOLDER]", "Folder for the files.", Path, default=Path("demo")),
        FORCE,
    ),
    run=_run,
)  # fmt: skip
