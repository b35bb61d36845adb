"""Which of several equal forms of attention the runtime runs fastest: what the default pipeline writes rests on this.

    python benchmarks/forms.py [--threads 1] [--lengths 32 128 512] [--width 768] [--heads 12] [--rounds 15]

Every form computes the same from the same weights; sessions take turns within a round, in another order each time, and
the ratio of medians to the spelled-out form (which the runtime's own optimizer may fuse as it likes) is printed. With
one thread the processor's time counts, which other work on the machine hardly touches; with more, the clock's.

Found on BERT's sizes (width 768, 12 heads, one thread, lengths 32 / 128 / 512, with a mask): Attention on whole rows
0.97 / 0.96 / 1.00 of the spelled-out form, on split heads 0.99 / 0.99 / 1.08; packing the three products into one costs
1.02 / 1.04 / 1.09 spelled out, and makes Attention on rows slower from length 128 on. So rows, and nothing packed anew.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Sizes:
    """Of one attention layer, and how many of them stand in a row."""

    batch: int
    length: int
    width: int
    heads: int
    layers: int = 2

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads


@dataclass
class Maker:
    """Collects nodes and weights."""

    sizes: Sizes
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """One node; its first output's name (others follow with a suffix)."""
        name = f"{op}{len(self.nodes)}"
        names = [name] + [f"{name}:{index}" for index in range(1, outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return name

    def weight(self, name: str, array: np.ndarray) -> str:
        """A constant by name."""
        self.weights[name] = array
        return name

    def ints(self, *numbers: int) -> str:
        """A small integer constant."""
        return self.weight("i" + "_".join(map(str, numbers)), np.array(numbers, np.int64))


def linear(m: Maker, x: str, w: np.ndarray, b: np.ndarray, name: str) -> str:
    """x W + b."""
    return m.node("Add", m.node("MatMul", x, m.weight(f"w{name}", w)), m.weight(f"b{name}", b))


def separate(m: Maker, x: str, w: Sequence[np.ndarray], b: Sequence[np.ndarray], layer: int) -> list[str]:
    """Three products."""
    return [linear(m, x, w[i], b[i], f"{layer}.{i}") for i in range(3)]


def packed(m: Maker, x: str, w: Sequence[np.ndarray], b: Sequence[np.ndarray], layer: int) -> list[str]:
    """One product and a Split."""
    both = linear(m, x, np.concatenate(w[:3], 1), np.concatenate(b[:3]), f"{layer}.qkv")
    name = m.node("Split", both, m.ints(*[m.sizes.width] * 3), outputs=3, axis=-1)
    return [name, f"{name}:1", f"{name}:2"]


def heads_of(m: Maker, x: str, perm: Sequence[int]) -> str:
    """[B, S, E] as heads."""
    s = m.sizes
    return m.node("Transpose", m.node("Reshape", x, m.ints(0, 0, s.heads, s.head)), perm=list(perm))


def merged(m: Maker, x: str) -> str:
    """Heads as [B, S, E] again."""
    return m.node("Reshape", m.node("Transpose", x, perm=[0, 2, 1, 3]), m.ints(0, 0, m.sizes.width))


def spelled(m: Maker, qkv: Sequence[str], mask: str) -> str:
    """Products, scale, mask and Softmax one by one."""
    q, k, v = (heads_of(m, x, p) for x, p in zip(qkv, [(0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)], strict=True))
    scale = m.weight("scale", np.array(1 / math.sqrt(m.sizes.head), np.float32))
    scores = m.node("Mul", m.node("MatMul", q, k), scale)
    return merged(m, m.node("MatMul", m.node("Softmax", m.node("Add", scores, mask) if mask else scores, axis=-1), v))


def four(m: Maker, qkv: Sequence[str], mask: str) -> str:
    """Attention on heads."""
    return merged(m, m.node("Attention", *(heads_of(m, x, (0, 2, 1, 3)) for x in qkv), *([mask] if mask else [])))


def three(m: Maker, qkv: Sequence[str], mask: str) -> str:
    """Attention on [B, S, E]."""
    n = m.sizes.heads
    return m.node("Attention", *qkv, *([mask] if mask else []), q_num_heads=n, kv_num_heads=n)


Projection = Callable[[Maker, str, Sequence[np.ndarray], Sequence[np.ndarray], int], list[str]]
Core = Callable[[Maker, Sequence[str], str], str]
FORMS: dict[str, tuple[Projection, Core]] = {
    "spelled out": (separate, spelled),
    "spelled out, packed": (packed, spelled),
    "4-D": (separate, four),
    "3-D": (separate, three),
    "3-D, packed": (packed, three),
}
MASKS: dict[str, Callable[[Sizes], np.ndarray | None]] = {
    "none": lambda _: None,
    "[1,1,S,S]": lambda s: _masked((1, 1, s.length, s.length)),
    "[B,1,S,S]": lambda s: _masked((s.batch, 1, s.length, s.length)),
    "[1,H,S,S]": lambda s: _masked((1, s.heads, s.length, s.length)),
    "bool [B,1,S,S]": lambda s: _masked((s.batch, 1, s.length, s.length)) == 0,
}


def _masked(shape: tuple[int, ...]) -> np.ndarray:
    drawn = np.random.default_rng(1).random(shape) < 0.9
    drawn[..., 0] = True
    return np.where(drawn, 0, -3.4028234663852886e38).astype(np.float32)


def model(sizes: Sizes, form: str, mask: np.ndarray | None) -> onnx.ModelProto:
    """Layers of one form; `x` and the mask are inputs."""
    project, core = FORMS[form]
    m, rng, x = Maker(sizes), np.random.default_rng(0), "x"
    for layer in range(sizes.layers):
        w = [rng.standard_normal((sizes.width, sizes.width)).astype(np.float32) * 0.05 for _ in range(4)]
        b = [rng.standard_normal(sizes.width).astype(np.float32) for _ in range(4)]
        y = core(m, project(m, x, w, b, layer), "mask" if mask is not None else "")
        x = m.node("Add", linear(m, y, w[3], b[3], f"{layer}.out"), x)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [sizes.batch, sizes.length, sizes.width])]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("mask", helper.np_dtype_to_tensor_dtype(mask.dtype), mask.shape))
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(array, name) for name, array in m.weights.items()]
    graph = helper.make_graph(m.nodes, "forms", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def session(proto: onnx.ModelProto, threads: int) -> ort.InferenceSession:
    """With all of the runtime's optimizations."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compare(sizes: Sizes, mask: str, threads: int, rounds: int) -> dict[str, float]:
    """Milliseconds of each form, as medians over interleaved rounds."""
    array = MASKS[mask](sizes)
    feeds = {"x": np.random.default_rng(2).standard_normal((sizes.batch, sizes.length, sizes.width)).astype(np.float32)}
    if array is not None:
        feeds["mask"] = array
    names = [name for name in FORMS if not (array is not None and array.dtype == bool and "spelled" in name)]
    sessions = {name: session(model(sizes, name, array), threads) for name in names}
    results = {name: each.run(None, feeds)[0] for name, each in sessions.items()}
    first = next(iter(results.values()))
    for name, result in results.items():
        np.testing.assert_allclose(result, first, rtol=1e-3, atol=1e-3, err_msg=name)
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in sessions}
    order = list(sessions)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            began = clock()
            sessions[name].run(None, feeds)
            times[name].append((clock() - began) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=list(MASKS))
    given = parser.parse_args()
    print("| threads | length | mask | " + " | ".join(FORMS) + " |\n|" + "---|" * (3 + len(FORMS)))
    for threads in given.threads:
        for length in given.lengths:
            sizes = Sizes(given.batch, length, given.width, given.heads)
            for mask in given.masks:
                times = compare(sizes, mask, threads, given.rounds)
                base = next(iter(times.values()))
                cells = [f"{times[f]:.2f} ({times[f] / base:.2f})" if f in times else "" for f in FORMS]
                print(f"| {threads} | {length} | {mask} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
