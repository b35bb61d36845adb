"""The outputs of the source on samples, kept in files, so that memory holds those of one sample at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.ir.storage import Array
from sardonyx.quantization.metric import Metric
from sardonyx.quantization.samples import Feeds, Sample, Samples, required_inputs
from sardonyx.runtime import Value
from sardonyx.temporary import temporary_folder
from sardonyx.verification.subject import Subject

Outputs = Mapping[str, Array]


def arrays(names: Sequence[str], values: Sequence[Value]) -> dict[str, Array]:
    """Return the outputs that are arrays, by name; narrow floats as float32."""
    named = {name: value for name, value in zip(names, values, strict=True) if isinstance(value, np.ndarray)}
    return {
        name: value if value.dtype.kind in "fiub" else value.astype(np.float32)
        for name, value in named.items()
        if value.dtype.kind not in "OSU"
    }


class Answers:
    """The outputs of the source on some samples, and its metric on each."""

    def __init__(
        self,
        source: Subject,
        samples: Samples,
        numbers: Sequence[int],
        *,
        metric: Metric | None = None,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Run the source, with the runtime's optimizations off.

        Raises:
            UsageError: A sample does not fit the inputs of the model, or the metric fails.
        """
        self._folder = temporary_folder()
        self._samples, self._numbers = samples, tuple(numbers)
        self.feeds = Feeds(samples, self._numbers, required_inputs(source.model), extra=metric is not None)
        self.names = [value.name or "" for value in source.model.graph.outputs]
        self.metric = metric
        self.scored: list[float] = []  # the metric of the source on each sample
        with source.session(threads=threads) as engine:
            for place, number in enumerate(self._numbers):
                label = samples.label(number)
                try:
                    outputs = arrays(self.names, engine.run(self.feeds[place]))
                except RuntimeFailure as failure:
                    raise UsageError(f"the model does not accept {label}: {failure.message}") from failure
                np.savez(self._file(place), **outputs)  # pyright: ignore[reportArgumentType]
                if metric is not None:
                    self.scored.append(metric(outputs, samples[number], label))
                if progress is not None:
                    progress((place + 1) / len(self._numbers))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._numbers)

    def __iter__(self) -> Iterator[tuple[str, Sample, Mapping[str, Value], Outputs]]:
        """Yield the label of each sample, the sample, its inputs, and the outputs of the source."""
        for place, number in enumerate(self._numbers):
            with np.load(self._file(place)) as stored:
                outputs = {name: stored[name] for name in stored.files}
            yield self._samples.label(number), self._samples[number], self.feeds[place], outputs

    def _file(self, place: int) -> Path:
        return Path(self._folder.name) / f"{place}.npz"
