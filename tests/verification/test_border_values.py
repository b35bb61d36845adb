"""Values for the border of a rewrite: their sizes, their types, and which special numbers are among them."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import onnx_ir as ir
import pytest

import recorded
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, multiply, subtract, symbol
from sardonyx.verification.border_values import Generator, Style, Way
from sardonyx.verification.rewrite_models import Border

T = ir.DataType
N, M = symbol("N"), symbol("M")


def entry(
    name: str,
    dtype: ir.DataType | None,
    shape: tuple[Size, ...] | None,
    contents: tuple[Size | None, ...] | None = None,
    *,
    hides: bool = False,
) -> Border:
    return Border(name, dtype, shape, contents, hides=hides)


NEAR = [ir.tensor(np.array([6.0, 0.5], np.float32)), ir.tensor(np.array([7])), ir.tensor(np.arange(9.0))]
BORDERS: dict[str, tuple[list[Border], list[ir.TensorProtocol], set[str]]] = {
    "floats": ([entry("x", T.FLOAT, (N, 4)), entry("y", T.FLOAT, (4,))], [], {"Add"}),
    "near constants": ([entry("x", T.FLOAT, (6, N)), entry("i", T.INT64, (40,))], NEAR, {"Clip"}),
    "half": ([entry("x", T.FLOAT16, (N, M)), entry("b", T.BFLOAT16, (3, 8))], NEAR[:1], {"Mul"}),
    "double": ([entry("x", T.DOUBLE, (5, 7)), entry("s", T.DOUBLE, ())], [], {"Mul"}),
    "integers": ([entry("i", T.INT64, (N,)), entry("j", T.INT8, (20,)), entry("u", T.UINT8, (20,))], NEAR, {"Add"}),
    "divided": ([entry("i", T.INT64, (N,)), entry("j", T.INT32, (20,))], NEAR, {"Div"}),
    "flags": ([entry("c", T.BOOL, (N, M)), entry("one", T.BOOL, ())], [], {"Where"}),
    "texts": ([entry("t", T.STRING, (N, 3))], [], {"Identity"}),
    "complex": ([entry("z", T.COMPLEX64, (N, 3))], [], {"Mul"}),
    "sizes": ([entry("s", T.INT64, (3,), (N, 4, None)), entry("x", T.FLOAT, (N, 4, 2))], [], {"Reshape"}),
    "known sizes": ([entry("s", T.INT64, (2,), (N, multiply(M, 2))), entry("x", T.FLOAT, (N, M))], [], {"Reshape"}),
    "a mask": ([entry("m", T.FLOAT, (N, 1, M), hides=True), entry("x", T.FLOAT, (N, 4, M))], [], {"Add", "Softmax"}),
    "a half mask": ([entry("m", T.FLOAT16, (N, M), hides=True), entry("i", T.INT64, (N, M))], [], {"Softmax"}),
    "unknown type": ([entry("x", None, (N, 3)), entry("y", T.FLOAT, (3,))], [], {"Identity"}),
    "unknown rank": ([entry("x", T.FLOAT, None), entry("y", T.FLOAT, (2,))], [], {"Add"}),
    "windows": ([entry("x", T.FLOAT, (floor_quotient(subtract(N, 128), 2), add(M, N)))], [], {"Slice"}),
    "an impossible size": ([entry("x", T.FLOAT, (subtract(3, N), 2))], [], {"Slice"}),
    "a quotient by a size": ([entry("x", T.FLOAT, (floor_quotient(12, subtract(N, 4)),))], [], {"Slice"}),
    "a long axis": ([entry("x", T.FLOAT, (N, multiply(M, (1 << 22) + 1)))], [], {"Add"}),
    "past": ([entry("p", T.FLOAT, (symbol("past"), 2)), entry("t", T.FLOAT, (symbol("past + N"), N))], [], {"Concat"}),
    "nothing": ([], [], set()),
}  # fmt: skip


def summary(array: np.ndarray) -> list[object]:
    """The type, the shape, and what numbers there are; none that depends on how a library computes a logarithm."""
    told: list[object] = [array.dtype.name, list(array.shape)]
    if array.dtype.kind in "OU":
        return [*told, sorted(set(array.reshape(-1).tolist()))]
    if array.dtype.kind == "c":
        return [*told, len(set(array.reshape(-1).tolist()))]
    if array.dtype.kind in "biu":
        return [*told, zlib.crc32(array.astype(np.int64).tobytes())]
    wide = array.astype(np.float64)
    counts = [np.isnan(wide), np.isposinf(wide), np.isneginf(wide), wide == 0, np.signbit(wide), np.abs(wide) > 1e3,
              np.abs(wide) < 1e-6, wide == np.round(wide)]  # fmt: skip
    return [*told, *(int(np.count_nonzero(each)) for each in counts), len(np.unique(wide))]


@pytest.mark.parametrize("name", BORDERS)
def test_borders_get_the_values_they_got_before(name: str) -> None:
    border, constants, operators = BORDERS[name]
    generator = Generator(border, constants, frozenset(operators))
    ways = list(generator.ways())
    told = [f"{dict(way.sizes)} {way.integers} {way.dtype.name} {way.rank}" for way in ways]
    found: dict[str, object] = {
        f"{name}: ways": [len(ways), zlib.crc32("\n".join(told).encode()), *told[:3]],
        f"{name}: other sizes": [dict(sizes) for sizes in generator.other_sizes(ways[0].sizes)],
        f"{name}: edge sizes": [dict(sizes) for sizes in generator.edge_sizes(ways[0].sizes)],
        f"{name}: types": {each: dtype.name for each, dtype in generator.types(ways[-1]).items()},
    }
    for style, way, needs in itertools.product(Style, (ways[0], ways[len(ways) // 2], ways[-1]), (True, False)):
        for seed in (0, 1):
            values = generator.generate(way, style, seed, needs_floats=needs)
            summaries = None if values is None else {each: summary(array) for each, array in values.items()}
            key = f"{name}: {style.value}{'' if needs else ', only shapes'}"
            known = found.setdefault(key, [])
            assert isinstance(known, list)
            known.append(summaries if style is Style.NORMAL else zlib.crc32(repr(summaries).encode()))
    recorded.check("border_values", found)


def test_special_numbers_are_among_the_values() -> None:
    """The styles keep what their names promise, in every type."""
    for dtype in (T.FLOAT, T.FLOAT16, T.BFLOAT16, T.DOUBLE):
        generator = Generator([entry("x", dtype, (40, 40), hides=True)], NEAR, frozenset({"Add"}))
        way = Way({}, (-8, 9), dtype, 2)
        values = {style: np.asarray((generator.generate(way, style, 3) or {})["x"], np.float64) for style in Style}
        assert np.isfinite(values[Style.NORMAL]).all()
        assert np.isfinite(values[Style.WIDE]).all()
        assert np.isfinite(values[Style.TIED]).all()
        assert np.isnan(values[Style.SPECIAL]).any()
        assert not np.isnan(values[Style.EXTREME]).any()
        for style in (Style.SPECIAL, Style.EXTREME):
            assert {np.inf, -np.inf, 0.0, 6.0, 0.5, 7.0} <= set(values[style].reshape(-1).tolist())
        assert {6.0, 5.0, 7.0, 12.0} <= set(values[Style.TIED].reshape(-1).tolist())
        assert np.ptp(values[Style.FLAT], axis=1).max() < 0.1
        assert (values[Style.HIDING] <= 0).all()
        assert np.isneginf(values[Style.HIDING]).all(axis=1).any()
