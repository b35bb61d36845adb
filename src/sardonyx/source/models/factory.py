"""`file.py:factory`: a module, or a module and its example inputs, from a function in the user's own file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from sardonyx.errors import UsageError
from sardonyx.source.models.weights import seeded
from sardonyx.source.words import reason, suggest

_EXAMPLE = "return a torch.nn.Module, or (module, inputs) where inputs is a tensor, a tuple of them, or a dict by name"


def call_factory(
    path: Path, name: str, *, seed: int = 0
) -> tuple[nn.Module, tuple[Any, ...] | None, dict[str, Any] | None]:
    """The module in eval mode, and positional and named example inputs where the factory gives some.

    Torch's generator starts at `seed` while the file is loaded and the factory runs; a factory with a parameter `seed`
    is given the number as well.
    """
    with seeded(seed):
        made = _made(path, name, seed)
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", made) if isinstance(made, tuple) else (made, None)
    if len(parts) != 2:
        raise UsageError(f"{path}:{name} returned {len(parts)} things", hint=_EXAMPLE)
    module, inputs = parts
    if not isinstance(module, nn.Module):
        raise UsageError(f"{path}:{name} returned {type(module).__name__}, not a module", hint=_EXAMPLE)
    args, kwargs = _example(inputs, f"{path}:{name}")
    return module.eval(), args, kwargs


def _made(path: Path, name: str, seed: int) -> Any:
    """What the factory returns."""
    script = _load(path)
    factory = getattr(script, name, None)
    if not callable(factory):
        known = [key for key, value in vars(script).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{path} has no function '{name}'", hint=suggest(name, known) or f"define def {name}(): …")
    try:
        return factory(seed=seed) if _takes_seed(factory) else factory()
    except Exception as error:  # the user's own code may raise anything; it is reported, not hidden
        raise _user_error(path, f"{name}() failed", error) from error


def _takes_seed(factory: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(factory).parameters.get("seed")
    except ValueError:  # a builtin without a signature
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _load(path: Path) -> ModuleType:
    """Run the file under a name of its own, so that it neither hides nor replaces an installed module."""
    spec = importlib.util.spec_from_file_location(f"sardonyx_source.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint="write file.py:factory")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses and pickle look their module up there
    sys.path.insert(0, str(path.resolve().parent))  # its neighbours are imported as when it is run
    try:
        spec.loader.exec_module(script)
    except Exception as error:  # the user's own code may raise anything; it is reported, not hidden
        del sys.modules[spec.name]
        raise _user_error(path, "it cannot be imported", error) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return script


def _user_error(path: Path, what: str, error: Exception) -> UsageError:
    """One line that says where in the user's file the exception came from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    where = f"{path}:{line}" if line else str(path)
    return UsageError(f"{where}: {what}: {reason(error)}", hint="--debug shows the traceback")


def _example(inputs: Any, where: str) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    if inputs is None:
        return None, None
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in cast("Mapping[Any, Any]", inputs)):
        return (), dict(cast("Mapping[str, Any]", inputs))
    if isinstance(inputs, (tuple, list)):
        return tuple(cast("tuple[Tensor, ...]", inputs)), {}
    raise UsageError(f"{where} returned {type(cast('object', inputs)).__name__} as example inputs", hint=_EXAMPLE)
