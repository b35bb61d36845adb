"""Runs a graph on fake tensors to find the shape and dtype of every value. No weight is copied or read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.graph import CodeGen
from torch.fx.node import map_aggregate

from sardonyx.errors import UsageError
from sardonyx.frontend.attention.recognition.facts import EXAMPLE


def record_examples(module: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Record in the graph the value of every node for these inputs.

    Raises:
        UsageError: If the graph does not run on them.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        runner = _Runner(module, mode)
        try:
            flat = (
                module.graph.process_inputs(*args, **kwargs)
                if _takes_trees(module)
                else _in_order(module, args, kwargs)
            )
            runner.run(*runner.faked(flat), enable_io_processing=False)
        except Exception as error:  # the graph is the user's and may raise anything
            message = str(error).splitlines()[0] if str(error) else repr(error)
            raise UsageError(
                f"the graph does not run on the example inputs: {message}",
                hint="pass the inputs that the graph module takes",
            ) from error


def remove_examples(graph: fx.Graph) -> None:
    """Remove the recorded values."""
    for node in graph.nodes:
        node.meta.pop(EXAMPLE, None)


def _takes_trees(module: fx.GraphModule) -> bool:
    return type(module.graph._codegen) is not CodeGen  # pyright: ignore[reportPrivateUsage]


def _in_order(module: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return a value for each placeholder, as in a call."""
    values = list(args)
    for node in [*module.graph.find_nodes(op="placeholder")][len(values) :]:
        if str(node.target) in kwargs:
            values.append(kwargs[str(node.target)])
        elif node.args:
            values.append(node.args[0])
        else:
            raise TypeError(f"the input '{node.target}' is missing")
    return values


class _Runner(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._mode = mode

    def faked(self, value: Any) -> Any:
        return map_aggregate(value, self._fake)

    def _fake(self, value: Any) -> Any:
        return self._mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)):
            n.meta[EXAMPLE] = result
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.faked(super().get_attr(target, args, kwargs))

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        inner: nn.Module = self.fetch_attr(target)
        state = {**dict(inner.named_parameters()), **dict(inner.named_buffers())}
        fakes = {name: self._fake(tensor) for name, tensor in state.items()}
        return functional_call(inner, fakes, args, kwargs)
