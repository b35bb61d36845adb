"""The user's metric: a function of the outputs of a model and the sample that they belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.frontend.models.user_files import user_error
from sardonyx.quantization.samples import Sample, user_function
from sardonyx.runtime import Value


class Metric(Struct, frozen=True):
    """A function `(outputs by name, sample) -> number`; higher is better."""

    name: str
    path: Path | None
    function: Callable[..., Any]

    @classmethod
    def of(cls, metric: str | Callable[..., Any] | None) -> Metric | None:
        """Return the metric that FILE.py:FUNCTION or a function is."""
        if metric is None:
            return None
        if not isinstance(metric, str):
            return cls(getattr(metric, "__name__", "metric"), None, metric)
        return cls(metric, *user_function(metric, "the metric"))

    def __call__(self, outputs: Mapping[str, Value], sample: Sample, label: str) -> float:
        """Return the number for one sample.

        Raises:
            UsageError: The function fails, or does not return a number.
        """
        try:
            value = float(self.function(dict(outputs), dict(sample)))
        except Exception as error:  # the user's code may raise anything; it is reported
            what = f"the metric failed on {label}"
            raise user_error(self.path or Path(self.name), what, error) from error
        if not math.isfinite(value):
            raise UsageError(f"the metric {self.name} returned {value} for {label}", hint="return a finite number")
        return value
