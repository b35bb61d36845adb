"""Reproduces the memory estimate of the project's founding notes exactly, so that its figures can be explained.

It does not measure a memory reduction, and nothing else uses it. `docs/memory.md` says why, and what to use instead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import torch
from msgspec import Struct, field
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.roles import decomposition_of

_ITEM = 4  # bytes of every number, whatever its type
_COUNTED = ("add", "mul", "sub", "div")  # all other functions and all methods count as free


class LegacyMemoryEstimate(Struct, frozen=True):
    """The notes' peak memory and memory reduction."""

    peak_bytes: int
    never_freed_bytes: int  # counted weights and outputs, if no output were ever freed
    weight_bytes: int

    @property
    def reduction(self) -> float:
        """1 − peak / never freed; it grows with the number of counted outputs even if the peak stays the same."""
        return 1 - self.peak_bytes / self.never_freed_bytes if self.never_freed_bytes else 0.0


class _Step(Struct):
    output: int
    workspace: int
    weights: int
    needs: list[fx.Node]
    needed_by: list[fx.Node] = field(default_factory=list[fx.Node])


def legacy_memory_estimate(graph_module: fx.GraphModule, args: Sequence[Any]) -> LegacyMemoryEstimate:
    """Return the notes' estimate for a symbolically traced graph: what they measured as 251.95 MB and 29.1 %.

    Weights are those of convolutions, linear layers and 2-d batch norms that are called as modules. The only functions
    are add, mul, sub and div. A result of several tensors takes 4 bytes. A step waits only for modules among its own
    arguments, so many steps run early and their results live long. No fusion is involved. The estimate says nothing
    about real memory; use `peak_liveness` for that. MB means 2²⁰ bytes.
    """
    shapes = _shapes(_symbolic(graph_module), args)
    modules = [node for node in graph_module.graph.nodes if node.op == "call_module" and node in shapes]
    functions = [node for node in graph_module.graph.nodes if _is_counted(node) and node in shapes]
    steps = {node: _step(node, graph_module, shapes) for node in (*modules, *functions)}
    for node, step in steps.items():
        step.needs = [need for need in step.needs if need in steps]
        for need in step.needs:
            steps[need].needed_by.append(node)
    weights = sum(step.weights for step in steps.values())
    outputs = sum(step.output for step in steps.values())
    return LegacyMemoryEstimate(weights + _peak(steps), weights + outputs, weights)


def _symbolic(graph_module: Any) -> fx.GraphModule:
    decomposition = decomposition_of(graph_module)
    if isinstance(graph_module, fx.GraphModule) and (decomposition is None or decomposition.method == "symbolic-trace"):
        return graph_module
    raise ModelError(
        "the estimate of the notes needs a symbolic trace, and this model has none",
        hint="leave out `legacy_memory_estimate`: peak_liveness and traffic_reduction hold for every model",
    )


def _peak(steps: dict[fx.Node, _Step]) -> int:
    """Return the peak of live bytes, over the steps in the order in which they become ready."""
    waits = {node: len(step.needs) for node, step in steps.items()}
    readers = {node: len(step.needed_by) for node, step in steps.items()}
    ready = deque(node for node, count in waits.items() if not count)
    live = peak = 0
    unread: fx.Node | None = None  # a result without readers is freed after the next step
    while ready:
        node = ready.popleft()
        step = steps[node]
        live += step.output
        peak = max(peak, live + step.workspace)
        if unread is not None:
            live -= steps[unread].output
        unread = None if readers[node] else node
        for need in step.needs:
            readers[need] -= 1
            live -= 0 if readers[need] else steps[need].output
        for reader in step.needed_by:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return peak


def _step(node: fx.Node, graph_module: fx.GraphModule, shapes: dict[fx.Node, int]) -> _Step:
    read = sum(shapes.get(arg, 0) for arg in node.args if isinstance(arg, fx.Node))
    needs = [arg for arg in node.args if isinstance(arg, fx.Node) and arg.op == "call_module"]
    step = _Step(shapes[node], 0, 0, list(dict.fromkeys(needs)))
    if node.op == "call_module":
        module = graph_module.get_submodule(str(node.target))
        step.weights = _weights(module)
        step.workspace = _workspace(module, read, step.output)
    return step


def _is_counted(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _COUNTED


def _weights(module: nn.Module) -> int:
    if isinstance(module, nn.Conv2d | nn.Linear):
        return _ITEM * (module.weight.numel() + (0 if module.bias is None else module.bias.numel()))
    return _ITEM * 4 * module.num_features if isinstance(module, nn.BatchNorm2d) else 0


def _workspace(module: nn.Module, read: int, written: int) -> int:
    if type(module) is nn.Conv2d:
        pointwise = module.kernel_size == (1, 1)
        depthwise = module.groups > 1 and module.groups == module.in_channels == module.out_channels
        return 0 if pointwise or depthwise else 2 * read
    if type(module) is nn.Linear:
        return max(read, written) // 2
    return written if type(module) is nn.MultiheadAttention else 0


class _ShapeReader(fx.Interpreter):
    """Runs the graph and records the bytes of each node's result, as the notes count them."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.bytes = dict[fx.Node, int]()

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and record its bytes; results without tensors are not recorded."""
        result: Any = super().run_node(n)
        items = cast("Sequence[object]", result) if isinstance(result, tuple | list) else ()
        if isinstance(result, torch.Tensor):
            self.bytes[n] = _ITEM * math.prod(result.shape)
        elif any(isinstance(item, torch.Tensor) for item in items):
            self.bytes[n] = _ITEM
        return cast("Any", result)


def _shapes(graph_module: fx.GraphModule, args: Sequence[Any]) -> dict[fx.Node, int]:
    reader = _ShapeReader(graph_module)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        reader.run(*(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args))
    return reader.bytes
