"""Find the windows of convolutions and pools along dynamic axes, and the lengths at which a whole window fits.

On a shorter axis the outer taps of a window only meet padding, so that their weights have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import CONVOLUTIONS, POOLS, QUANTIZED_CONVOLUTIONS
from sardonyx.ir.scopes import label, nested_graphs
from sardonyx.ir.shapes import Size, expr
from sardonyx.verification.size_requirements import atom_name

_WINDOWS = CONVOLUTIONS - {"ConvTranspose"} | QUANTIZED_CONVOLUTIONS | POOLS
_WEIGHT = {"QLinearConv": 3}  # the operand with the weight, if not the second
_LENGTHS = (*range(32, 1025, 32), *(1024 << step for step in range(1, 9)))  # models that halve an axis accept these


class Window(Struct, frozen=True):
    """A window along one axis of a node."""

    node: str  # the operator and the label
    reach: int  # positions from the first tap to the last
    axis: Size  # the size of the axis

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the axis is at least as long as the window, for these sizes of the named dimensions."""
        return self.length(sizes) >= self.reach

    def length(self, sizes: Mapping[str, int]) -> int:
        """Return the size of the axis, or 0 if it has none for these sizes."""
        try:
            return expr.value_of(self.axis, {atom_name(name): size for name, size in sizes.items()})
        except (KeyError, ZeroDivisionError):
            return 0


def find_windows(facts: Facts, names: Iterable[str]) -> list[Window]:
    """Return the windows of more than one tap along axes whose size depends only on the named dimensions."""
    atoms = frozenset(atom_name(name) for name in names)
    found: dict[tuple[int, Size], Window] = {}  # one of several equal ones
    for graph in nested_graphs(facts.model.graph):
        for node in graph:
            for window in _windows(facts, node) if node.op_type in _WINDOWS else ():
                used = set(expr.names_in((window.axis,)))
                if used and used <= atoms and window.reach > 1:
                    found.setdefault((window.reach, window.axis), window)
    return list(found.values())


def _windows(facts: Facts, node: ir.Node) -> Iterator[Window]:
    shape = facts.shape(node.inputs[0])
    kernel: Sequence[Size | None] | None = node.attributes.get_ints("kernel_shape")
    if kernel is None and node.op_type not in POOLS:
        weight = facts.shape(node.inputs[_WEIGHT.get(node.op_type, 1)])
        kernel = weight[2:] if weight is not None else None
    if shape is None or kernel is None or len(kernel) != len(shape) - 2:
        return
    dilations = node.attributes.get_ints("dilations") or (1,) * len(kernel)
    for axis, taps, dilation in zip(shape[2:], kernel, dilations, strict=False):
        if isinstance(taps, int):
            yield Window(f"{node.op_type} '{label(node)}'", (taps - 1) * dilation + 1, axis)


def fitting_length(windows: Iterable[Window], names: Sequence[str], name: str, usual: int) -> int | None:
    """Return a length of one dimension at which every window along it fits; None if all fit at the usual length.

    All dimensions are taken to have the same length.
    """
    atom = atom_name(name)
    wide = [window for window in windows if atom in expr.names_in((window.axis,))]
    for length in (usual, *_LENGTHS):
        wide = [window for window in wide if not window.fits(dict.fromkeys(names, length))]
        if not wide:
            return length if length != usual else None
    return None


def window_notes(windows: Iterable[Window], trials: Sequence[Mapping[str, int]]) -> list[str]:
    """Return a note about the windows that were longer than their axis in every trial, the largest as an example."""
    wide = [window for window in windows if not any(window.fits(sizes) for sizes in trials)]
    if not wide:
        return []
    window = max(wide, key=lambda window: window.reach)
    longest = max((window.length(sizes) for sizes in trials), default=0)
    others = f" (and {len(wide) - 1} more of this kind)" if len(wide) > 1 else ""
    return [f"the window of {window.node} spans {window.reach}; its axis was tried up to {longest}{others}"]
