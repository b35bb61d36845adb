"""SOURCE on the command line becomes a module: a Hugging Face model, a catalogue's, or the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from sardonyx.errors import UsageError, reason, suggest
from sardonyx.frontend.models import huggingface
from sardonyx.frontend.models.dtypes import converted, converted_copy, default_dtype
from sardonyx.frontend.models.sources import Dtype, SourceKind, parse_source
from sardonyx.frontend.models.weights import built, seeded
from sardonyx.frontend.quiet import quietly

# `file.py:factory`: a module, or a module and its example inputs, from a function in the user's own file.

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
    return UsageError(f"{where}: {what}: {reason(error)}", hint="see the traceback")


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


# Image models by name from torchvision and timm, both optional installs, with seeded random weights.


def build_torchvision(name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """`torchvision:NAME`."""
    models = _package("torchvision").models
    _require_known(name, models.list_models(), "torchvision")
    options = inspect.signature(models.get_model_builder(name)).parameters
    bare = {option: None for option in ("weights", "weights_backbone") if option in options}
    with quietly():
        return built(lambda: models.get_model(name, **bare), seed, filled=filled)


def build_timm(name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """`timm:NAME`."""
    timm = _package("timm")
    _require_known(name, timm.list_models(), "timm")
    with quietly():
        return built(lambda: timm.create_model(name, pretrained=False), seed, filled=filled)


def _package(name: str) -> Any:
    try:
        with quietly():
            return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name}: models need {name}, which is not installed", hint=f"pip install {name}") from error
    except RuntimeError as error:  # its compiled operators were built for another torch
        raise UsageError(
            f"{name} does not load beside this torch: {reason(error)}", hint=f"install the {name} that matches torch"
        ) from error


def _require_known(name: str, known: Sequence[str], package: str) -> None:
    if name not in known:
        raise UsageError(f"{package} has no model '{name}'", hint=suggest(name, known))


@dataclass(frozen=True, slots=True)
class Resolved:
    """A module in eval mode and the example inputs that came with it; None means they are still to be derived."""

    module: nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    label: str
    dtype: Dtype = "keep"  # that it was converted to; its example inputs follow
    notes: tuple[str, ...] = ()


def resolve(
    source: str,
    *,
    task: str | None = None,
    default_task: str | None = None,
    seed: int = 0,
    filled: bool = True,
    dtype: Dtype | None = "keep",
) -> Resolved:
    """The module that SOURCE stands for.

    Args:
        source: `hf:…`, `hf-config:…`, `torchvision:…`, `timm:…` or `file.py:factory`.
        task: which head a Hugging Face model gets: a task (`text-classification`), or a class name.
        default_task: the task where `task` is None and neither the source nor its config names a model class.
        seed: where random weights start; torch is seeded with it while a factory runs.
        filled: False where only sizes matter: weights that would be random are zeros that take no time and no memory.
        dtype: of its floating-point weights and example inputs; None is the default of an export.
    """
    parsed = parse_source(source, task=task)
    wanted = parsed.export_dtype if dtype is None else dtype
    if parsed.kind is SourceKind.PRETRAINED:
        module, saved = huggingface.load_pretrained(parsed.name, task=task, default_task=default_task, dtype=wanted)
        said = f"the checkpoint is {saved}, exported in {wanted}; dtype keep exports it in {saved}"
        notes = (said,) if dtype is None and saved not in (None, wanted) else ()
        return Resolved(module, None, None, source, wanted, notes)
    if parsed.file is not None:
        module, args, kwargs = call_factory(parsed.file, parsed.name, seed=seed)
        return Resolved(converted(module, wanted), args, kwargs, source, wanted)
    if parsed.kind is SourceKind.CONFIG:
        with default_dtype(wanted):
            module = huggingface.build_from_config(
                parsed.name, task=task, default_task=default_task, seed=seed, filled=filled
            )
        return Resolved(module, None, None, source, wanted)
    build = build_torchvision if parsed.kind is SourceKind.TORCHVISION else build_timm
    return Resolved(converted(build(parsed.name, seed=seed, filled=filled), wanted), None, None, source, wanted)


def given(module: nn.Module, dtype: Dtype | None) -> Resolved:
    """A module that the caller has; a copy of it where another type is asked for."""
    wanted = dtype or "keep"
    return Resolved(converted_copy(module, wanted), None, None, type(module).__name__, wanted)
