"""What the text of a source names: a model file, a function in a Python file, a model of a library.

Does not import torch.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from sardonyx.errors import UsageError, did_you_mean, reason

FORMS = "forms: hf:ID_OR_FOLDER, hf-config:CLASS_OR_FILE[?key=value,…], torchvision:NAME, timm:NAME, file.py:factory"
_MAX_NAMES = 12  # in a hint


class SourceKind(StrEnum):
    """Where a module comes from."""

    PRETRAINED = "hf"
    CONFIG = "hf-config"
    TORCHVISION = "torchvision"
    TIMM = "timm"
    FACTORY = "file"


Dtype: TypeAlias = Literal["float32", "float16", "bfloat16", "keep"]
"""The floating-point type of a model: one to convert it to, or the one it has."""


class ModelSource(Struct, frozen=True):
    """A parsed source: its kind and the text after the colon; for a factory, the function's name and its file."""

    kind: SourceKind
    name: str
    file: Path | None = None

    @property
    def export_dtype(self) -> Dtype:
        """The default type of an export: most checkpoints are bfloat16, for which there are few CPU kernels."""
        return "float32" if self.kind is SourceKind.PRETRAINED else "keep"


def parse_source(source: str, *, task: str | None = None) -> ModelSource:
    """Parse SOURCE.

    Raises:
        UsageError: If it has none of the known forms, names a file that does not exist, or takes no task.
    """
    scheme, colon, rest = source.partition(":")
    if not colon or not rest:
        path = Path(scheme).expanduser()
        if path.suffix == ".py" and path.is_file():
            raise UsageError(f"'{source}' names no factory", hint=f"write {scheme}:FACTORY; {contents(path)}")
        raise UsageError(f"'{source}' is not a model source", hint=FORMS)
    if scheme in (SourceKind.PRETRAINED, SourceKind.CONFIG):
        parse_overrides(rest.partition("?")[2] if scheme == SourceKind.CONFIG else "")
        return ModelSource(SourceKind(scheme), rest)
    if task is not None:
        raise UsageError(
            f"a task selects the head of a Hugging Face model, and '{source}' is not one", hint="leave out `task`"
        )
    if scheme in (SourceKind.TORCHVISION, SourceKind.TIMM):
        return ModelSource(SourceKind(scheme), rest)
    file, _, name = source.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py":
        close = difflib.get_close_matches(scheme, list(SourceKind), n=1)
        hint = f"did you mean {close[0]}:{rest}?" if close else FORMS
        if scheme and Path(f"{scheme}.py").is_file():
            hint = f"did you mean {scheme}.py:{rest}?"
        raise UsageError(f"'{source}' is not a model source: unknown kind '{scheme}'", hint=hint)
    if not path.is_file():
        stems = [file.stem for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.stem, stems, n=1)
        hint = f"did you mean {path.with_stem(close[0])}:{name}?" if close else FORMS
        raise UsageError(f"{path} does not exist", hint=hint)
    return ModelSource(SourceKind.FACTORY, name, path)


def contents(path: Path) -> str:
    """Return which functions and classes a Python file defines, without running it."""
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return "it is not valid Python"
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [each.name for each in statements if isinstance(each, kinds) and not each.name.startswith("_")]
    more = ", …" if len(names) > _MAX_NAMES else ""
    return f"it defines {', '.join(names[:_MAX_NAMES])}{more}" if names else "it defines no function"


def parse_overrides(text: str) -> dict[str, Any]:
    """Parse `a=1,b.c=[2,3]` to `{"a": 1, "b": {"c": [2, 3]}}`."""
    values: dict[str, Any] = {}
    for part in re.split(r",(?![^\[(]*[\])])", text) if text else ():  # commas inside brackets belong to a list
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"'{part}' is not a config value", hint="write ?key=value,key=value")
        *parents, last = key.strip().split(".")
        table = values
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = _literal(value.strip())
    return values


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a plain word


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Return a function of a file.

    Raises:
        UsageError: The file cannot be imported, or does not have it.
    """
    script = _load(path)
    function = getattr(script, name, None)
    if not callable(function):
        known = [key for key, value in vars(script).items() if callable(value) and not key.startswith("_")]
        hints = (did_you_mean(name, known), contents(path))
        raise UsageError(f"{path} has no function '{name}'", hint=" ".join(filter(None, hints)))
    return function


def user_error(path: Path, what: str, error: Exception) -> UsageError:
    """Return an error that names the line of the user's file where the exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    where = f"{path}:{line}" if line else str(path)
    return UsageError(f"{where}: {what}: {reason(error)}", hint="see the traceback")


def _load(path: Path) -> ModuleType:
    """Import the file under a unique name, so that it does not replace an installed module."""
    spec = importlib.util.spec_from_file_location(f"sardonyx_source.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint="write file.py:factory")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses and pickle look their module up there
    sys.path.insert(0, str(path.resolve().parent))  # its imports work as when it is run as a script
    try:
        spec.loader.exec_module(script)
    except Exception as error:  # the user's code may raise anything; it is reported
        del sys.modules[spec.name]
        raise user_error(path, "it cannot be imported", error) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return script
