"""A simulated machine on which operators take given times: the tuner is real, only its clock is simulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sardonyx.verbs.optimize import tuner
from sardonyx.verbs.optimize.options import TuneOptions
from sardonyx.verbs.optimize.tuner import Contender, Ground
from sardonyx.verification.subject import Model, Subject

Price = Callable[[Counter[str]], float]  # seconds of a run, by how often each operator occurs


def simulate(monkeypatch: pytest.MonkeyPatch, price: Price) -> list[Counter[str]]:
    """Let the tuner run its models on a simulated machine. The returned list collects the models it loads."""
    loaded: list[Counter[str]] = []

    class Simulated(Ground):
        def load(self, model: Model) -> Contender:
            operators = Counter(node.op_type for node in Subject(model).model.graph)
            loaded.append(operators)
            del operators["Identity"]  # as the runtime does
            return Contender(operators, 0.0, 0.0, lambda: price(operators))

        def least(self, contenders: int, once: float) -> float:
            return 0.0

    monkeypatch.setattr(tuner, "Ground", Simulated)
    return loaded


def priced(base: float = 1.0, **prices: float) -> Price:
    """Every operator takes `base` milliseconds, except those with a time of their own in `prices`."""
    return lambda operators: math.fsum(count * prices.get(op, base) for op, count in operators.items()) / 1000


def tuned(seconds: float = 60.0, sizes: Mapping[str, int] | None = None, **more: Any) -> dict[str, Any]:
    return {"tune": TuneOptions(seconds=seconds, sizes=sizes)} | more
