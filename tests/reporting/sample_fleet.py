"""A record about many models, made from a seed."""

from __future__ import annotations

import random

from sardonyx.records.environment import environment
from sardonyx.records.study import Fleet, ModelRow

FAMILIES = ("encoder", "decoder", "convolutional", "vision-transformer", "mlp", "other")
PASSES = ("fold-constants", "fuse-layer-norm", "fuse-attention", "merge-transposes", "fuse-gelu")


def sample_fleet(models: int, seed: int = 0) -> Fleet:
    """A command `optimize` about some models, of which one in twenty fails."""
    numbers = random.Random(seed)
    return Fleet(
        command="optimize",
        options=("--target", "ort"),
        environment=environment(),
        folder="out",
        machines=("a machine with 2 cores", "another one"),
        models=tuple(_row(place, numbers) for place in range(models)),
        seconds=1234.5,
    )


def _row(place: int, numbers: random.Random) -> ModelRow:
    name = f"folder{place % 7}/model-{place:05}"
    common = {"seconds": numbers.uniform(0.5, 4), "peak": numbers.randrange(200, 900) * 10**6, "machine": place % 2}
    if place % 20 == 7:
        reason = (
            "its process was killed (SIGSEGV)",
            f"models/{name}.onnx is empty",
            f"it did not end within {place} s",
        )
        return ModelRow(name, f"models/{name}.onnx", "failed", 1, reason[place % 3], **common, estimate=500 * 10**6)
    before = numbers.randrange(20, 3000)
    after = int(before * numbers.betavariate(4, 2))
    rewrites = {one: numbers.randrange(1, 40) for one in PASSES if numbers.random() < 0.5}
    found = {
        "family": FAMILIES[place % len(FAMILIES)],
        "nodes_before": before,
        "nodes_after": after,
        "bytes_before": 10**6,
        "bytes_after": 9 * 10**5,
        "opset": "20",
        "verification": "passed",
        "trials": 12,
        "max_abs": 1e-6,
        "tolerance_used": 0.12,
        "rolled_back": 0,
        "rewrites": rewrites,
        "nodes_by_pass": {one: -2 * count for one, count in rewrites.items()},
        "missed": [["fuse-attention", "the mask is not broadcast", 3], ["fuse-gelu", "the constant is not 0.5", 1]],
    }
    files = (f"{name}.json", f"{name}.onnx")
    return ModelRow(name, f"models/{name}.onnx", "done", **common, estimate=500 * 10**6, files=files, numbers=found)
