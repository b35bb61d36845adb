"""`sardonyx.decompose`: the drop-in for `torch.fx.symbolic_trace` in which every attention is spelled out.

Symbolic tracing is tried first: it needs no inputs and leaves every size open. torch.export follows where it cannot go
on, or where it met a function that it may not look into.
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
from sardonyx.frontend.module_state import left_as_it_was
from sardonyx.frontend.running import has_lazy
from sardonyx.frontend.tracing.structure import named_arguments
from sardonyx.frontend.tracing.torch_graphs import quoted_names
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
    """A graph module that computes what the model computes, with every attention spelled out.

    The model is taken in the mode it is in and left as it was. The result shares its parameters and buffers and is
    called like it. Arguments that have defaults and are not in the example stay at their defaults where the model's
    code depends on them; another value is then refused. `roles.decomposition_of(result)` tells what was found.

    Args:
        model: any module.
        inputs: example inputs: a tensor, positional ones, or a mapping by name. Symbolic tracing does without;
            torch.export derives them where None.
        kwargs: keyword inputs beside positional ones.
        dynamic: dims that torch.export is to leave open, as input -> axis -> name; "auto" finds them. Symbolic tracing
            leaves all open.

    Raises:
        ModelError: no road leads through the model, or an option of one of its attentions cannot be right.
        UsageError: the request makes no sense.
    """
    plain = _plain(model)
    with left_as_it_was(plain), quoted_names():
        return _decomposed(plain, inputs, kwargs, dynamic)


def _decomposed(plain: nn.Module, inputs: Inputs, kwargs: Mapping[str, Any] | None, dynamic: Dims) -> fx.GraphModule:
    if has_lazy(plain):  # the result shares the model's parameters, which have to be there
        raise ModelError(f"{type(plain).__name__} has lazy modules without weights", hint="call it once on an example")
    given = _example(plain, inputs, kwargs) if inputs is not None or kwargs else None
    traced, why = _traced(plain, given)
    if traced is not None and not why:
        return traced
    try:
        example = given or _derived(plain, why)
        axes = _axes(plain, example, dynamic)
        return decompose_exported(plain, example.args, example.kwargs, axes, why)
    except SardonyxError:
        if traced is None:
            raise
        return traced  # it says what it could not look into


def check_has_code(model: nn.Module) -> None:
    """Scripted models have none.

    Raises:
        ModelError: there is no code to follow.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a scripted model has no Python code to follow", hint="decompose the model it was made from")


def _plain(model: nn.Module) -> nn.Module:
    """The module itself where `torch.compile` wrapped it."""
    check_has_code(model)
    return getattr(model, "_orig_mod", model)


def _traced(model: nn.Module, given: Example | None) -> tuple[fx.GraphModule | None, str]:
    """The symbolic trace, if there is one, and why it does not do, if it does not."""
    traced = _open(model) if given is None else _like(model, given)
    if isinstance(traced, Exception):
        return None, f"symbolic tracing stopped: {reason(traced)}"
    hidden = _decomposition(traced).opaque
    return traced, f"symbolic tracing may not look into {', '.join(hidden)}" if hidden else ""


def _open(model: nn.Module) -> fx.GraphModule | Exception:
    """The trace for a call with any arguments; where the code depends on optional ones, for their defaults."""
    opened, defaults = _attempt(model, {}), _defaults(model)
    if not defaults or type(model).__module__.startswith("torch.nn."):
        return opened  # in torch's own layers, tracing takes care of masks that are not given
    closed = _attempt(model, defaults)
    if isinstance(closed, Exception):
        return opened if isinstance(opened, Exception) else closed
    if isinstance(opened, Exception):
        return closed
    return opened if _steps(opened) == _steps(closed) else closed


def _like(model: nn.Module, given: Example) -> fx.GraphModule | Exception:
    """The trace for calls like the example: whatever is no tensor keeps its value."""
    values = named_arguments(model, given.args, given.kwargs)
    fixed = {name: value for name, value in values.items() if isinstance(value, PLAIN)}
    return _attempt(model, {**_defaults(model, besides=values), **fixed})


def _attempt(model: nn.Module, fixed: Mapping[str, Any]) -> fx.GraphModule | Exception:
    """A trace with some arguments fixed; or what stopped it."""
    try:
        with gc_pause.paused():
            traced = tracer.trace(model, dict(fixed) or None)
    except SardonyxError:
        raise
    except Exception as error:  # a forward is the user's code, and on symbolic values it may fail in any way
        return error
    if fixed:
        _rename(traced, fixed)
    return traced


def _rename(traced: fx.GraphModule, fixed: Mapping[str, Any]) -> None:
    """Give arguments that were fixed their names back, which torch numbers: `mask_1`."""
    for node in traced.graph.find_nodes(op="placeholder"):
        name = str(node.target).rpartition("_")[0]
        if node.target not in fixed and name in fixed:
            node.target = name
    traced.recompile()


def _defaults(model: nn.Module, besides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments that need not be given, and what they then are."""
    parameters = inspect.signature(model.forward).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, PLAIN) and parameter.name not in (besides or {})
    }


def _steps(traced: fx.GraphModule) -> list[Any]:
    """What a trace does but for masks: two that agree differ in nothing else, whether or not a mask is given."""
    roles = _decomposition(traced).primitives
    places: dict[fx.Node, Any] = {}
    steps: list[Any] = []
    for node in traced.graph.nodes:
        primitive = roles.get(node.name)
        role = primitive.role if primitive is not None else None
        if role is Role.MASK:
            places[node] = places.get(next(iter(node.all_input_nodes)), "mask")
        elif node.op == "placeholder" or _is_check(node):
            places[node] = str(node.target) if node.op == "placeholder" else "check"
        else:
            places[node] = len(steps)
            target = role if role is Role.SOFTMAX else node.target
            steps.append((node.op, target, fx.map_arg((node.args, node.kwargs), lambda each: places[each])))
    return steps


def _is_check(node: fx.Node) -> bool:
    """Whether torch wrote it to check an argument that was fixed."""
    return getattr(node.target, "__name__", "") in ("_assert", "_assert_is_none") or any(
        _is_check(user) for user in node.users if node.op == "call_function"
    )


def _decomposition(traced: fx.GraphModule) -> Decomposition:
    found = decomposition_of(traced)
    assert found is not None, "the tracer attaches one"
    return found


def _example(model: nn.Module, inputs: Inputs, kwargs: Mapping[str, Any] | None) -> Example:
    """What the caller gave, or what is derived where it is not enough."""
    from sardonyx.frontend.inputs.example_resolution import example_for  # here: the symbolic road needs none of it
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
    from sardonyx.frontend.inputs.example_resolution import open_dims
    from sardonyx.frontend.tracing.adapter import Call

    return open_dims(Call(model, example.args, example.kwargs), dynamic).axes
