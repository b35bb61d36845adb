"""What the file says of its values before anything runs: which of them are equal, and which are mere sizes.

The runtime computes equal steps once, and works out before the run what hangs on sizes and constants alone; whoever
looks for what a kernel does must not take such steps for a part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from sardonyx.ir.dataflow import Dependence, dependence
from sardonyx.measurement.profiling.steps import GraphStep, Steps


class Values:
    """The values of one graph; those of graphs around it belong to whoever asks."""

    def __init__(self, graph: Steps) -> None:
        self.maker: dict[str, int] = {}
        self._class: dict[str, Hashable] = dict(graph.constants)
        self._sizes: set[str] = set(graph.constants)
        self._alike: dict[int, Sequence[int]] = {}
        self._keys: dict[Hashable, int] = {}
        groups: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(graph.steps):
            groups[self._number(index, step)].append(index)
        for members in groups.values():
            if len(members) > 1:
                self._alike |= dict.fromkeys(members, members)

    def _number(self, index: int, step: GraphStep) -> int:
        """Give a step's outputs their class, and the step one of its own; the same for steps that are equal."""
        same: Hashable = index
        if step.likeness is not None and not step.bodies:
            same = (step.likeness, tuple(self.like(name) for name in step.inputs))
        key = self._keys.setdefault(same, len(self._keys))  # short, or keys of keys would grow without end
        sizes = all(name in self._sizes for name in step.inputs if name)
        operands = Dependence.SIZE if sizes else Dependence.DATA
        depends = dependence(step.op_type, operands, has_bodies=bool(step.bodies))
        for place, name in enumerate(step.outputs):
            if name:
                self.maker[name] = index
                self._class[name] = self.like(step.inputs[0]) if step.op_type == "Identity" else (key, place)
                if depends is not Dependence.DATA and step.inputs:
                    self._sizes.add(name)
        return key

    def like(self, name: str) -> Hashable:
        """The class of a value: the same for values that are equal."""
        return self._class.get(name, name)

    def is_size(self, name: str) -> bool:
        """Whether nothing but constants and sizes went into a value."""
        return name in self._sizes

    def twins(self, index: int) -> Sequence[int]:
        """The steps equal to one, itself among them."""
        return self._alike.get(index, (index,))


def consumers(graph: Steps) -> Mapping[str, Sequence[int]]:
    """The steps that read each value, in their bodies too."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(graph.steps):
        for name in dict.fromkeys(_read(step)):
            if name:
                found[name].append(index)
    return found


def _read(step: GraphStep) -> Sequence[str]:
    names = list(step.inputs)
    for body in step.bodies.values():
        for inner in body.steps:
            names.extend(_read(inner))
    return names
