"""How many operators of torch.export equal the ONNX nodes they became, by model of the zoo.

    python benchmarks/operator_shares.py [NAME ...]

Prints a table; times are CPU seconds: of tracing and translating, of cutting out the operations, and of deciding them.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

import zoo
from sardonyx.errors import SardonyxError
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.dynamo import recorded
from sardonyx.verbs.export.operator_checks import check

BATCH = 2  # torch.export fixes a dimension of size 1


def _traced(call: ModuleCall) -> Any:
    """The graph, with a dynamic batch and length if torch accepts them."""
    axes = {
        name: {0: "batch", 1: "length"} if tensor.dtype == torch.long else {0: "batch"}
        for name, tensor in zip(call.inputs, call.tensors, strict=True)
    }
    for dims in (axes, {}):
        try:
            return traced.export(call, "dynamo", dims, None, traced.TagStyle())[0]
        except SardonyxError:
            continue
    raise SystemExit("torch does not export it")


def row(name: str) -> str:
    """One model of the zoo as a row of the table."""
    module, inputs = zoo.build(name)
    inputs = {key: torch.cat([value] * BATCH) for key, value in inputs.items()}
    call = ModuleCall(module, (inputs["input"],), {}) if "input" in inputs else ModuleCall(module, (), inputs)
    times = [time.process_time()]
    model = _traced(call)
    times.append(time.process_time())
    operations = recorded(model) or []
    times.append(time.process_time())
    checked = check(operations)
    times.append(time.process_time())
    export, cut, decide = (f"{after - before:.2f}" for before, after in itertools.pairwise(times))
    undecided = "; ".join(f"{count} {reason}" for reason, count in checked.undecided.items())
    counts = (checked.operators, checked.distinct, checked.all_values, checked.orders_tried)
    return " | ".join(map(str, (name, *counts, undecided, "; ".join(checked.unequal), export, cut, decide)))


def main(names: Sequence[str]) -> None:
    """Print a row for each model."""
    print("model | operators | different | for all values | orders tried | undecided | unequal | export | cut | decide")
    for name in names or [name for name in zoo.ZOO if name != "tinyllama"]:
        print(row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
