"""Find which values of a file are equal, and which depend on constants and sizes alone.

The runtime computes equal steps once, and folds what depends on constants and sizes alone before the run, so that such
steps are not part of the work of a kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from sardonyx.ir.dataflow import Dependence, dependence
from sardonyx.measurement.profiling.steps import GraphStep, Steps


class Values:
    """The values of one graph; values of graphs around it are unknown here."""

    def __init__(self, graph: Steps) -> None:
        self.producer: dict[str, int] = {}  # index of a step, by value
        self._classes: dict[str, Hashable] = dict(graph.constants)
        self._sizes: set[str] = set(graph.constants)
        self._twins: dict[int, Sequence[int]] = {}
        self._keys: dict[Hashable, int] = {}
        groups: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(graph.steps):
            groups[self._number(index, step)].append(index)
        for members in groups.values():
            if len(members) > 1:
                self._twins |= dict.fromkeys(members, members)

    def _number(self, index: int, step: GraphStep) -> int:
        """Assign classes to a step's outputs, and return the class of the step, which equal steps share."""
        same: Hashable = index
        if step.equality is not None and not step.bodies:
            same = (step.equality, tuple(self.class_of(name) for name in step.inputs))
        key = self._keys.setdefault(same, len(self._keys))  # a number, because nested keys would grow without bound
        sizes = all(name in self._sizes for name in step.inputs if name)
        operands = Dependence.SIZE if sizes else Dependence.DATA
        depends = dependence(step.op_type, operands, has_bodies=bool(step.bodies))
        for place, name in enumerate(step.outputs):
            if name:
                self.producer[name] = index
                self._classes[name] = self.class_of(step.inputs[0]) if step.op_type == "Identity" else (key, place)
                if depends is not Dependence.DATA and step.inputs:
                    self._sizes.add(name)
        return key

    def class_of(self, name: str) -> Hashable:
        """Return the class of a value, which equal values share."""
        return self._classes.get(name, name)

    def is_size(self, name: str) -> bool:
        """Return whether a value depends on constants and sizes alone."""
        return name in self._sizes

    def twins(self, index: int) -> Sequence[int]:
        """Return the steps equal to one, including itself."""
        return self._twins.get(index, (index,))


def consumers(graph: Steps) -> Mapping[str, Sequence[int]]:
    """Return the steps that read each value, in their bodies too."""
    readers: dict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(graph.steps):
        for name in dict.fromkeys(_read(step)):
            if name:
                readers[name].append(index)
    return readers


def _read(step: GraphStep) -> Sequence[str]:
    names = list(step.inputs)
    for body in step.bodies.values():
        for inner in body.steps:
            names.extend(_read(inner))
    return names
