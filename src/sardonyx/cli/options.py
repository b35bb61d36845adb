"""The options that several commands share, their help groups, and the parsers of their values.

Help is plain text without the boxes that typer draws: it is easy to grep, and no name in it is read as markup.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sardonyx.errors import ModelError, UsageError, suggest

OUTPUT = "Output"
MORE = "More"
MANY = "Many models"
GATES = "Gates"
_HELP = "Help"
_GROUPS = ("Arguments", "Options", OUTPUT, MORE, MANY, GATES, _HELP)
_COMMON = ("seed", "threads", "record", "force", "as_json", "quiet", "verbose")  # the same in every command
_DEFAULT = re.compile(r"\s*\[default: (?P<value>[^\]]*?)(; [^\];]*)?\].*$")
_BOUNDS = re.compile(r"\s*\[(required|[\d.x<>=]+)\]$")
VERBOSE_HELP = object()  # of a context: the command line has --verbose; help is printed before options are parsed


class GroupedCommand(TyperCommand):
    """A command whose help explains the options that most users need in a line each, and names the others.

    With --verbose, or if the command has no such option, it explains all of them, in the groups declared with
    `rich_help_panel`.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write every group that is not empty, in a fixed order."""
        groups: dict[str, list[Any]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            if parameter.get_help_record(ctx) is not None:
                groups[_group(parameter)].append(parameter)
        if ctx.obj is VERBOSE_HELP or all(parameter.name != "verbose" for parameter in self.params):
            for title, parameters in groups.items():
                if parameters:
                    with formatter.section(title):
                        formatter.write_dl([parameter.get_help_record(ctx) for parameter in parameters])
            return
        options = [*groups["Options"], *groups[OUTPUT]]
        shown = [parameter for parameter in options if parameter.name not in _COMMON] or groups[MORE]
        rest = [parameter for parameter in (*groups[MORE], *options) if parameter not in shown]
        more = [*rest, *groups[MANY], *groups[GATES], *groups[_HELP]]
        for title, parameters in (("Arguments", groups["Arguments"]), ("Options", shown)):
            if parameters:
                with formatter.section(title):
                    formatter.write_dl([_short_row(parameter, ctx) for parameter in parameters], col_max=24)
        with formatter.section(f"More (`{ctx.command_path} --help -v` explains them)"):
            names = ", ".join(_name(parameter, ctx).replace(" ", "\0") for parameter in more)
            for line in textwrap.wrap(names, formatter.width - formatter.current_indent, break_on_hyphens=False):
                formatter.write(" " * formatter.current_indent + line.replace("\0", " ") + "\n")


def _short_row(parameter: Any, ctx: Any) -> tuple[str, str]:
    """Return an option with the first sentence about it, and its default if it has one."""
    name, text = parameter.get_help_record(ctx)
    match = _DEFAULT.search(text)
    default = "" if match is None or match["value"] == "none" else f" [default: {match['value']}]"
    sentence = _BOUNDS.sub("", _DEFAULT.sub("", text)).partition(". ")[0].rstrip(".")
    return name, f"{sentence}.{default}"


def _name(parameter: Any, ctx: Any) -> str:
    """Return an option as it is usually written, with its value: -q, --seed N, --external-data/--inline."""
    flags, _, value = parameter.get_help_record(ctx)[0].rpartition(" ")
    if parameter.is_flag:
        return "/".join(min(names, key=len) for names in (parameter.opts, parameter.secondary_opts) if names)
    short = min(parameter.opts, key=len)
    return short if not flags or value.startswith("<") else f"{short} {value}"


def _group(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    if parameter.name in ("help", "debug"):
        return _HELP
    return parameter.rich_help_panel or "Options"


class Target(StrEnum):
    """The operators that a result may use."""

    PORTABLE = "portable"
    ORT = "ort"


class VerifyWhen(StrEnum):
    """When to verify."""

    EACH = "each"
    END = "end"
    OFF = "off"


class RuntimeName(StrEnum):
    """The names of `runtime.engines.Runtime`, repeated here because that module is slow to import."""

    ORT = "ort"
    REFERENCE = "reference"
    OPENVINO = "openvino"


class Format(StrEnum):
    """The format of printed tables."""

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
    """The values of `runtime.timed.Level`, repeated here because that module is slow to import."""

    OFF = "off"
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


def output(default: str) -> Any:
    """Return the option `--output` with this default."""
    text = f"File to write. [default: {default}]"
    return typer.Option("--output", "-o", metavar="FILE", help=text, rich_help_panel=OUTPUT)


def svg(content: str, *, panel: str = OUTPUT) -> Any:
    """Return the option `--svg` of a command that can plot this content."""
    text = f"Also plot {content} to this SVG file. [default: none]"
    return typer.Option("--svg", metavar="FILE", help=text, rich_help_panel=panel)


def table_format(rows: str) -> Any:
    """Return the option `--format` of a command that prints tables, whose CSV has these rows."""
    text = f"Format of the output; csv has {rows}."
    return typer.Option("--format", help=text, rich_help_panel=OUTPUT)


def is_there(path: Path) -> bool:
    """Return whether there is anything at a path."""
    return os.path.exists(path)  # unlike exists, False for a name that is too long


def check_readable(models: Path | list[Path]) -> Path | list[Path]:
    """Return the models after checking that they exist, which comes before any check of the output."""
    for path in [models] if isinstance(models, Path) else models:
        if not is_there(path):
            near = [file.name for file in path.parent.glob("*.onnx")] if path.parent.is_dir() else []
            close = suggest(path.name, near) or "check the path"
            raise ModelError(f"{path} cannot be read: there is no such file", hint=close)
    return models


Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file.", callback=check_readable, show_default=False)
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...", help="ONNX files, - for standard input, folders, manifests, URLs.", show_default=False
    ),
]
Output = Annotated[Path | None, output("MODEL.optimized.onnx beside it")]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        "-m",
        metavar="NAME",
        help="Only this module: a tag, an instance path, or a glob. [default: the whole model]",
    ),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth",
        metavar="N",
        min=0,
        help="Levels of the module tree to show; -v shows all. [default: chosen to fit]",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.", rich_help_panel=OUTPUT)]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document, and nothing else.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the summary line only.", rich_help_panel=OUTPUT)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print verbose output.", rich_help_panel=OUTPUT)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, help="Seed of random inputs and random weights."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="Threads for running models. [default: all cores]")
]


def _load_custom_ops(context: typer.Context, libraries: list[Path] | None) -> list[Path] | None:
    """Load operator libraries for as long as the command runs."""
    if libraries:
        from sardonyx.runtime.library import custom_ops

        context.with_resource(custom_ops(*libraries))
    return libraries


CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIBRARY",
        help="Load custom operators of ONNX Runtime from this shared library. Repeatable. [default: none]",
        callback=_load_custom_ops,
        rich_help_panel=MORE,
    ),
]
TimedThreads = Annotated[
    int,
    typer.Option("--threads", metavar="N", min=1, help="Threads for running models; one gives the steadiest times."),
]
Provider = Annotated[
    str,
    typer.Option(
        "--provider", metavar="NAME", help="Execution provider of ONNX Runtime: cpu, cuda, …", rich_help_panel=MORE
    ),
]
Level = Annotated[
    RuntimeLevel, typer.Option("--ort-level", help="Graph optimization level of ONNX Runtime.", rich_help_panel=MORE)
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Also verify on these arrays, one for each input. [default: random inputs only]",
        rich_help_panel=MORE,
    ),
]
VerifySeconds = Annotated[
    float,
    typer.Option(
        "--verify-seconds",
        metavar="N",
        min=0.0,
        help="Approximate time limit for verification, counted in operations; at least two trials run.",
        rich_help_panel=MORE,
    ),
]
Runtimes = Annotated[
    list[RuntimeName] | None,
    typer.Option(
        "--runtime",
        help="Runtime to verify on. Repeatable; the first one is the reference. [default: ort]",
        case_sensitive=False,
        rich_help_panel=MORE,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="DIM=N",
        help="Size of a dynamic dimension. Repeatable. [default: 1 for a first dimension, otherwise 128]",
        rich_help_panel=MORE,
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        "--record", metavar="FILE", help="Also write the record as JSON. [default: none]", rich_help_panel=OUTPUT
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Head of a Hugging Face model: text-classification, …, or a class. [default: as saved, otherwise none]",
        rich_help_panel=MORE,
    ),
]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(
        "--dtype",
        help="Floating-point type of the PyTorch model. [default: float32 for hf:, otherwise keep]",
        rich_help_panel=MORE,
    ),
]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Verify before writing the file.")]
TorchNN = Annotated[
    bool,
    typer.Option(
        "--include-torch-nn",
        help="Also treat torch's own modules (Linear, …) as modules.",
        rich_help_panel=MORE,
    ),
]
TagAttributes = Annotated[
    bool,
    typer.Option(
        "--tag-attributes",
        help="Also write tags as node attributes, for tools that drop metadata.",
        rich_help_panel=MORE,
    ),
]
OutDir = Annotated[
    str | None,
    typer.Option(
        "--out-dir",
        metavar="FOLDER",
        help="Folder or URL for the results of several models. [default: none]",
        rich_help_panel=OUTPUT,
    ),
]
KeepGoing = Annotated[
    bool,
    typer.Option("--keep-going/--fail-fast", help="Continue after a model that failed, or stop.", rich_help_panel=MANY),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let a manifest name code that runs: FILE.py:NAME and --custom-ops.",
        rich_help_panel=MANY,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-j",
        metavar="N",
        min=1,
        help="Models to work on at once, in processes of this machine. [default: the number of cores]",
        rich_help_panel=MANY,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Run on a Dask cluster: tcp://HOST:PORT, a scheduler file, or FILE.py:FUNCTION. [default: none]",
        rich_help_panel=MANY,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="Time after which the work on a model fails: 90s, 10m. [default: none]",
        rich_help_panel=MANY,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory that the work on a model may use, and all at once on this machine: 8GB. [default: what is free]",
        rich_help_panel=MANY,
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="EXPR",
        help="Exit with 4 if true: 'nodes>120'. Repeatable. [default: none]",
        rich_help_panel=GATES,
    ),
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="An earlier record to compare with. [default: none]",
        rich_help_panel=GATES,
    ),
]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        metavar="FILE",
        help="Append gates and numbers to this Markdown page. [default: none]",
        rich_help_panel=GATES,
    ),
]


def start_verifier() -> None:
    """Start the process that runs models for verification; it loads the runtime while this one loads the rest."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process in which numpy has threads cannot be forked safely
    from sardonyx.runtime.remote import start_early

    start_early()


def check_output_options(form: Format, *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Raise an error if the options of a command that prints tables contradict each other."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--json", as_json, "--format", form is not Format.TEXT)
    reject_both("--quiet", quiet, "--format", form is not Format.TEXT)


def reject_both(first: str, first_given: bool, second: str, second_given: bool) -> None:
    """Raise an error if two options that contradict each other are both given."""
    if first_given and second_given:
        raise UsageError(f"{first} and {second} contradict each other", hint="give one of them")


_DURATION = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>s|m|min|h|)\s*", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_LONGEST = 7 * 24 * 3600
_MEMORY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?i?B)", re.ASCII | re.IGNORECASE)
_BYTES = {"b": 1.0} | {
    f"{prefix}{infix}b": float(base ** (power + 1))
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kmgt")
}
_SIZE_OR_ZERO = re.compile(r"(?P<dim>[^\s=]+)=(?P<size>\d{1,18})", re.ASCII)
_SIZE = re.compile(r"(?P<dim>[^\s=]+)=(?P<size>[1-9]\d{0,17})", re.ASCII)


def parse_sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """Return the values of `--size` by dimension."""
    return dict(map(_size, texts or ()))


def parse_example(specs: Sequence[str] | None, file: Path | None) -> Mapping[str, Any] | None:
    """Return the inputs that `--input` specifies or the arrays of `--inputs`, by name; None without either."""
    from sardonyx.records.input_specs import parse_inputs, read_arrays

    return (parse_inputs(specs or ()) if file is None else read_arrays(file)) or None


def parse_point(text: str) -> dict[str, int]:
    """Return the sizes in a text such as `sequence=1,past_sequence=128`; a size may be 0."""
    matches = [_SIZE_OR_ZERO.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches):
        raise UsageError(
            f"'{text}' is not a list of sizes", hint="write DIM=N,DIM=N, for example sequence=1,past_sequence=128"
        )
    return {match["dim"]: int(match["size"]) for match in matches if match is not None}


def parse_duration(text: str) -> float:
    """Return the seconds of a positive length of time such as "60", "90s" or "2m".

    Raises:
        UsageError: the text is not a length of time, or is more than a week.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match is not None else 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(f"'{text}' is not a length of time", hint="write 60, 90s or 2m; up to a week")
    return seconds


def parse_memory(text: str | None) -> int | None:
    """Return the bytes of an amount of memory such as "8GB" or "500 MB"; None for None.

    Raises:
        UsageError: the text is not an amount of memory.
    """
    if text is None:
        return None
    match = _MEMORY.fullmatch(text.strip())
    amount = float(match["number"]) * _BYTES[match["unit"].lower()] if match is not None else 0.0
    if not 0 < amount < 1e18:
        raise UsageError(f"'{text}' is not an amount of memory", hint="write 8GB or 500MB")
    return int(amount)


def _size(text: str) -> tuple[str, int]:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not a size", hint="write DIM=N, for example --size batch=8")
    return match["dim"], int(match["size"])
