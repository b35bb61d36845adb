"""The models of a command about many: files, folders, patterns, manifests, URLs, and models that are built.

Every model gets a name, which is the path of its results in the folder of the command. Models of a folder or a pattern
are named by their path in it, so that equal file names in different folders stay apart.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import ModelError, SardonyxError, UsageError
from sardonyx.fleet.storage import open_store
from sardonyx.ir.storage import BLOCK_BYTES, SourceFile

SUFFIX = ".onnx"
MANIFEST = ".jsonl"
RESERVED = ("summary", "status")  # names of files that a command writes besides results
_RESERVED_FOLDERS = ("cells", "tables", "logs")
_FORMS = "give ONNX files, folders or patterns of them, or a manifest; docs/fleet.md lists all forms"
_NOT_ACCEPTED = "it contains a character that file systems do not accept"
_LINE = 'write one object a line: {"source": "model.onnx", "options": {"seed": 3}}'
_BUILT = re.compile(r"(?:hf|hf-config|torchvision|timm):.+|.+\.py:\w+")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.IGNORECASE)


class Source(Struct, frozen=True):
    """A model of a command about many, and what a manifest says about it."""

    text: str  # as it is shown
    location: str  # an absolute path, a URL, or what `sardonyx export` accepts
    name: str  # of its results: a relative path with `/`
    options: tuple[str, ...] = ()  # words of the command line, for this model alone
    export: tuple[str, ...] = ()  # words for `sardonyx export`, for a model that is built
    candidate: str | None = None  # the location of the model to compare it with
    candidate_text: str = ""  # as it is shown
    problem: str = ""  # why there is nothing to do with it
    line: str = ""  # of the manifest that names it: "list.jsonl, line 3"

    @property
    def is_built(self) -> bool:
        """Whether it is exported first."""
        return is_built(self.location)


def is_built(source: str) -> bool:
    """Return whether a source is one that `sardonyx export` accepts."""
    return _BUILT.fullmatch(source) is not None and not os.path.exists(source)


def is_url(source: str) -> bool:
    """Return whether a source is a URL."""
    return _URL.fullmatch(source) is not None


def find_sources(given: Iterable[str], *, exclude: str | None = None) -> list[Source]:
    """Return the models, those of a folder sorted by path; the files of the folder for results are left out.

    Raises:
        UsageError: a folder or pattern contains no model, a manifest is not valid, or two models have the same name.
    """
    folder = None if exclude is None or is_url(exclude) else Path(exclude)
    sources = [source for text in given for source in _expanded(text, folder)]
    check_names(sources)
    return sources


def onnx_files(folder: Path, exclude: Path | None = None) -> list[Path]:
    """Return the ONNX files of a folder and those below it, sorted by path, without hidden and excluded folders."""
    return [
        path
        for path in sorted(folder.rglob(f"*{SUFFIX}"))
        if os.path.isfile(path) and not _is_excluded(path, folder, exclude)
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _is_excluded(path: Path, root: Path, exclude: Path | None) -> bool:
    """Return whether a file is in the folder for results, unless that contains the whole folder of sources."""
    if exclude is None:
        return False
    excluded = exclude.resolve()
    return excluded in path.resolve().parents and not root.resolve().is_relative_to(excluded)


def _expanded(text: str, exclude: Path | None, base: Path | None = None) -> list[Source]:
    """Return the models of one source; `base` is the folder that relative paths begin at, if it is not this one."""
    if text.endswith(MANIFEST):
        return list(_of_manifest(text, exclude))
    if is_url(text):
        return _of_url(text)
    if is_built(text):
        file, _, factory = text.rpartition(":")
        here = f"{os.path.abspath((base or Path()) / file)}:{factory}" if file.endswith(".py") else text
        return [Source(text, here, plain_name(text))]
    path = Path(text) if base is None else base / text
    if os.path.isdir(path):  # unlike is_dir, False for a name that is too long or may not be looked up
        root, found = path, onnx_files(path, exclude)
    elif glob.has_magic(text) and not os.path.exists(path):
        root = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
        matching = sorted(map(Path, glob.glob(str(path), recursive=True)))
        found = [file for file in matching if os.path.isfile(file) and not _is_excluded(file, root, exclude)]
    else:
        root, found = path.parent, [path]
    if not found:
        what = "contains no ONNX file" if os.path.isdir(path) else "matches no file"
        raise UsageError(f"{text} {what}", hint=_FORMS)
    return [_found(str(file), os.path.abspath(file), path_name(file.relative_to(root))) for file in found]


def _found(text: str, location: str, name: str) -> Source:
    """Return a model under the name of its file; characters that no name may have are a problem of this model alone."""
    shown = _escaped(name)
    problem = "" if shown == name else f"{shown} is no name for a result: {_NOT_ACCEPTED}; rename the file"
    return Source(_escaped(text), location, shown, problem=problem)


def _escaped(name: str) -> str:
    """Return a printable name, a different one for every name; one with escape sequences is not that of a result."""
    return name if name.isprintable() and "\\" not in name else repr(name)[1:-1]


def _of_url(url: str) -> list[Source]:
    """Return the model at a URL, or all models below it."""
    if url.endswith(SUFFIX):
        return [_found(url, url, path_name(Path(url.rsplit("/", 1)[1])))]
    root = url.rstrip("/")
    names = [name for name in open_store(root).names() if name.endswith(SUFFIX)]
    if not names:
        raise UsageError(f"{url} contains no ONNX file", hint=_FORMS)
    return [_found(f"{root}/{name}", f"{root}/{name}", path_name(Path(name))) for name in names]


def path_name(path: Path) -> str:
    """Return the name of the model in a file."""
    text = path.as_posix()
    return text.removesuffix(SUFFIX) or text


def plain_name(text: str) -> str:
    """Return a name for a model that is built, which every file system accepts."""
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.")


# Manifests: one JSON object a line.


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a manifest."""

    source: str
    name: str | None = None
    options: list[str] | dict[str, Any] = []
    export: list[str] | dict[str, Any] = []
    candidate: str | None = None


def _of_manifest(text: str, exclude: Path | None) -> Iterator[Source]:
    """Yield the models of a manifest; its relative paths begin at its own folder."""
    lines, base = _manifest_lines(text)
    for number, data in enumerate(lines, 1):
        if not data.strip():
            continue
        try:
            line = msgspec.json.decode(data, type=_Line)
            yield from (replace(source, line=f"{text}, line {number}") for source in _of_line(line, exclude, base))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"{text}, line {number}: {error}", hint=_LINE) from error
        except UsageError as error:
            raise UsageError(f"{text}, line {number}: {error.message}", hint=error.hint or _LINE) from error


def _manifest_lines(text: str) -> tuple[list[bytes], Path | None]:
    if is_url(text):
        folder, _, name = text.rpartition("/")
        data = open_store(folder).read(name)
        if data is None:
            raise UsageError(f"{text} does not exist", hint=_FORMS)
        return data.splitlines(), None
    try:
        return Path(text).read_bytes().splitlines(), Path(text).parent
    except OSError as error:
        raise UsageError(f"{text} cannot be read: {error.strerror}", hint=_FORMS) from error


def _of_line(line: _Line, exclude: Path | None, base: Path | None) -> list[Source]:
    if line.source.endswith(MANIFEST):
        raise UsageError("a manifest cannot name another one", hint="give both to the command")
    sources = _expanded(line.source, exclude, base)
    if len(sources) > 1 and (line.name is not None or line.candidate is not None):
        raise UsageError(f"{line.source} is {len(sources)} models", hint="name and candidate are for one model")
    if line.name is not None:
        sources = [replace(sources[0], name=line.name, problem="")]
    elif len(sources) == 1 and not (is_url(line.source) or is_built(line.source)):
        name = path_name(Path(line.source))  # a path below the manifest's folder is also a name
        sources = sources if _why_not_a_name(name) else [replace(sources[0], name=name)]
    options, export = words(line.options), words(line.export)
    if export and not sources[0].is_built:
        raise UsageError(f"{line.source} is not exported", hint="leave out export")
    if line.candidate is not None:
        other = _expanded(line.candidate, None, base)[0]
        sources = [replace(sources[0], candidate=other.location, candidate_text=other.text)]
    return [replace(source, options=options, export=export) for source in sources]


def words(options: Sequence[str] | dict[str, Any]) -> tuple[str, ...]:
    """Return options as words of a command line; `{"keep-opset": true, "skip": ["a"]}` is --keep-opset --skip a."""
    if not isinstance(options, dict):
        return tuple(options)
    result: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for one in cast("list[Any]", value) if isinstance(value, list) else [value]:
            result += [flag] if one is True else [] if one is False or one is None else [flag, str(one)]
    return tuple(result)


# Names.


def check_names(sources: Sequence[Source]) -> None:
    """Raise an error if a name in a manifest cannot be that of a result, or two models have the same name."""
    seen: dict[str, Source] = {}
    for source in sources:
        if not source.problem and (why := _why_not_a_name(source.name)):
            raise UsageError(f"{source.text}: {source.name!r} is no name for a result: {why}", hint=_RENAME)
        other = seen.setdefault(source.name, source)
        if other is not source:
            raise UsageError(
                f"{other.text} and {source.text} are both named {source.name}",
                hint="give the folder that contains both, or names in a manifest",
            )


_RENAME = 'give it another one in a manifest: {"source": …, "name": …}'


def _why_not_a_name(name: str) -> str:
    parts = name.split("/")
    if not all(parts):
        return "it is empty"
    if ".." in parts or "." in parts:
        return "it is not below the folder"
    if any(part.startswith(".") for part in parts):
        return "hidden files are not results"
    if _escaped(name) != name:
        return _NOT_ACCEPTED
    return "the command writes a file of that name" if name in RESERVED or parts[0] in _RESERVED_FOLDERS else ""


def find_pairs(reference: str, candidate: str | None) -> list[Source]:
    """Return references with their candidates: of two folders by name, of two models, or of a manifest.

    A model without a partner is a source with a problem.

    Raises:
        UsageError: there is no candidate, or `find_sources` raises it.
    """
    for text in (reference, *filter(None, (candidate,))):
        if not (os.path.exists(text) or is_url(text) or is_built(text) or glob.has_magic(text)):
            raise UsageError(f"{text} does not exist", hint=_PAIRS)
    references = find_sources([reference])
    if candidate is None:
        if not all(source.candidate for source in references):
            raise UsageError(f"{reference} has no candidate to compare with", hint=_PAIRS)
        return references
    candidates = find_sources([candidate])
    if len(references) == len(candidates) == 1:
        return [_paired(references[0], candidates[0])]
    by_name = {source.name: source for source in candidates}
    known = {source.name for source in references}
    pairs = [
        _paired(source, by_name[source.name])
        if source.name in by_name
        else replace(source, problem=source.problem or f"{candidate} has no {source.name}{SUFFIX}")
        for source in references
    ]
    rest = [source for source in candidates if source.name not in known]
    return [*pairs, *(replace(source, problem=f"{reference} has no {source.name}{SUFFIX}") for source in rest)]


_PAIRS = "give two models, two folders, or a manifest whose lines have a source and a candidate"


def _paired(reference: Source, candidate: Source) -> Source:
    return replace(reference, candidate=candidate.location, candidate_text=candidate.text)


# What is done with a model before any work on it.


def digest(location: str) -> str | None:
    """Return a hash of the bytes of a model and of its weights, or None if one of these files cannot be read.

    Files are opened as the loader opens them, so that a model cannot name a device or a file of another folder; the
    command for the model says what is wrong. Of a model at a URL, and of a file beside it with the usual name for
    weights, size, date and tag count.
    """
    from sardonyx.ir.io import external_files
    from sardonyx.ir.io.tensor_data import open_below

    try:
        if is_built(location):
            file = location.rpartition(":")[0]
            return _sha256(SourceFile.open(file)) if os.path.isfile(file) else ""
        folder, name = os.path.split(location)
        if is_url(location):
            store = open_store(folder)
            tags = [store.tag(each) for each in (name, f"{name}.data")]
            return None if tags[0] is None else "+".join(filter(None, tags))
        files = [SourceFile.open(location), *(open_below(folder, data, name) for data in external_files(location))]
        return "+".join(map(_sha256, files))
    except (OSError, ValueError, SardonyxError):
        return None


def _sha256(file: SourceFile) -> str:
    """Return the hash of an open file, of no more bytes than it had when it was opened."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(file.size, BLOCK_BYTES)))
    for offset in range(0, file.size, BLOCK_BYTES):
        part = buffer[: file.size - offset]
        file.read_into(part, offset)
        digest.update(part)
    return digest.hexdigest()


def download(location: str, folder: Path) -> Path:
    """Copy a model at a URL, with its weights, to a folder that does not exist yet; return its path."""
    from sardonyx.ir.io import external_files
    from sardonyx.ir.io.tensor_data import open_below

    folder.mkdir()
    parent, _, name = location.rpartition("/")
    store = open_store(parent)
    store.download(name, folder / name)
    for weights in external_files(folder / name):
        inside = posixpath.normpath(weights)
        if inside.startswith(("..", "/")):  # it would be written outside of the folder here
            raise ModelError(f"{location} has its weights in another folder: {weights}", hint="download it first")
        if store.path(inside) is not None:
            open_below(store.url, inside, name)  # no link to a file elsewhere
        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
        store.download(inside, folder / inside)
    return folder / name
