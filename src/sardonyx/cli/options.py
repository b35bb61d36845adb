"""The options that several commands share, declared once so that they mean and read the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.help import GATES, OUTPUT
from sardonyx.errors import UsageError


class Target(StrEnum):
    """What the result must run on."""

    PORTABLE = "portable"
    ORT = "ort"


class Proof(StrEnum):
    """When to verify."""

    EACH = "each"
    END = "end"
    OFF = "off"


class RuntimeName(StrEnum):
    """What can run a model: `runtime.engines.Runtime`, which help must not wait for."""

    ORT = "ort"
    REFERENCE = "reference"
    OPENVINO = "openvino"


class Format(StrEnum):
    """How to print."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CSV = "csv"


class DtypeName(StrEnum):
    """The floating-point type of a PyTorch model."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    KEEP = "keep"


class RuntimeLevel(StrEnum):
    """How far the runtime may optimize by itself: `runtime.timed.Level`, which help must not wait for."""

    OFF = "off"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


def output(default: str) -> Any:
    """`--output` of a command that writes there by default."""
    words = f"Where to write. [default: {default}]"
    return typer.Option("--output", "-o", metavar="FILE", help=words, rich_help_panel=OUTPUT)


def drawing(what: str) -> Any:
    """`--svg` of a command that can draw this."""
    words = f"Also draw {what}, as SVG. [default: not drawn]"
    return typer.Option("--svg", metavar="FILE", help=words, rich_help_panel=OUTPUT)


def form(what: str) -> Any:
    """`--format` of a command that prints tables."""
    words = f"What to print: text for people, markdown for a page, csv with {what}."
    return typer.Option("--format", help=words, rich_help_panel=OUTPUT)


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Output = Annotated[Path | None, output("MODEL.optimized.onnx beside it")]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        "-m",
        metavar="NAME",
        help="Only this module: a tag, an instance path, or a glob. [default: all of the model]",
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth",
        metavar="N",
        min=0,
        help="Levels of the module tree; -v shows all. [default: as many as read well]",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that exist.", rich_help_panel=OUTPUT)]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document, and nothing else on standard output.", rich_help_panel=OUTPUT
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the closing sentence only.", rich_help_panel=OUTPUT)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print everything that is known.", rich_help_panel=OUTPUT)
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, help="Where random numbers start: drawn inputs, random weights."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="Threads for running models. [default: all cores]")
]
TimedThreads = Annotated[
    int, typer.Option("--threads", metavar="N", min=1, help="Threads for running models; one is the steadiest.")
]
Provider = Annotated[str, typer.Option("--provider", metavar="NAME", help="What ONNX Runtime runs on: cpu, cuda, …")]
Level = Annotated[RuntimeLevel, typer.Option("--ort-level", help="How far ONNX Runtime may optimize by itself.")]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs", metavar="FILE.npz", help="Verify on these too, one array for each input. [default: drawn alone]"
    ),
]
VerifySeconds = Annotated[
    float,
    typer.Option(
        "--verify-seconds",
        metavar="N",
        min=0.0,
        help="About how long verification may run models, ten runs in any case.",
    ),
]
Runtimes = Annotated[
    list[RuntimeName] | None,
    typer.Option(
        "--runtime",
        help="What runs the models to compare them. Repeatable; the first is the reference. [default: ort]",
        case_sensitive=False,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size", metavar="DIM=N", help="Size of an open dim. Repeatable. [default: 1 for a first dim, else 128]"
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        "--record", metavar="FILE", help="Also write the record as JSON. [default: not kept]", rich_help_panel=OUTPUT
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Head of a Hugging Face model: text-classification, …, or a class. [default: as it was saved, else none]",
    ),
]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(
        "--dtype", help="Floating-point type of the PyTorch model. [default: float32 for hf:, otherwise keep]"
    ),
]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Prove the result before it is written.")]
TorchNN = Annotated[
    bool, typer.Option("--include-torch-nn", help="Go down to torch's own modules too: Linear, LayerNorm, …")
]
TagAttributes = Annotated[
    bool, typer.Option("--tag-attributes", help="Write tags as node attributes too, for tools that drop metadata.")
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="EXPR",
        help="Exit 4 if true, such as 'nodes>120' or 'nodes>baseline'. Repeatable. [default: no gate]",
        rich_help_panel=GATES,
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="An earlier record, for --fail-if to compare with. [default: none]",
        rich_help_panel=GATES,
    ),
]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        metavar="FILE",
        help="Add the gates and key numbers to a Markdown page. [default: none]",
        rich_help_panel=GATES,
    ),
]


def reject_both(first: str, first_given: bool, second: str, second_given: bool) -> None:
    """Refuse two options that contradict each other."""
    if first_given and second_given:
        raise UsageError(f"{first} and {second} contradict each other", hint="give one of them")


_SIZE_OR_NONE = re.compile(r"(?P<dim>[^\s=]+)=(?P<size>\d{1,18})", re.ASCII)
_SIZE = re.compile(r"(?P<dim>[^\s=]+)=(?P<size>[1-9]\d{0,17})", re.ASCII)


def parse_sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """What `--size` was given, by dim."""
    return dict(map(_size, texts or ()))


def parse_point(text: str) -> dict[str, int]:
    """Several sizes as one text, `sequence=1,past_sequence=128`; a dim may be empty."""
    found = [_SIZE_OR_NONE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"'{text}' are no sizes", hint="write DIM=N,DIM=N, for example sequence=1,past_sequence=128")
    return {each["dim"]: int(each["size"]) for each in found if each is not None}


def _size(text: str) -> tuple[str, int]:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' is not a size", hint="write DIM=N, for example --size batch=8")
    return found["dim"], int(found["size"])
