"""Leaves out work of torch's exporter whose results are not read: a quarter of the time for a decoder."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch.fx import Interpreter
from torch.fx.experimental import proxy_tensor

_PROMOTES = "_TypePromotionInterpreter"  # torch's pass that inserts casts


@contextlib.contextmanager
def shortcuts(*, stack_traces: bool) -> Generator[None]:
    """Export without strides in the metadata of every node, and without computing its shape a second time.

    A forward may call `.to(dtype)` on a module that has this type already. That is left out as well: in a trace, torch
    cannot exchange the parameters of a module.

    Args:
        stack_traces: Record the line of code of every node.
    """
    untyped: Any = torch.fx
    with (
        _replaced(proxy_tensor, "_extract_tensor_metadata", _nothing),
        _replaced(Interpreter, "run_node", _recorded(Interpreter.run_node)),
        _replaced(torch.nn.Module, "to", _unless_converted(torch.nn.Module.to)),
        contextlib.nullcontext() if stack_traces else _replaced(untyped.config, "do_not_emit_stack_traces", True),
    ):
        yield


def _nothing(*_args: object, **_kwargs: object) -> None: ...


def _unless_converted(to: Any) -> Any:
    """Return `Module.to` that leaves a module alone which has the type and device already."""

    def run(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        untyped: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # what torch's own method parses with
        device, dtype, *_ = untyped._nn._parse_to(*args, **kwargs)
        is_kept = all(
            device in (None, tensor.device) and (dtype in (None, tensor.dtype) or not tensor.is_floating_point())
            for tensor in (*self.parameters(), *self.buffers())
        )
        return self if is_kept else to(self, *args, **kwargs)

    return run


def _recorded(run_node: Any) -> Any:
    """Return a method that reuses the value that was recorded for a node, if its operands are the recorded ones.

    The pass that inserts casts runs the whole program with symbolic sizes, although it changes few of its nodes.
    """

    def run(self: Any, node: Any) -> Any:
        value = node.meta.get("val")
        if type(self).__name__ != _PROMOTES or node.op != "call_function" or value is None:
            return run_node(self, node)
        is_recorded = all(self.env.get(operand) is operand.meta.get("val") for operand in node.all_input_nodes)
        return value if is_recorded else run_node(self, node)

    return run


@contextlib.contextmanager
def quick_mismatches() -> Generator[None]:
    """Compare the operator of a node with that of a pattern of onnxscript before anything else.

    Its matcher lists the whole graph for each node and each pattern with several results, even if the node differs.
    """
    from onnxscript.rewriter import (  # pyright: ignore[reportMissingTypeStubs]
        _basics,  # pyright: ignore[reportPrivateUsage]  # no public name
        _matcher,  # pyright: ignore[reportPrivateUsage]
    )

    matcher: Any = _matcher.SimplePatternMatcher
    match = matcher.match

    def run(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        wanted = self.pattern.output_nodes[0].op_identifier()
        if wanted in (None, node.op_identifier()):
            return match(self, model, graph, node, **options)
        return _basics.MatchResult().fail("another operator")

    with _replaced(matcher, "match", run):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: object) -> Generator[None]:
    """Set an attribute, if this version of torch has it."""
    if not hasattr(owner, name):
        yield
        return
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
