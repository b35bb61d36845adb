"""Peak memory of `optimize` on a graph of the shape of a large language model, whose weights are a sparse file.

    PYTHONPATH=src python benchmarks/large.py make llama7b.onnx [--layers 32] [--hidden 4096]
    PYTHONPATH=src python benchmarks/large.py run llama7b.onnx [--verify each]

`make` exports the decoder with its past from weights that exist as shapes only, and writes a data file of their size
that takes no room on the disk. `run` optimizes it in a process of its own, writes the result, and prints the seconds
and the peak memory of that process and of its workers together: private memory, and pages of mapped files, which the
system drops when it needs the room.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from measure import memory_of_all
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import ModuleCall

PAST, NEW, BATCH = 4, 11, 2
INLINE = 4096  # bytes below which a weight is in the graph's own file


def decoder(layers: int, hidden: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A decoder of Llama's shape on the meta device, and arguments that continue a past."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=32000,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
        cache: Any = DynamicCache(config=config)
        for layer in range(layers):
            state = torch.zeros(BATCH, 32, PAST, hidden // 32)
            cache.update(state, state, layer)
        arguments: dict[str, Any] = {
            "input_ids": torch.zeros(BATCH, NEW, dtype=torch.int64),
            "attention_mask": torch.ones(BATCH, PAST + NEW, dtype=torch.int64),
            "past_key_values": cache,
            "use_cache": True,
        }
    return model, arguments


def axes(call: ModuleCall) -> dict[str, dict[int, str]]:
    """Batch, past and new tokens are dynamic."""
    found = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "past_sequence + sequence"}}
    return found | {name: {0: "batch", 2: "past_sequence"} for name in call.inputs if name.startswith("past")}


def make(path: Path, layers: int, hidden: int) -> None:
    """Export, and write the graph with weights that are holes in a file."""
    model, arguments = decoder(layers, hidden)
    call = ModuleCall(model, (), arguments)
    graph, _ = traced.export(call, "dynamo", axes(call), None, traced.TagStyle())
    data = path.with_name(f"{path.name}.data")
    starts: list[int] = []
    end = 0
    for value in graph.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.nbytes < INLINE:
            values = np.arange(1, tensor.size + 1, dtype=tensor.dtype.numpy()).reshape(tensor.shape.numpy())
            value.const_value = ir.tensor(values, name=value.name)
            continue
        value.const_value = ir.ExternalTensor(
            data.name,
            end,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
            base_dir=path.parent,
        )
        starts.append(end)
        end += -(-tensor.nbytes // 4096) * 4096
    with data.open("wb") as file:
        file.truncate(end)
        for number, start in enumerate(starts):  # no two weights are the same
            os.pwrite(file.fileno(), np.float32(number + 1).tobytes(), start)
    ir.save(graph, path)  # pyright: ignore[reportUnknownMemberType]
    blocks = os.stat(data).st_blocks * 512
    print(f"{path}: {len(graph.graph)} nodes, weights of {end / 1e9:.1f} GB ({blocks / 1e6:.1f} MB on the disk)")


def run(path: Path, verify: str) -> None:
    """Optimize in a process of its own."""
    began = time.perf_counter()
    target = path.with_name(f"{path.stem}-optimized.onnx")
    command = [sys.executable, "-m", "sardonyx", "optimize", path, "-o", target, "--verify", verify, "--force", "-q"]
    private, mapped = memory_of_all(list(map(str, command)))
    print(f"{time.perf_counter() - began:.0f} s, at most {private} MB private and {mapped} MB of mapped files")


def main() -> None:
    """Make a graph, or optimize one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--verify", choices=("each", "end", "off"), default="off")
    wish = parser.parse_args()
    if wish.what == "make":
        make(wish.path, wish.layers, wish.hidden)
    else:
        run(wish.path, wish.verify)


if __name__ == "__main__":
    main()
