"""The search for the first border that differs, on models that are lists of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from sardonyx.runtime import Value
from sardonyx.verbs.locate.module_search import Border, ModuleSearch

COUNT = 12
SHAPE = (16, 64)


class Chain:
    """A model whose borders form a chain; the outputs are right if a border at the fault or after it is replaced."""

    def __init__(self, arrays: Sequence[np.ndarray], fault: int, outputs: tuple[np.ndarray, np.ndarray]) -> None:
        self._arrays, self._fault, (self._right, self._wrong) = arrays, fault, outputs

    def values_from(self, given: Mapping[int, np.ndarray] | None, places: Sequence[int]) -> dict[int, Value]:
        return {place: self._arrays[place] for place in places}

    def outputs_after(self, values: Mapping[int, np.ndarray]) -> list[Value]:
        return [self._right if max(values) >= self._fault else self._wrong]


def search(noisy: range, fault: int, change: float) -> ModuleSearch:
    """Borders `noisy` differ in one column by `change`; from the border `fault` on, everything is wrong."""
    rng = np.random.default_rng(0)
    a = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(COUNT)]
    b = [array.copy() for array in a]
    for place in range(COUNT):
        if place in noisy:
            b[place][:, 5] *= np.float32(1 + change)
        if place >= fault:
            b[place] *= np.float32(1.01)
    outputs = a[-1], b[-1]
    models = Chain(a, fault, outputs), Chain(b, fault, outputs)
    borders = [Border(f"v{place}", f"m{place}", place + 1, True) for place in range(COUNT)]
    return ModuleSearch(borders, *models, [a[-1]], [b[-1]], lambda _places: None)


@pytest.mark.parametrize("change", [1e-5, 0.5])
def test_a_difference_without_an_effect_is_not_the_cause(change: float) -> None:
    """Roundings that the tolerance does not allow, or a value that is overwritten, come before the fault."""
    searched = search(range(2, 7), 7, change)
    finding = searched.first_difference()
    assert finding is not None
    assert finding.index == 7
    assert searched.harmless is not None
    assert searched.harmless.index == 2


def test_a_difference_with_an_effect_is_the_cause() -> None:
    searched = search(range(0), 4, 0.0)
    finding = searched.first_difference()
    assert finding is not None
    assert (finding.index, searched.harmless) == (4, None)
    assert searched.share_of(finding) == pytest.approx(1.0)
