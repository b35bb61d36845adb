"""The options of commands: what one is, those that several commands share, and the parsers of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from sardonyx.errors import ModelError, UsageError, suggest

if TYPE_CHECKING:
    from sardonyx.cli.verb import Parameter

OUTPUT = "Output"
MORE = "More"
MANY = "Many models"
GATES = "Gates"
DTYPES = Literal["float32", "float16", "bfloat16", "keep"]
LEVELS = Literal["off", "basic", "extended", "layout", "all"]  # of `runtime.timed.Level`, which is slow to import
TABLES = Literal["text", "markdown", "csv"]


class RuntimeName(StrEnum):
    """The names of `runtime.engines.Runtime`, likewise; typer accepts no list of literals."""

    ORT = "ort"
    REFERENCE = "reference"
    OPENVINO = "openvino"
    WEB_WASM = "web-wasm"
    WEB_WEBGPU = "web-webgpu"


class Option(Struct, frozen=True):
    """An option or an argument of a command.

    Type, default and help may be left out if the public function of the command, or its class of options, has a
    parameter of this name: then they are those of the parameter.
    """

    name: str  # of the parameter and of the value
    metavar: str | None = None
    help: str = ""
    flags: tuple[str, ...] = ()  # the name with hyphens if there are none
    group: str | None = None  # in the help; None: Options
    type: Any = None
    default: Any = UNSET
    none: str = ""  # what the default None stands for
    least: float | None = None
    most: float | None = None
    any_case: bool = False
    argument: bool = False
    writes: bool = False  # names a file that the command writes
    read: Callable[[Any], Any] | None = None  # checks or parses a value; that of an argument before options are read
    resource: Callable[[Any], AbstractContextManager[object]] | None = None  # entered while the command runs
    values: Callable[[], list[str]] | None = None  # that shells complete, if the type does not say it

    @property
    def flag(self) -> str:
        """The option as messages name it."""
        return max((flag.split("/")[0] for flag in self.flags), key=len, default=_flag(self.name))

    def completed(self, parameter: Parameter | None) -> Option:
        """Return the option with everything that the parameter of its name says.

        Raises:
            TypeError: something is declared nowhere.
        """
        option = self
        if parameter is not None:
            option = replace(
                option,
                type=option.type or parameter.type,
                default=parameter.default if option.default is UNSET and not option.argument else option.default,
                help=option.help or parameter.help,
            )
        is_declared = parameter is not None or option.argument or option.default is not UNSET
        if option.type is None or not option.help or not is_declared:
            raise TypeError(f"the option {self.name!r} needs a type, a default and a help text")
        help = option.help + (f" [default: {option.none}]" if option.none else "")
        if option.type == list[str] and not option.default and not option.argument:
            option = replace(option, default=None)
        return replace(option, help=help, flags=option.flags or (() if option.argument else (_flag(option.name),)))


def _flag(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def switch(name: str, help: str, *flags: str, group: str | None = None) -> Option:
    """Return an option without a value."""
    return Option(name, None, help, flags, group, bool, False)


def argument(
    name: str, metavar: str, help: str, type: Any = str, *, default: Any = UNSET, checked: bool = False
) -> Option:
    """Return an argument; `checked`: it names models, which must exist."""
    read = check_readable if checked else None
    return Option(name, metavar, help, type=type, default=default, argument=True, read=read)


def file(
    name: str,
    help: str,
    *flags: str,
    none: str = "none",
    metavar: str = "FILE",
    group: str | None = None,
    writes: bool = False,
    new: bool = False,
) -> Option:
    """Return an option that names a file or a folder, which must exist unless the command `writes` it.

    A `new` one is written too, but checked by the command itself.
    """
    read = None if writes or new else check_readable
    return Option(name, metavar, help, flags, group, Path, None, none, writes=writes, read=read)


def choice(name: str, values: Any, help: str, *flags: str, default: Any = None, group: str | None = None) -> Option:
    """Return an option with one of several values."""
    return Option(name, None, help, flags, group, values, default)


def listed(
    name: str,
    metavar: str | None,
    help: str,
    *flags: str,
    none: str = "none",
    group: str | None = None,
    type: Any = str,
    any_case: bool = False,
    read: Callable[[Any], Any] | None = None,
) -> Option:
    """Return an option that may be repeated."""
    return Option(name, metavar, help, flags, group, list[type], None, none, any_case=any_case, read=read)


def output(default: str) -> Option:
    """Return the option `--output` with this default."""
    return file("output", "File to write.", "--output", "-o", none=default, group=OUTPUT, writes=True)


def svg(content: str, *, group: str = OUTPUT) -> Option:
    """Return the option `--svg` of a command that can plot this content."""
    return file("svg", f"Also plot {content} to this SVG file.", group=group, writes=True)


def seconds(default: str | None, help: str = "Time limit for measurements: 60, 90s, 2m.", *, none: str = "") -> Option:
    """Return the option `--seconds` of a command that measures."""
    return Option("seconds", "TIME", help, type=str, default=default, none=none, read=parse_duration)


def table_format(rows: str) -> Option:
    """Return the option `--format` of a command that prints tables, whose CSV has these rows."""
    return choice("format", TABLES, f"Format of the output; csv has {rows}.", default="text", group=OUTPUT)


def is_there(path: Path) -> bool:
    """Return whether there is anything at a path."""
    return os.path.exists(path)  # unlike exists, False for a name that is too long


_Paths = TypeVar("_Paths", Path, list[Path])


class MissingFile(ModelError):
    """A file that the command line names does not exist."""

    exit_code = UsageError.exit_code


def check_readable(paths: _Paths) -> _Paths:
    """Return the paths after checking that there is something at each, which comes before any check of the output.

    Raises:
        MissingFile: there is nothing at one of them.
    """
    for path in [paths] if isinstance(paths, Path) else paths:
        if not is_there(path):
            near = [file.name for file in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
            close = suggest(path.name, near) or "check the path"
            raise MissingFile(f"{path} cannot be read: there is no such file", hint=close)
    return paths


def target_names() -> list[str]:
    """Return the targets that have a name; the file of a profile is one too."""
    profiles = (Path(__file__).parents[1] / "ir" / "devices").glob("*.json")
    return ["portable", "ort", *sorted(path.stem for path in profiles)]


def check_target(name: str | None) -> str | None:
    """Return the name of a target after looking for the profile of its device.

    Raises:
        UsageError: there is none.
    """
    if name not in (None, "portable", "ort"):
        from sardonyx.ir.device import target_named  # imported here because few commands name a device

        target_named(name)
    return name


def check_sources(sources: list[str]) -> list[str]:
    """Return the sources after checking that the ONNX files exist that they name."""
    check_readable([Path(source) for source in sources if source.endswith(".onnx") and "://" not in source])
    return sources


def _custom_ops(libraries: Sequence[Path]) -> AbstractContextManager[object]:
    from sardonyx.runtime.library import custom_ops

    return custom_ops(*libraries)


def parse_sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """Return the values of `--size` by dimension."""
    return dict(map(_size, texts or ()))


# fmt: off
_ONLY_RANDOM = "random inputs only"
MODEL = argument("model", "MODEL", "An ONNX file.", Path, checked=True)
MODELS = argument("models", "MODEL...", "ONNX files, - for standard input, folders, manifests, URLs.", list[str])
SOURCE = argument("source", "SOURCE", "Source of the model.")
MODULE = Option("module", "NAME", "Only this module: a tag, an instance path, or a glob.", ("--module", "-m"),
    none="the whole model")
DEPTH = Option("depth", "N", "Levels of the module tree to show; -v shows all.", group=OUTPUT, type=int, default=None,
    none="chosen to fit", least=0)
FORCE = switch("force", "Overwrite existing files.", "--force", "-f", group=OUTPUT)
JSON = switch("as_json", "Print one JSON document, and nothing else.", "--json", group=OUTPUT)
QUIET = switch("quiet", "Print the summary line only.", "--quiet", "-q", group=OUTPUT)
VERBOSE = switch("verbose", "Print verbose output.", "--verbose", "-v", group=OUTPUT)
PRINTING = (JSON, QUIET, VERBOSE)
DEBUG = switch("debug", "Show the traceback of a failure.")
SEED = Option("seed", "N", "Seed of random inputs and random weights.", type=int, default=0, least=0)
THREADS = Option("threads", "N", "Threads for running models.", type=int, default=None, none="all cores", least=1)
TIMED_THREADS = Option("threads", "N", "Threads for running models; one gives the steadiest times.", type=int,
    default=1, least=1)
CUSTOM_OPS = Option("custom_ops", "LIBRARY",
    "Load custom operators of ONNX Runtime from this shared library. Repeatable.",
    group=MORE, type=list[Path], default=None, none="none", resource=_custom_ops)
PROVIDER = Option("provider", "NAME", "Execution provider of ONNX Runtime: cpu, cuda, …", group=MORE)
LEVEL = choice("level", LEVELS, "Graph optimization level of ONNX Runtime.", "--ort-level", default="all", group=MORE)
INPUTS = file("inputs", "Also verify on these arrays, one for each input.", metavar="FILE.npz", none=_ONLY_RANDOM,
    group=MORE)
VERIFY_SECONDS = Option("verify_seconds", "N",
    "Approximate time limit for verification, counted in operations; at least two trials run.",
    group=MORE, type=float, default=20.0, least=0.0)
RUNTIME = listed("runtime", None, "Runtime to verify on. Repeatable; the first one is the reference.", none="ort",
    group=MORE, type=RuntimeName, any_case=True)
SIZES = listed("sizes", "DIM=N", "Size of a dynamic dimension. Repeatable.", "--size",
    none="1 for a first dimension, otherwise 128", group=MORE, read=parse_sizes)
RECORD = file("record", "Also write the record as JSON.", group=OUTPUT, writes=True)
TASK = Option("task", "TASK", "Head of a Hugging Face model: text-classification, …, or a class.",
    none="as saved, otherwise none", group=MORE, type=str, default=None)
DTYPE = replace(choice("dtype", DTYPES, "Floating-point type of the PyTorch model.", group=MORE),
    none="float32 for hf:, otherwise keep")
INPUT = listed("input_specs", "NAME=DTYPE[DIMS]", "Type and shape, or a VALUE. Repeatable.", "--input", none="derived")
INPUT_FILE = file("inputs", "Example inputs, as of numpy.savez.", metavar="FILE.npz", none="derived")
DYNAMIC = listed("dynamic", "NAME:AXIS=DIM|auto", "A dynamic dimension; auto finds all. Repeatable.")
EXTERNAL = Option("external", None, "Store weights in a separate file, or in the model.",
    ("--external-data/--inline",), MORE, bool, None)
VERIFY = choice("verify", Literal["end", "off"], "Verify before writing the file.", default="end")
KEEP_MODULES = listed("keep_modules", "NAME", "Leave this module as it is. A path, tag, glob or class; repeatable.",
    "--keep-module")
TORCH_NN = switch("include_torch_nn", "Also treat torch's own modules (Linear, …) as modules.", group=MORE)
TAG_ATTRIBUTES = switch("tag_attributes", "Also write tags as node attributes, for tools that drop metadata.",
    group=MORE)
OUT_DIR = Option("out_dir", "FOLDER", "Folder or URL for the results of several models.", group=OUTPUT, type=str,
    default=None, none="none")
WORKERS = Option("workers", "N", "Models to work on at once, in processes of this machine.", ("--workers", "-j"), MANY,
    int, None, "the number of cores", 1)
CLUSTER = Option("cluster", "ADDRESS",
    "Run on a Dask cluster: tcp://HOST:PORT, a scheduler file, or FILE.py:FUNCTION.", group=MANY, type=str,
    default=None, none="none")
TIMEOUT = Option("timeout", "TIME", "Time after which the work on a model fails: 90s, 10m.", group=MANY, type=str,
    default=None, none="none")
MEMORY = Option("memory", "SIZE", "Memory that the work on a model may use, and all at once on this machine: 8GB.",
    group=MANY, type=str, default=None, none="what is free")
KEEP_GOING = Option("keep_going", None, "Continue after a model that failed, or stop.", ("--keep-going/--fail-fast",),
    MANY, bool, True)
ALLOW_CODE = switch("allow_code", "Let a manifest name code that runs: FILE.py:NAME and --custom-ops.", group=MANY)
MANY_MODELS = (WORKERS, CLUSTER, TIMEOUT, MEMORY, KEEP_GOING, ALLOW_CODE)
GATING = (
    listed("fail_if", "EXPR", "Exit with 4 if true: 'nodes>120'. Repeatable.", group=GATES),
    file("baseline", "An earlier record to compare with.", group=GATES),
    file("summary", "Append gates and numbers to this Markdown page.", group=GATES, new=True),
)
# fmt: on


def start_verifier() -> None:
    """Start the process that runs models for verification; it loads the runtime while this one loads the rest."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process in which numpy has threads cannot be forked safely
    from sardonyx.runtime.remote import start_early

    start_early()


def reject_both(first: str, first_given: bool, second: str, second_given: bool) -> None:
    """Raise an error if two options that contradict each other are both given."""
    if first_given and second_given:
        raise UsageError(f"{first} and {second} contradict each other", hint="give one of them")


_DURATION = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>s|m|min|h|)\s*", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_MAX_SECONDS = 7 * 24 * 3600
_MEMORY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?i?B)", re.ASCII | re.IGNORECASE)
_BYTES = {"b": 1.0} | {
    f"{prefix}{infix}b": float(base ** (power + 1))
    for infix, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kmgt")
}
_SIZE_OR_ZERO = re.compile(r"(?P<dim>[^\s=]+)=(?P<size>\d{1,18})", re.ASCII)
_SIZE = re.compile(r"(?P<dim>[^\s=]+)=(?P<size>[1-9]\d{0,17})", re.ASCII)


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
    if not 0 < seconds <= _MAX_SECONDS:
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
