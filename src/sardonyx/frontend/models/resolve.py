"""Turns SOURCE of the command line into a module: from Hugging Face, torchvision, timm or the user's own file."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from msgspec import Struct
from torch import Tensor, nn

from sardonyx.errors import UsageError, reason, suggest
from sardonyx.frontend.models import huggingface
from sardonyx.frontend.models.sources import Dtype, SourceKind, parse_source
from sardonyx.frontend.models.user_files import load_function, user_error
from sardonyx.frontend.models.weights import build_seeded, seeded
from sardonyx.frontend.quiet import quietly

_FACTORY = "return a torch.nn.Module, or (module, inputs) where inputs is a tensor, a tuple of them, or a dict by name"
_Module = TypeVar("_Module", bound=nn.Module)


def call_factory(
    path: Path, name: str, *, seed: int = 0
) -> tuple[nn.Module, tuple[Any, ...] | None, dict[str, Any] | None]:
    """Call a function of the user's file: return its module, and its example inputs if it returns some.

    Torch's generator is seeded while the file is loaded and the factory runs. A factory with a parameter `seed` gets
    the seed as well.
    """
    with seeded(seed):
        result = _run_factory(path, name, seed)
    parts: tuple[Any, ...] = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result, None)
    if len(parts) != 2:
        raise UsageError(f"{path}:{name} returned {len(parts)} values", hint=_FACTORY)
    module, inputs = parts
    if not isinstance(module, nn.Module):
        raise UsageError(f"{path}:{name} returned {type(module).__name__}, not a module", hint=_FACTORY)
    args, kwargs = _example(inputs, f"{path}:{name}")
    return module, args, kwargs


def _run_factory(path: Path, name: str, seed: int) -> Any:
    factory = load_function(path, name)
    try:
        return factory(seed=seed) if _takes_seed(factory) else factory()
    except Exception as error:  # the user's code may raise anything; it is reported
        raise user_error(path, f"{name}() failed", error) from error


def _takes_seed(factory: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(factory).parameters.get("seed")
    except ValueError:  # a builtin without a signature
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _example(inputs: Any, where: str) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    if inputs is None:
        return None, None
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in cast("Mapping[Any, Any]", inputs)):
        return (), dict(cast("Mapping[str, Any]", inputs))
    if isinstance(inputs, (tuple, list)):
        return tuple(cast("tuple[Tensor, ...]", inputs)), {}
    raise UsageError(f"{where} returned {type(cast('object', inputs)).__name__} as example inputs", hint=_FACTORY)


def build_torchvision(name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """Build a model of torchvision with seeded random weights."""
    models = _package("torchvision").models
    _require_known(name, models.list_models(), "torchvision")
    options = inspect.signature(models.get_model_builder(name)).parameters
    no_weights = {option: None for option in ("weights", "weights_backbone") if option in options}
    with quietly():
        return build_seeded(lambda: models.get_model(name, **no_weights), seed, filled=filled)


def build_timm(name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """Build a model of timm with seeded random weights."""
    timm = _package("timm")
    _require_known(name, timm.list_models(), "timm")
    with quietly():
        return build_seeded(lambda: timm.create_model(name, pretrained=False), seed, filled=filled)


def _package(name: str) -> Any:
    try:
        with quietly():
            return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name}: models need {name}, which is not installed", hint=f"pip install {name}") from error
    except RuntimeError as error:  # its compiled operators were built for another torch
        raise UsageError(
            f"{name} does not load with this torch: {reason(error)}", hint=f"install the {name} that matches torch"
        ) from error


def _require_known(name: str, known: Sequence[str], package: str) -> None:
    if name not in known:
        raise UsageError(f"{package} has no model '{name}'", hint=suggest(name, known))


class Resolved(Struct, frozen=True):
    """A module and the example inputs of its factory; None if they are to be derived."""

    module: nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    label: str
    dtype: Dtype = "keep"  # the type it was converted to; its example inputs are converted too
    notes: tuple[str, ...] = ()
    was_training: bool = False  # whether the module was in training mode as it was given


def resolve(
    source: str,
    *,
    task: str | None = None,
    default_task: str | None = None,
    seed: int = 0,
    filled: bool = True,
    dtype: Dtype | None = "keep",
    training: bool = False,
) -> Resolved:
    """Return the module of SOURCE, in eval mode.

    Args:
        source: `hf:…`, `hf-config:…`, `torchvision:…`, `timm:…` or `file.py:factory`.
        task: Selects the head of a Hugging Face model: a task (`text-classification`), or a class name.
        default_task: The task if `task` is None and neither the source nor its config names a model class.
        seed: Seed of random weights; torch is seeded with it while a factory runs.
        filled: False if only sizes matter: random weights are then zeros that take no time and no memory.
        dtype: Type of the floating-point weights and example inputs. If None, the default of an export.
        training: Leave the module of a factory in the mode that it is in.
    """
    parsed = parse_source(source, task=task)
    export_dtype = parsed.export_dtype if dtype is None else dtype
    if parsed.kind is SourceKind.PRETRAINED:
        module, saved = huggingface.load_pretrained(
            parsed.name, task=task, default_task=default_task, dtype=export_dtype
        )
        note = f"the checkpoint is {saved}, exported in {export_dtype}; dtype keep exports it in {saved}"
        notes = (note,) if dtype is None and saved not in (None, export_dtype) else ()
        return Resolved(module, None, None, source, export_dtype, notes)
    if parsed.file is not None:
        module, args, kwargs = call_factory(parsed.file, parsed.name, seed=seed)
        was_training = module.training
        module = converted(module if training else module.eval(), export_dtype)
        return Resolved(module, args, kwargs, source, export_dtype, was_training=was_training)
    if parsed.kind is SourceKind.CONFIG:
        with default_dtype(export_dtype):
            module = huggingface.build_from_config(
                parsed.name, task=task, default_task=default_task, seed=seed, filled=filled
            )
        return Resolved(module, None, None, source, export_dtype)
    build = build_torchvision if parsed.kind is SourceKind.TORCHVISION else build_timm
    return Resolved(
        converted(build(parsed.name, seed=seed, filled=filled), export_dtype), None, None, source, export_dtype
    )


def from_module(module: nn.Module, dtype: Dtype | None) -> Resolved:
    """Wrap a module of the caller; a copy of it if another type is requested."""
    dtype = dtype or "keep"
    copied = module if dtype == "keep" else converted(copy.deepcopy(module), dtype)
    return Resolved(copied, None, None, type(module).__name__, dtype, was_training=module.training)


def torch_dtype(dtype: Dtype) -> torch.dtype | None:
    """Return the type of this name; None for "keep"."""
    return None if dtype == "keep" else getattr(torch, dtype)


def converted(module: _Module, dtype: Dtype) -> _Module:
    """Convert floating-point parameters and buffers to this type in place, and return the module."""
    kind = torch_dtype(dtype)
    return module if kind is None else module.to(kind)


def converted_tensor(tensor: torch.Tensor, dtype: Dtype) -> torch.Tensor:
    """Return a floating-point tensor in this type, and any other unchanged."""
    kind = torch_dtype(dtype)
    return tensor if kind is None or not tensor.is_floating_point() else tensor.to(kind)


@contextlib.contextmanager
def default_dtype(dtype: Dtype) -> Generator[None]:
    """Build modules in this type, except for parts that specify their own."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch_dtype(dtype) or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
