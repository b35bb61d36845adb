"""A handmade Benchmark of three files, one faster, one the same, at one size or several."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.records.bench import BenchFile, Benchmark, Comparison, Finding, Machine, Point, Start, Timing
from sardonyx.records.run import Environment

LABELS = ("model.onnx", "small.onnx", "tiny.onnx")
MACHINE = Machine("Some CPU @ 2 GHz", 8, 16_000_000_000, "performance", 0.4, 1.2, 0.01, 0.02)


def compared(ratio: float, low: float, high: float, finding: Finding, floor: float = 0.012) -> Comparison:
    return Comparison(ratio, low, high, floor, finding, 5)


def timing(label: str, ms: float, against: Comparison | None = None, starts: int = 3) -> Timing:
    rounds = tuple(ms * factor / 1000 for factor in (1.0, 0.98, 1.02, 0.99, 9.0))
    fresh = tuple(Start(0.31 + 0.01 * each, 0.025, None if ms > 40 else 450_000_000) for each in range(starts))
    middle, low, high = rounds[0], rounds[3], rounds[2]
    return Timing(label, rounds, middle, low, high, rounds[1], high, against, fresh)


def point(sizes: dict[str, int], scale: float = 1.0, files: int = 3, labels: Sequence[str] = LABELS) -> Point:
    timings = (
        timing(labels[0], 12.3 * scale),
        timing(labels[1], 10.8 * scale, compared(0.877, 0.865, 0.89, Finding.FASTER)),
        timing(labels[2], 12.2 * scale, compared(0.995, 0.986, 1.004, Finding.SAME)),
    )
    return Point(sizes, {"x": "int64[1,128]"}, 0.012, timings[:files])


def sample_benchmark(
    *points: Point, files: int = 3, labels: Sequence[str] = LABELS, notes: Sequence[str] = ()
) -> Benchmark:
    made = points or (point({"batch": 1, "seq": 128}, files=files, labels=labels),)
    return Benchmark(
        environment=Environment("0.1.0", "3.11.0", "Linux", 8, {"onnxruntime": "1.31.0"}),
        machine=MACHINE,
        options={
            "threads": 1,
            "runtime": "onnxruntime 1.31.0",
            "provider": "cpu",
            "level": "all",
            "isolate": False,
            "clock": "wall",
            "seconds": 60.0,
        },
        files=tuple(BenchFile(label, f"/models/{label}", "ab" * 32, 1_000_000, 100) for label in labels[:files]),
        points=made,
        seconds={"timing": 12.0},
        notes=tuple(notes),
    )
