"""Time quantized models against the source, in turns, with the statistics of `bench`."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.tagged_model import Source
from sardonyx.measurement.bench import bench
from sardonyx.quantization.samples import Sample
from sardonyx.records.bench import Comparison

SECONDS = 2.5  # of the turns of one measurement; fewer if the result is clear
BRIEF = 0.8  # the same for models that are not results


class Timed(Struct, frozen=True):
    """Times of one measurement."""

    milliseconds: float  # of the source
    sizes: dict[str, int]
    comparisons: dict[str, Comparison]  # with the source, by name


class Timer(Struct, frozen=True):
    """The conditions of all measurements."""

    source: Source
    sizes: Mapping[str, int]
    sample: Sample | None  # to run on, if no sizes are given
    threads: int
    seed: int

    def time(self, models: Mapping[str, ir.Model], seconds: float = SECONDS) -> Timed:
        """Time models beside the source."""
        generated = bool(self.sizes) or self.sample is None
        timed = bench(
            {"source": self.source, **models},
            seconds=seconds,
            sizes=self.sizes if generated else None,
            inputs=None if generated else self.sample,
            threads=self.threads,
            clock="cpu" if self.threads == 1 else "wall",  # CPU time is steadier beside other processes
            starts=0,
            seed=self.seed,
        )
        point = timed.points[0]
        others = {each.label: each.against_first for each in point.timings if each.against_first is not None}
        return Timed(1000 * point.timings[0].median, point.sizes, others)
