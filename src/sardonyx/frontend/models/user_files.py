"""Loads functions of the user's Python files, without importing torch."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from sardonyx.errors import UsageError, did_you_mean, reason
from sardonyx.frontend.models.sources import contents


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
