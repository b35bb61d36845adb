"""The front of gain and loss: in which order groups of modules are quantized.

It is ordered by gain for each unit of loss (a sweep of a Lagrange multiplier). The losses of modules that are quantized
alone add in squares, as a first prediction. For a multiplier λ, every group takes the option with the largest gain - λ
· loss²; as λ falls, groups change along the convex hulls of their options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from sardonyx.verbs.quantize.precisions import Precision


class Option(Struct, frozen=True):
    """A precision of a group."""

    precision: Precision
    gain: float  # milliseconds or bytes
    loss: float  # relative L2 of the model in which this group alone is quantized


class _Step(Struct, frozen=True):
    rate: float  # gain for each unit of squared loss
    group: int
    precision: Precision


def sweep(groups: Sequence[Sequence[Option]]) -> list[tuple[Precision | None, ...]]:
    """Return the precisions of all groups along the front, from none quantized (None) to the largest gain."""
    steps = [step for number, options in enumerate(groups) for step in _hull(number, options)]
    steps.sort(key=lambda step: -step.rate)  # stable: the steps of a hull have falling rates and stay in order
    state: list[Precision | None] = [None] * len(groups)
    plans = [tuple(state)]
    for step in steps:
        state[step.group] = step.precision
        plans.append(tuple(state))
    return plans


def _hull(group: int, options: Sequence[Option]) -> list[_Step]:
    """Return the steps from float32 along the upper hull of gain over squared loss."""
    gain, loss, steps = 0.0, 0.0, list[_Step]()
    while better := [option for option in options if option.gain > gain]:
        best = max(better, key=lambda option: (_rate(option, gain, loss), option.gain))
        steps.append(_Step(_rate(best, gain, loss), group, best.precision))
        gain, loss = best.gain, max(loss, best.loss**2)
    return steps


def _rate(option: Option, gain: float, loss: float) -> float:
    more = option.loss**2 - loss
    return (option.gain - gain) / more if more > 0 else math.inf


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each pair of costs whether no other pair is lower in one and not higher in the other."""
    return [not any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in points) for a in points]
