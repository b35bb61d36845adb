"""Say how an optimized file was made in a form that other programs sign, and make it again from its source.

`attest` returns an in-toto statement; `rederive` runs `optimize` with the recorded options and compares bytes. Options
are read from the record of a run, from a statement, or from the metadata of the file (`docs/attest.md`).
"""

from __future__ import annotations

import gzip
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import UsageError
from sardonyx.ir import io, metadata
from sardonyx.ir.device import target_named
from sardonyx.records.environment import environment
from sardonyx.records.progress import Progress
from sardonyx.records.run import Run
from sardonyx.verbs.optimize.options import OptimizeOptions
from sardonyx.verbs.optimize.pipeline import optimize

Json = dict[str, Any]
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://sardonyx/optimization/v1"  # a name; nothing is served there
_RUN, _CERTIFICATE = "run.json", "certificate.json.gz"  # in the folder of a run
_WHAT = "name an optimized file, the record of its run, or the folder of the run"


class Rederivation(Struct, frozen=True):
    """Whether a result has the bytes that its source gives with the recorded options."""

    result: str
    source: str
    same: bool
    difference: str = ""  # the first: in the files, the version, the options or the graph


class _Options(OptimizeOptions, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of `optimize` that decide about the result."""

    target: str
    verify: Literal["each", "end", "off"]
    seed: int
    only: list[str] | None = None
    skip: list[str] | None = None
    tune: bool = False


class _Made(Struct, frozen=True):
    """A result, and how it was made."""

    result: Path
    source: Path
    version: str
    options: _Options
    recorded: dict[str, list[str | None]] = {}  # SHA-256 sums of the files by role, the model first
    certificate: Path | None = None


def attest(
    result: str | Path, *, source: str | Path | None = None, certificate: str | Path | None = None
) -> dict[str, Any]:
    """Return an in-toto statement about an optimized file: its digests, its source, and how it was made.

    Args:
        result: The file that `optimize` wrote, the record of the run, or the folder of the run.
        source: The file that was optimized; None takes it from the record.
        certificate: The certificate of the result; None takes that of the folder, if there is one.

    Returns:
        The statement, to be written as JSON.

    Raises:
        UsageError: A file is missing, was not written by `optimize`, or is not the one that was recorded.
    """
    made = _made(Path(result), source)
    subject, sources = _files(made.result), _files(made.source)
    for changed in _changed(made, subject, sources):
        raise UsageError(changed, hint="attest the files of one run")
    predicate: Json = {
        "source": sources,
        "version": made.version,
        "options": msgspec.json.decode(msgspec.json.encode(made.options)),
    }
    path = made.certificate if certificate is None else Path(certificate)
    if path is not None:
        predicate["certificate"] = _descriptor(path, path.name)
        data = path.read_bytes()
        content = _json(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data, path)
        about = [content.get(side, {}).get("sha256") for side in ("result", "source")]
        if about != [subject[0]["digest"]["sha256"], sources[0]["digest"]["sha256"]]:
            raise UsageError(f"{path} is no certificate of these files", hint="name the certificate of this result")
    return {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}


def rederive(result: str | Path, *, source: str | Path | None = None, progress: Progress | None = None) -> Rederivation:
    """Optimize a source again with the recorded options, and compare every byte with the result.

    Args:
        result: The file that `optimize` wrote, the record of the run, the folder of the run, or a statement.
        source: The file that was optimized; None takes it from the record or the statement.
        progress: Called with the phase, and the fraction done if known.

    Returns:
        Whether the bytes are the same, otherwise the first thing that differs.

    Raises:
        UsageError: A file is missing, was not written by `optimize`, or was tuned, so that times decided about it.
    """
    made = _made(Path(result), source)
    if made.options.tune:
        raise UsageError(f"{made.result} was tuned: measured times decided about it", hint="optimize without tuning")
    difference = next(_differences(made, progress), "")
    return Rederivation(str(made.result), str(made.source), same=not difference, difference=difference)


def _differences(made: _Made, progress: Progress | None) -> Iterator[str]:
    """Yield the differences, the first cause first; the result is made again only if the conditions are the same."""
    subject, current = _files(made.result), environment().sardonyx
    yield from _changed(made, subject, _files(made.source))
    if made.version != current:
        yield f"it was made with version {made.version}, and this is {current}"
    options = replace(made.options, external=len(subject) > 1)
    with temporary_folder() as folder:
        again = Path(folder) / made.result.name
        named = {name: getattr(options, name) for name in ("target", "verify", "only", "skip", "seed")}
        optimize(made.source, again, **named, options=options, progress=progress)
        for one, two in zip(subject, _files(again), strict=False):
            if one != two:
                yield from _in_graph(made.result, again)
                yield f"the bytes of {one['name']}"


def _in_graph(stored: Path, again: Path) -> Iterator[str]:
    """Yield what differs in two models, without their data files."""
    one, two = (onnx.load_model_from_string(path.read_bytes()) for path in (stored, again))
    for kind in ("metadata_props", "graph.node", "graph.initializer"):
        for first, second in zip(*map(operator.attrgetter(kind), (one, two)), strict=False):
            if first != second:
                again_label = "another one" if _label(first) == _label(second) else _label(second)
                yield f"{_label(first)} in the file, {again_label} when made again"


def _label(part: Any) -> str:
    """Return an entry of the metadata, a node or a constant by its name."""
    if isinstance(part, onnx.StringStringEntryProto):
        return f"{part.key} {part.value}"
    return f"{part.op_type} {part.name!r}" if isinstance(part, onnx.NodeProto) else f"constant {part.name!r}"


def _changed(made: _Made, subject: Sequence[Json], sources: Sequence[Json]) -> Iterator[str]:
    """Yield which files are not those that were recorded."""
    for role, files, path in (("result", subject, made.result), ("source", sources, made.source)):
        for each, recorded in zip(files, made.recorded.get(role, ()), strict=False):
            if recorded not in (None, each["digest"]["sha256"]):
                yield f"{path.parent / each['name']} is not the {role} that was recorded: its SHA-256 differs"


def _files(path: Path) -> list[Json]:
    """Return the descriptors of a model and its data files."""
    return [_descriptor(path.parent / name, name) for name in (path.name, *io.external_files(path))]


def _descriptor(path: Path, name: str) -> Json:
    return {"name": name, "digest": {"sha256": io.sha256_of(_existing(path))}}


def _existing(*paths: Path) -> Path:
    """Return the first of some paths at which there is a file."""
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise UsageError(f"{paths[0]} is missing", hint="`source` says where the source is")
    return found


def _json(data: bytes, path: Path) -> Json:
    try:
        return msgspec.json.decode(data, type=Json)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no JSON object: {error}", hint=_WHAT) from error


def _made(given: Path, source: str | Path | None) -> _Made:
    """Return how a result was made."""
    file = _existing(given / _RUN if given.is_dir() else given)
    with file.open("rb") as stream:
        if stream.read(1) != b"{":
            return _of_metadata(file, source)
    data = file.read_bytes()
    content = _json(data, file)
    if content.get("_type") == STATEMENT:
        return _of_statement(content, file, source)
    run = Run.from_json(data, str(file), _WHAT)
    paths = [side.path for side in (run.result, run.source)]
    if None in paths:
        raise UsageError(f"{file} is of a model in memory", hint="optimize a file, and write the result to one")
    result, recorded = (Path(path or "") for path in paths)
    return _Made(
        _existing(result, file.parent / result.name),
        _existing(Path(source)) if source is not None else _existing(recorded, file.parent / recorded.name),
        run.environment.sardonyx,
        _options(run.options, file),
        {"result": [run.result.sha256], "source": [run.source.sha256]},
        next(iter(file.parent.glob(_CERTIFICATE)), None),
    )


def _of_metadata(file: Path, source: str | Path | None) -> _Made:
    props = io.load(file).metadata_props
    options = metadata.read_options(props.get(metadata.OPTIONS, "")).get("optimize")
    if options is None or metadata.VERSION not in props:
        raise UsageError(f"{file} was not written by `sardonyx optimize`", hint=_WHAT)
    if source is None:
        raise UsageError(f"{file} does not say where its source is", hint="`source` says it, or name the record")
    return _Made(file, _existing(Path(source)), props[metadata.VERSION], _options(options, file))


def _of_statement(statement: Json, file: Path, source: str | Path | None) -> _Made:
    try:
        predicate = statement["predicate"]
        sides = {"result": statement["subject"], "source": predicate["source"]}
        recorded = {role: [each["digest"]["sha256"] for each in files] for role, files in sides.items()}
        result, given = (file.parent / files[0]["name"] for files in sides.values())
        version, options = str(predicate["version"]), _options(predicate["options"], file)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not a statement of `sardonyx attest`", hint=_WHAT) from error
    return _Made(
        _existing(result), _existing(Path(source) if source is not None else given), version, options, recorded
    )


def _options(recorded: object, file: Path) -> _Options:
    try:
        options = msgspec.convert(recorded, _Options)
        target_named(options.target)
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"the options in {file} are not valid: {error}", hint=_WHAT) from error
    return replace(options, hashes=None, reproducer=None, external=None)
