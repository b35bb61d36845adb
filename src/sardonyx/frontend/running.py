"""Run a module: quietly, on few threads, in a wider type where it needs one; and which memory it reads."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sardonyx.errors import ModelError, reason
from sardonyx.frontend.module_state import OperationMode, is_lazy, switched, unchanged, uncompiled, undoing_writes

_LIBRARIES = ("torch", "transformers", "huggingface_hub", "timm")


@contextlib.contextmanager
def quietly() -> Generator[None]:
    """Silence stdout, stderr, warnings and the log lines of the libraries that build and export models."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class Reads(OperationMode):
    """Records which memory is read while a module runs.

    An embedding table may be read without calling its module, and tied weights are read under all of their names. Calls
    are recorded for runs whose operations see other tensors than the weights, such as a recording without data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        self.called: set[int] = set()

    def __enter__(self) -> Any:
        self._depth = 0
        self._hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)  # pyright: ignore[reportUnknownMemberType]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note what the operation reads if a module runs it."""
        leaves = cast("Iterable[Any]", tree_leaves((args, kwargs))) if self._depth else ()
        self.read.update(
            memory_key(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided
        )
        return func(*args, **kwargs)

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._depth += 1
        self.called.update(map(memory_key, module.parameters(recurse=False)))

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._depth -= 1


def memory_key(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, which its views share."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]  # data_ptr is 0 where there is no data


def memory_read(run: Callable[[], object]) -> frozenset[int]:
    """Return the keys of the memory that modules read while a function runs."""
    with torch.no_grad(), Reads() as reads:
        run()
    return frozenset(reads.read)


def unreached(module: nn.Module, read: Set[int]) -> tuple[str, ...]:
    """Return the paths of the outermost modules none of whose weights is in the memory that a run read."""
    paths: list[str] = []
    named = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    for path, child in named:
        inside = any(path.startswith(f"{outer}.") for outer in paths)
        weights = [memory_key(weight) for weight in child.parameters()]
        if path and weights and not inside and read.isdisjoint(weights):
            paths.append(path)
    return tuple(paths)


Probe: TypeAlias = Callable[[nn.Module, Sequence[Any], Mapping[str, Any]], Exception | None]
HALF_TYPES = (torch.float16, torch.bfloat16)
_TO_NARROW = (Tensor.half, Tensor.bfloat16)
_NO_KERNEL = re.compile(r"not implemented for '(Half|BFloat16)'")


def probe(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """Run the module once, as it is exported. Return the exception it raises, or None."""
    try:
        run_widened_if_needed(module, args, kwargs)
    except Exception as error:  # a forward may raise anything; the caller wants to know
        return error
    return None


def run_widened_if_needed(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the module's result; computed in float32 if there is no half-precision kernel (exporters need none)."""
    try:
        return run(module, args, kwargs)
    except Exception as error:  # as above
        if not lacks_kernel(error):
            raise
    wide_args = [widen(value) if isinstance(value, torch.Tensor) else value for value in args]
    wide_kwargs = {name: widen(value) if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()}
    with Widening():
        return run(widened_copy(module), wide_args, wide_kwargs)


def run(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, keep_modes: bool = False) -> Any:
    """Return the module's result in eval mode, without gradients and terminal output; its state is restored.

    With `keep_modes`, every module stays in the mode that it is in.
    """
    with unchanged(module), uncompiled(), torch.no_grad(), quietly():
        if not keep_modes:
            evaluate(module)
        return module(*args, **kwargs)


def with_threads(count: int | None) -> contextlib.AbstractContextManager[None]:
    """Run modules on so many threads; None keeps torch's number."""
    return switched(torch.get_num_threads, torch.set_num_threads, count or torch.get_num_threads())


def evaluate(module: nn.Module) -> None:
    """Set eval mode on every module."""
    set_training(module, training=False)


def set_training(module: nn.Module, *, training: bool) -> None:
    """Set the mode of every module without calling `train()`, which some modules override or refuse."""
    for child in module.modules():
        if getattr(child, "training", training) != training:
            child.training = training


def initialize(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Initialize lazy modules by running the module once; return a note if there are any.

    The initialized parameters are new objects: they stay when the caller's parameters are restored to lazy ones.

    Raises:
        ModelError: If the module does not run on these inputs.
    """
    if not has_lazy(module):
        return ()
    try:
        with undoing_writes(module), uncompiled(), torch.no_grad(), quietly():
            module(*args, **kwargs)
    except Exception as error:  # a forward may raise anything
        kind = type(module).__name__
        raise ModelError(
            f"{kind} does not run on these inputs: {reason(error)}", hint="check their types and sizes"
        ) from error
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            child._parameters[name] = nn.Parameter(parameter.data, parameter.requires_grad)  # pyright: ignore[reportPrivateUsage]  # hooks must not run
    return ("lazy modules were initialized with random weights for these inputs; the caller's stay lazy",)


def has_lazy(module: nn.Module) -> bool:
    """Return whether a parameter or buffer has no shape before the first call."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def widened_copy(module: nn.Module) -> nn.Module:
    """Return a copy whose float16 and bfloat16 parameters and buffers are float32."""
    twin: Any = copy.deepcopy(module)
    return twin._apply(widen)  # .float() uses the same method


def widen(tensor: Tensor) -> Tensor:
    """Return a float16 or bfloat16 tensor in float32, and any other unchanged."""
    return tensor.float() if tensor.dtype in HALF_TYPES else tensor


class Widening(TorchFunctionMode):
    """While active, float16 and bfloat16 in a forward's calls are replaced by float32, and autocast has no effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        if func is Tensor.view:  # reinterprets the bits, so the type must stay
            return func(*args, **named)
        func = Tensor.float if func in _TO_NARROW else func
        with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else contextlib.nullcontext():
            return func(*map(_wide, args), **{name: _wide(value) for name, value in named.items()})


def _wide(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_TYPES else value


def lacks_kernel(error: BaseException) -> bool:
    """Return whether the error only says that there is no kernel in half precision."""
    return _NO_KERNEL.search(str(error)) is not None
