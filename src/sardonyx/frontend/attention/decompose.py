"""`sardonyx.decompose`: a drop-in for `torch.fx.symbolic_trace` that decomposes every attention.

Symbolic tracing is tried first: it needs no inputs and keeps every size dynamic. torch.export is used if symbolic
tracing fails, or stops at a function that may contain an attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from sardonyx.errors import ModelError, SardonyxError, UsageError, reason
from sardonyx.frontend.attention.capture import tracer
from sardonyx.frontend.attention.capture.nesting import PLAIN
from sardonyx.frontend.attention.capture.torch_export import decompose_exported
from sardonyx.frontend.attention.roles import Decomposition, Role, decomposition_of
from sardonyx.frontend.module_state import restoring_state
from sardonyx.frontend.running import has_lazy
from sardonyx.frontend.tracing.module_tree import quoted_names
from sardonyx.frontend.tracing.structure import named_arguments
from sardonyx.records import gc_pause

if TYPE_CHECKING:
    from sardonyx.frontend.inputs.example_resolution import Dims, Inputs
    from sardonyx.frontend.inputs.examples import Example


def decompose(
    model: nn.Module,
    inputs: Inputs = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Dims = None,
) -> fx.GraphModule:
    """Return a graph module that computes what the model computes, with every attention decomposed.

    The model is traced in its current mode and left unchanged. The result shares its parameters and buffers and has its
    signature. Arguments with defaults that are not in the example are fixed at their defaults if the model's code
    depends on them; another value is then refused. `roles.decomposition_of(result)` returns the attentions found.

    Args:
        model: Any module.
        inputs: Example inputs: a tensor, a sequence of positional inputs, or a mapping by name. Symbolic tracing needs
            none; for torch.export they are derived if None.
        kwargs: Keyword inputs in addition to positional ones.
        dynamic: Dynamic dimensions for torch.export, as input -> axis -> name; "auto" finds them. With symbolic tracing
            all are dynamic.

    Raises:
        ModelError: If the model cannot be traced, or an attention has contradictory options.
        UsageError: If the arguments are invalid.
    """
    plain = _plain(model)
    with restoring_state(plain), quoted_names():
        return _decomposed(plain, inputs, kwargs, dynamic)


def _decomposed(plain: nn.Module, inputs: Inputs, kwargs: Mapping[str, Any] | None, dynamic: Dims) -> fx.GraphModule:
    if has_lazy(plain):  # the result shares the model's parameters
        raise ModelError(f"{type(plain).__name__} has lazy modules without weights", hint="call it once on an example")
    example = _example(plain, inputs, kwargs) if inputs is not None or kwargs else None
    traced, why = _traced(plain, example)
    if traced is not None and not why:
        return traced
    try:
        example = example or _derived(plain, why)
        axes = _axes(plain, example, dynamic)
        return decompose_exported(plain, example.args, example.kwargs, axes, why)
    except SardonyxError:
        if traced is None:
            raise
        return traced  # its decomposition lists the opaque functions


def check_has_code(model: nn.Module) -> None:
    """Refuse scripted models, which have no Python code.

    Raises:
        ModelError: If the model is scripted.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a scripted model has no Python code to trace", hint="decompose the model that was scripted")


def _plain(model: nn.Module) -> nn.Module:
    """Return the module inside the wrapper of `torch.compile`."""
    check_has_code(model)
    return getattr(model, "_orig_mod", model)


def _traced(model: nn.Module, example: Example | None) -> tuple[fx.GraphModule | None, str]:
    """Return the symbolic trace or None, and why it is not sufficient or an empty string."""
    traced = _trace_any(model) if example is None else _trace_example(model, example)
    if isinstance(traced, Exception):
        return None, f"symbolic tracing stopped: {reason(traced)}"
    hidden = _decomposition(traced).opaque
    return traced, f"symbolic tracing cannot trace into {', '.join(hidden)}" if hidden else ""


def _trace_any(model: nn.Module) -> fx.GraphModule | Exception:
    """Return a trace for any arguments; if the code depends on optional ones, for their defaults."""
    general, defaults = _attempt(model, {}), _defaults(model)
    if not defaults or type(model).__module__.startswith("torch.nn."):
        return general  # for torch's own layers, the tracer handles missing masks
    fixed = _attempt(model, defaults)
    if isinstance(fixed, Exception):
        return general if isinstance(general, Exception) else fixed
    if isinstance(general, Exception):
        return fixed
    return general if _steps(general) == _steps(fixed) else fixed


def _trace_example(model: nn.Module, example: Example) -> fx.GraphModule | Exception:
    """Return a trace for calls like the example: arguments that are not tensors are fixed."""
    values = named_arguments(model, example.args, example.kwargs)
    fixed = {name: value for name, value in values.items() if isinstance(value, PLAIN)}
    return _attempt(model, {**_defaults(model, besides=values), **fixed})


def _attempt(model: nn.Module, fixed: Mapping[str, Any]) -> fx.GraphModule | Exception:
    """Return a trace with some arguments fixed, or the exception that stopped it."""
    try:
        with gc_pause.paused():
            return tracer.trace(model, dict(fixed))
    except SardonyxError:
        raise
    except Exception as error:  # a forward may raise anything on symbolic values
        return error


def _defaults(model: nn.Module, besides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the default values of optional arguments."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, PLAIN) and parameter.name not in (besides or {})
    }


def _steps(traced: fx.GraphModule) -> list[Any]:
    """Return the operations of a trace except masks, to compare traces with and without a mask."""
    roles = _decomposition(traced).primitives
    values: dict[fx.Node, Any] = {}
    steps: list[Any] = []
    for node in traced.graph.nodes:
        primitive = roles.get(node.name)
        role = primitive.role if primitive is not None else None
        if role is Role.MASK:
            values[node] = values.get(next(iter(node.all_input_nodes)), "mask")
        elif node.op == "placeholder" or _is_check(node):
            values[node] = str(node.target) if node.op == "placeholder" else "check"
        else:
            values[node] = len(steps)
            target = role if role is Role.SOFTMAX else node.target
            steps.append((node.op, target, fx.map_arg((node.args, node.kwargs), lambda operand: values[operand])))
    return steps


def _is_check(node: fx.Node) -> bool:
    """Return whether a node is torch's check of a fixed argument."""
    return getattr(node.target, "__name__", "") in ("_assert", "_assert_is_none") or any(
        _is_check(user) for user in node.users if node.op == "call_function"
    )


def _decomposition(traced: fx.GraphModule) -> Decomposition:
    decomposition = decomposition_of(traced)
    assert decomposition is not None, "the tracer attaches one"
    return decomposition


def _example(model: nn.Module, inputs: Inputs, kwargs: Mapping[str, Any] | None) -> Example:
    """Return the caller's example inputs, completed or derived if necessary."""
    from sardonyx.frontend.inputs.example_resolution import example_for  # not needed for symbolic tracing
    from sardonyx.frontend.models.resolve import Resolved

    return example_for(model, Resolved(model, None, None, type(model).__name__), inputs, kwargs, seed=0)


def _derived(model: nn.Module, why: str) -> Example:
    try:
        return _example(model, None, None)
    except UsageError as error:
        raise ModelError(
            f"{why}; torch.export needs example inputs, and {error.message}", hint="give example inputs"
        ) from error


def _axes(model: nn.Module, example: Example, dynamic: Dims) -> Mapping[str, Mapping[int, str]]:
    if dynamic is None:
        return {}
    from sardonyx.frontend.inputs.example_resolution import resolve_dynamic
    from sardonyx.frontend.tracing.adapter import Call

    return resolve_dynamic(Call(model, example.args, example.kwargs), dynamic).axes
