"""Runs a model in ONNX Runtime without its optimizations, and draws what it is fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from fuzzing.draft import Input

Feed = dict[str, Any]
_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_OPTIONS.intra_op_num_threads = _OPTIONS.inter_op_num_threads = 1
_OPTIONS.log_severity_level = 4
_OPTIONS.enable_cpu_mem_arena = False
onnxruntime.set_default_logger_severity(4)


class Failed(Exception):
    """The runtime does not load or run a model."""


class Session:
    """A model that is ready to run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), _OPTIONS, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise Failed(first_line(error)) from None

    def run(self, feed: Feed) -> list[Any]:
        """Every output, for one feed."""
        try:
            return self._session.run(None, feed)
        except Exception as error:
            raise Failed(first_line(error)) from None


def values(model: onnx.ModelProto, feed: Feed) -> dict[str, Any]:
    """What every outer value of a model holds on a feed; empty where it does not run."""
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    given = {each.name for each in everything.graph.output}
    names = [name for node in everything.graph.node for name in node.output if name and name not in given]
    everything.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        arrays = Session(everything).run(feed)
    except Failed:
        return {}
    stored = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    return {**feed, **stored, **dict(zip([each.name for each in everything.graph.output], arrays, strict=True))}


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:800]


def type_of(array: Any) -> onnx.TypeProto:
    """The ONNX type of what a run gave: a tensor's with its shape, or a sequence's."""
    if isinstance(array, list):
        item = array[0] if array else np.zeros(0, np.float32)
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(_element(item), None))
    return helper.make_tensor_type_proto(_element(array), array.shape)


def _element(array: np.ndarray) -> int:
    return TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)


# ---------------------------------------------------------------------------------------------- feeds

KINDS = ("normal", "large", "flat", "tiny", "whole", "zeros", "negative", "special")
SIZES = (0, 1, 2, 3, 7)
FILLS = (0.0, -1e4, float(np.finfo(np.float32).min), -np.inf)
SPECIALS = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-40,
    1.0,
    -1.0,
    3.4028235e38,
    -3.4028235e38,
    65504.0,
    0.5,
    6.0,
)


def usual(one: Input, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """The array that a draft computes with."""
    return drawn(one, shape, rng, "normal", "mixed")


def drawn(one: Input, shape: tuple[int, ...], rng: np.random.Generator, kind: str, masks: str) -> np.ndarray:
    """A hostile array for an input."""
    dtype = one.dtype
    if dtype == np.object_:
        words = np.array(["", "a", "1.5", "NaN", "é", "-7"], object)
        return words[rng.integers(0, len(words), shape)]
    if one.role == "ids":
        low = 0 if kind != "negative" else -one.limit
        return rng.integers(low, one.limit, shape).astype(dtype)
    if one.role == "mask":
        return _mask(dtype, shape, rng, masks)
    if one.role == "binary":  # 1 where a key is seen
        return _mask(np.dtype(bool), shape, rng, masks).astype(dtype)
    if one.role == "count":
        return np.asarray(rng.integers(0, 4, shape), dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < {"zeros": 0.0, "large": 1.0}.get(kind, 0.5))
    if dtype.kind in "iu":
        return _integers(dtype, shape, rng, kind)
    numbers = _numbers(shape, rng, kind)
    if kind == "tiny" and dtype == np.float16:
        numbers = numbers * 200  # squares of anything smaller are subnormal
    if one.role == "positive" and kind != "special":
        numbers = np.abs(numbers) + 0.1
    with np.errstate(over="ignore"):
        return numbers.astype(dtype)


def _numbers(shape: tuple[int, ...], rng: np.random.Generator, kind: str) -> np.ndarray:
    plain = rng.standard_normal(shape)
    if kind == "special":
        chosen = np.array(SPECIALS)[rng.integers(0, len(SPECIALS), shape)]
        return np.where(rng.random(shape) < 0.3, chosen, plain)
    return {
        "normal": lambda: plain,
        "large": lambda: plain * 300,
        "flat": lambda: 5 + plain * 1e-2,
        "tiny": lambda: plain * 1e-4,
        "whole": lambda: np.round(plain * 3),
        "zeros": lambda: np.zeros(shape),
        "negative": lambda: -np.abs(plain),
    }[kind]()


def _integers(dtype: np.dtype, shape: tuple[int, ...], rng: np.random.Generator, kind: str) -> np.ndarray:
    if kind == "special":
        edges = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1], dtype)
        return edges[rng.integers(0, 4, shape)]
    if kind == "zeros":
        return np.zeros(shape, dtype)
    top = 100 if kind == "large" else 6
    return rng.integers(0 if dtype.kind == "u" or kind == "tiny" else -top, top, shape).astype(dtype)


def _mask(dtype: np.dtype, shape: tuple[int, ...], rng: np.random.Generator, masks: str) -> np.ndarray:
    """1 or 0.0 where a key is seen; `masks` says which are hidden."""
    width = shape[-1] if shape else 1
    if masks == "open":
        seen = np.ones(shape, bool)
    elif masks == "hidden":  # whole rows
        seen = np.broadcast_to(rng.random((*shape[:-1], 1)) < 0.5, shape)
    elif masks == "left":
        seen = np.broadcast_to(np.arange(width) >= max(width // 2, 0), shape)
    elif masks == "right":
        seen = np.broadcast_to(np.arange(width) < max((width + 1) // 2, 1), shape)
    else:
        seen = rng.random(shape) < 0.6
    if dtype.kind != "f":
        return seen.astype(dtype).reshape(shape)
    low = {"<": FILLS[2], "e": -65504.0}.get(dtype.char, FILLS[2])
    fills = np.array([FILLS[1], low, FILLS[3], -3.0])
    chosen = fills[rng.integers(0, len(fills), shape)] if masks == "mixed" else fills[rng.integers(0, len(fills))]
    with np.errstate(over="ignore"):
        return np.where(seen, 0.0, chosen).astype(dtype).reshape(shape)


def feeds(inputs: list[Input], sizes: dict[str, int], seed: int) -> list[tuple[str, Feed]]:
    """Hostile feeds: every kind of values at the nominal sizes, and every size of a dynamic dimension."""
    rng = np.random.default_rng(seed)
    plans: list[tuple[dict[str, int], str, str]] = [
        (sizes, kind, mask)
        for kind, mask in zip(
            KINDS, ("mixed", "open", "hidden", "left", "right", "mixed", "mixed", "mixed"), strict=True
        )
    ]
    symbols = sorted(sizes)
    plans += [(dict.fromkeys(symbols, size), "normal", "mixed") for size in SIZES if symbols]
    if len(symbols) > 1:
        plans += [({**sizes, symbol: size}, "normal", "mixed") for symbol in symbols for size in (0, 1, 7)]
    plans.append((sizes, "normal", "hidden"))
    return [
        (
            f"{kind}/{mask}/{','.join(f'{s}={n}' for s, n in sorted(chosen.items()))}",
            {
                one.name: drawn(one, tuple(chosen[d] if isinstance(d, str) else d for d in one.dims), rng, kind, mask)
                for one in inputs
            },
        )
        for chosen, kind, mask in plans
    ]
