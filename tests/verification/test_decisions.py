"""What a comparison decides about outputs, in many forms of differences: the same as before, text by text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import recorded
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Choice
from sardonyx.verification.exclusions import Padding, Ties, hidden_positions, is_as_close, keyless_padding, nearby
from sardonyx.verification.output_comparison import OutputComparer, Precise
from sardonyx.verification.tolerance import Deviation, Limit, beyond_rounding, epsilon, float_difference, limit, within

DTYPES = (np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64)
SHAPES = ((4, 8), (40,), (2, 3, 16), (), (0, 3), (1, 24), (2, 3, 4, 5))
FACTORS = (0.02, 0.3, 0.9, 1.2, 4.5, 30.0, 2000.0)  # of the allowed error


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Some of them zero, and a row of small ones."""
    array = np.asarray(rng.standard_normal(shape))
    if array.ndim and array.size:
        array[..., :1] *= 1e-3
        array.flat[array.size // 2] = 0
    return array.astype(dtype)


def one_element(a: Array, step: Array, rng: np.random.Generator) -> Array:
    return np.where(np.arange(a.size).reshape(a.shape) == a.size // 3, a + step, a)


def everywhere(a: Array, step: Array, rng: np.random.Generator) -> Array:
    return a + step * np.sign(rng.standard_normal(a.shape))


def one_row(a: Array, step: Array, rng: np.random.Generator) -> Array:
    b = a.copy()
    b[..., -1:] += np.broadcast_to(step, a.shape)[..., -1:]
    return b


def some(a: Array, step: Array, rng: np.random.Generator) -> Array:
    return np.where(rng.random(a.shape) < 0.25, a + step, a)


def scaled(a: Array, step: Array, rng: np.random.Generator) -> Array:
    return a * (1 + float(np.max(step, initial=0.0)) / 2)


def placed(number: float) -> Callable[[Array, Array, np.random.Generator], Array]:
    """A number in two places of the result, or of the reference if it is negative infinity."""

    def change(a: Array, step: Array, rng: np.random.Generator) -> Array:
        b = a.copy()
        b.reshape(-1)[1:3] = number
        return b

    return change


CHANGES = {
    "one element": one_element, "everywhere": everywhere, "one row": one_row, "some": some, "scaled": scaled,
    "NaN": placed(np.nan), "infinity": placed(np.inf), "zeros": placed(0.0),
}  # fmt: skip


def changed(rng: np.random.Generator, a: Array, what: str, factor: float) -> Array:
    """The array with a difference of so many times the error allowed."""
    if a.ndim == 0 and what == "one row":
        what = "everywhere"
    allowed = limit(a.dtype, Accuracy.REASSOCIATES).rtol
    wide = a if a.dtype.kind == "c" else a.astype(np.float64)
    size = np.abs(wide)
    step = factor * allowed * (size + float(np.median(size) if size.size else 0))
    with np.errstate(all="ignore"):
        return np.asarray(CHANGES[what](wide, step, rng)).astype(a.dtype)


def told(comparer: OutputComparer, lines: list[str]) -> list[object]:
    """All that a comparison says."""
    (output,) = comparer.outputs()
    return [lines, comparer.notes, comparer.left_out, output.passed, list(output.where), f"{output.allowed:.2g}"]


def wide(array: Array) -> Array:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


@pytest.mark.parametrize("part", range(4))
def test_floats_are_compared_as_before(part: int) -> None:
    found: dict[str, object] = {}
    for number in range(part * 100, part * 100 + 100):
        choose, rng = Random(number), np.random.default_rng(number)
        dtype, shape = choose.choice(DTYPES), choose.choice(SHAPES)
        what, factor = choose.choice(list(CHANGES)), choose.choice(FACTORS)
        accuracy = choose.choice((*Accuracy, Accuracy.REASSOCIATES, Accuracy.REASSOCIATES))
        a = numbers(rng, shape, dtype)
        b = changed(rng, a, what, factor)
        noise = round(factor * choose.choice((0.0, 0.1, 0.4, 1.0, 3.0)), 3)
        rounded = changed(rng, a, "everywhere", noise)
        far = changed(rng, a, what, choose.choice((0.0, 0.0, 0.5, 8.0)))
        known = {
            "nothing": None,
            "doubles": Precise([wide(rounded)], [wide(rounded) + (wide(far) - wide(a))]),
            "doubles of one": Precise([wide(rounded)], roundings=lambda a=a, r=rounded: [([a], [r])]),
            "roundings": Precise(roundings=lambda a=a, r=rounded, f=far: [([a], [r]), ([a], [f])]),
            "nearby": Precise([wide(a)], None, nearby=lambda r=rounded, f=far: [[f], [r]]),
            "all": Precise([wide(rounded)], lambda f=far: [wide(f)], lambda a=a, r=rounded: [([a], [r])]),
        }
        how = choose.choice(list(known))
        flags = {name: choose.random() < 0.25 for name in ("exported", "proven")}
        strict, hides = choose.random() < 0.25, choose.random() < 0.2
        if hides and a.ndim and a.size and dtype is not np.complex64:
            a = a.copy()
            a[0] = np.nan
        padding = []
        if choose.random() < 0.2 and a.ndim:
            where = np.zeros((a.shape[0], *(1,) * (a.ndim - 1)), bool)
            where[:1] = True
            padding = [Padding(where, pooled=choose.random() < 0.5)]
        other = changed(rng, a, "some", 30.0)
        ties = Ties(shuffled=lambda o=other: [[o]]) if choose.random() < 0.2 else Ties()
        comparer = OutputComparer(["y"], accuracy, frozenset(), **flags)
        with np.errstate(all="ignore"):
            lines = comparer.compare(
                [a], [b], partial(known.get, how), hides_rows=hides, padding=padding, ties=ties, strict=strict
            )
        on = [name for name, is_on in {**flags, "strict": strict, "hides": hides}.items() if is_on]
        key = f"{number}: {np.dtype(dtype).name}{list(shape)} {what} × {factor}, {accuracy.value}, {how} × {noise} {on}"
        found[key] = told(comparer, lines)
    recorded.check("float_comparisons", found)


def test_discrete_outputs_are_compared_as_before() -> None:
    found: dict[str, object] = {}
    for number in range(120):
        choose, rng = Random(number), np.random.default_rng(number)
        shape = choose.choice(((6,), (2, 5), (), (0, 2), (3, 4)))
        kind = choose.choice(("int64", "int32", "uint8", "bool", "object"))
        a = np.asarray(rng.integers(0, 5, shape)).astype(kind)
        b = a.copy()
        if choose.random() < 0.8 and a.size:
            b.reshape(-1)[: choose.choice((1, 2, 6))] = choose.choice((0, 1, 4))
        other = a.copy()
        other.reshape(-1)[: choose.choice((0, 1, 6))] = 3
        doubles = [wide(a) if kind != "object" else a], [wide(other) if kind != "object" else other]
        known = {
            "nothing": None,
            "doubles": Precise(*doubles),
            "roundings": Precise(roundings=lambda a=a, o=other: [([a], [o]), ([o], [o])]),
        }
        how, accuracy = choose.choice(list(known)), choose.choice(list(Accuracy))
        ties = Ties()
        if choose.random() < 0.4 and a.ndim == 2 and a.size and kind == "int64":
            scores = np.round(rng.random((a.shape[0], 5)), 1)
            mine, theirs = (Choice(scores, 1, each) for each in (a, b))
            ties = Ties(lambda m=mine: [m], lambda t=theirs: [t] if t.indices.sum() % 2 else [])
        elif choose.random() < 0.3:
            ties = Ties(shuffled=lambda o=other: [[o]])
        comparer = OutputComparer(["y"], accuracy, frozenset())
        lines = comparer.compare([a], [b], partial(known.get, how), ties=ties)
        found[f"{number}: {kind}{list(shape)}, {accuracy.value}, {how}"] = told(comparer, lines)
    recorded.check("discrete_comparisons", found)


@pytest.mark.parametrize("part", range(3))
def test_deviations_are_measured_as_before(part: int) -> None:
    """Every rule of the tolerance, with and without measured rounding."""
    found: dict[str, object] = {}
    for number in range(part * 100, part * 100 + 100):
        choose, rng = Random(number), np.random.default_rng(number)
        dtype, shape = choose.choice(DTYPES[:5]), choose.choice(SHAPES)
        what, factor = choose.choice(list(CHANGES)), choose.choice(FACTORS)
        a = numbers(rng, shape, dtype)
        if choose.random() < 0.3 and a.size:
            a.reshape(-1)[choose.randrange(a.size)] = np.inf
        with np.errstate(all="ignore"):
            b = changed(rng, a, what, factor)
            accuracy = choose.choice((*Accuracy, Accuracy.REASSOCIATES))
            allowed = limit(a.dtype, accuracy)
            if choose.random() < 0.4:  # so that the mean decides
                allowed = Limit(allowed.rtol * 64, allowed.rms)
            deviation = Deviation(a, b, allowed, local=choose.random() < 0.8)
            moves = np.abs(deviation._error) * choose.choice((0.05, 0.2, 0.3, 2.0))
            moves = moves if choose.random() < 0.5 else np.roll(moves, 1)
            difference = float_difference(a, b)
            texts = [deviation.excess(), deviation.excess(moves), within(difference, allowed)]
            far = int(np.count_nonzero(beyond_rounding(a, b, accuracy)))
            worst = [None if place is None else [*place.index, f"{place.ratio:.2g}"]
                     for place in (deviation.worst(), deviation.worst(moves))]  # fmt: skip
            share = f"{deviation.loud_share(moves, 0.01):.2f}"
        sizes = [f"{each:.2g}" for each in (difference.max_abs, difference.max_rel, difference.max_ulp, difference.rms)]
        key = f"{number}: {np.dtype(dtype).name}{list(shape)} {what} × {factor}, {accuracy.value}"
        found[key] = [*texts, *worst, far, share, *sizes, difference.pattern]
    recorded.check("deviations", found)


def hidden_somewhere(choose: Random, shape: tuple[int, ...], hidden: Array) -> Array:
    """What a mask hides, on some axes of an output where it fits."""
    hidden = hidden[:, -3:] if 3 in shape else hidden
    fitting: list[Array] = []
    for array in (hidden, hidden.T, hidden.reshape(-1), hidden.T.reshape(-1), hidden.any(1)):
        for axes in itertools.permutations(range(len(shape)), array.ndim):
            if all(shape[axis] == size for axis, size in zip(axes, array.shape, strict=True)):
                ordered = array if axes == tuple(sorted(axes)) else array.T
                view = [size if axis in axes else 1 for axis, size in enumerate(shape)]
                fitting.append(np.broadcast_to(ordered.reshape(view), shape).copy())
    return choose.choice(fitting) if fitting else np.zeros(shape, bool)


def test_padding_is_found_as_before() -> None:
    found: dict[str, object] = {}
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    left, ends = mask[:1].repeat(2, 0), [np.roll(mask, 1, 1), mask == 0]
    masks = {"one": [mask], "ends": ends, "left": [left], "none": [mask * 0 + 1]}
    shapes = (
        (2, 5, 7), (5, 2, 7), (2, 5), (5, 2), (10, 7), (4, 10), (2, 7), (7, 2), (2, 3, 4), (2, 4, 5, 2), (6, 3), (10,),
        (2,), (2, 2, 7), (5, 5), (),
    )  # fmt: skip
    for number in range(400):
        choose, rng = Random(number), np.random.default_rng(number)
        shape, which = choose.choice(shapes), choose.choice(list(masks))
        hidden = hidden_positions(masks[which])
        a = np.asarray(rng.standard_normal(shape))
        where = np.zeros(shape, bool)
        if hidden and choose.random() < 0.7:
            where = hidden_somewhere(choose, shape, choose.choice(hidden))
        if where.size and choose.random() < 0.2:
            where.reshape(-1)[choose.randrange(where.size)] ^= True
        b = np.where(where, a + 1, a)
        lengths = choose.choice(((3, 5), (5,), (3,), (7,), ()))
        (padding,) = keyless_padding([a], [b], hidden, lengths)
        key = f"{number}: {list(shape)} {which} {list(lengths)}, {np.count_nonzero(where)} moved"
        found[key] = None if padding is None else [padding.count, padding.pooled, list(padding.where.shape)]
    recorded.check("padding", found)


@pytest.mark.parametrize("value", [[np.zeros(2)], None, np.zeros(3)])
def test_what_is_not_a_tensor_of_the_same_shape_has_no_padding(value: Any) -> None:
    hidden = hidden_positions([np.array([[0, 1]])])
    assert keyless_padding([np.zeros(2)], [value], hidden, (2,)) == [None]
    assert keyless_padding([value], [np.zeros(2)], hidden, (2,)) == [None]


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("reference", "result", "exact", "other", "close"),
    [
        ([1.0, 2.0], [1.1, 2.1], [1.05, 2.05], [1.05, 2.05], True),
        ([1.0, 2.0], [1.3, 2.3], [1.05, 2.05], [1.05, 2.05], False),
        ([1.0, 2.0], [1.0, 2.5], [1.0, 2.0], [1.0, 2.0], False),
        ([1.0, INF], [1.0, INF], [1.0, INF], [1.0, INF], True),
        ([1.0, INF], [1.0, 2.0], [1.0, INF], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, NAN], [1.0, 2.0], [1.0, NAN], False),
        ([1.0, 2.0], [1.0, 9.0], [1.0, NAN], [1.0, 2.0], True),  # nothing is known there
        ([1.0, 2.0], [1.0, 9.0], [1.0, 2.0], [1.0, NAN], True),
        ([1.0, 2.0], [1.0, 2.0], [1.0], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0], False),
        ([1.0] * 8 + [2.0], [1.0] * 8 + [2.3], [1.0] * 8 + [1.9], [1.0] * 8 + [2.0], True),
        ([1.1] * 8 + [2.0], [1.3] * 8 + [2.9], [1.0] * 9, [1.0] * 9, True),
        ([], [], [], [], True),
    ],
)  # fmt: skip
def test_a_result_is_close_if_it_is_no_more_than_four_times_as_far(
    reference: list[float], result: list[float], exact: list[float], other: list[float], close: bool
) -> None:
    arrays = [np.array(each, np.float64) for each in (reference, result, exact, other)]
    assert is_as_close((arrays[2], arrays[3]), arrays[0], arrays[1]) == close


def test_inputs_nearby_change_finite_floats_by_one_step() -> None:
    feeds = {"x": np.array([1.0, INF, NAN, 0.0] * 8, np.float32), "i": np.arange(3), "s": [np.ones(2, np.float32)]}
    many = list(nearby(feeds))
    assert len(many) == 4
    for changed_feeds in many:
        x = np.asarray(changed_feeds["x"])
        assert changed_feeds["i"] is feeds["i"]
        assert changed_feeds["s"] is feeds["s"]
        assert x.dtype == np.float32
        np.testing.assert_array_equal(np.isfinite(x), np.isfinite(feeds["x"]))
        steps = (x[::4].view(np.int32) - feeds["x"][::4].view(np.int32)).tolist()
        assert set(steps) == {-1, 0, 1}
    assert list(nearby({"i": np.arange(3)})) == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_the_limit_is_a_bound_that_is_reached(dtype: type) -> None:
    """An element at the limit passes, and one beyond it does not."""
    for accuracy in (Accuracy.REASSOCIATES, Accuracy.APPROXIMATES):
        rtol = limit(np.dtype(dtype), accuracy).rtol
        reference = np.ones(1000, np.float64)
        for factor, passes in ((0.98, True), (1.02, False)):
            result = reference.copy()
            result[7] += 2 * rtol * factor
            deviation = Deviation(reference, result, Limit(rtol, rtol))
            assert (deviation.excess() is None) == passes
    assert epsilon(np.dtype(dtype)) > 0


@pytest.mark.parametrize(
    ("exact", "result", "is_known"),
    [
        ([np.ones(2)], [np.ones(2)], True),
        ([np.ones(2)], [None], False),
        ([None], [np.ones(2)], False),
        ([np.ones(3)], [np.ones(2)], False),
        ([np.ones(2)], [np.ones(3)], False),
        ([np.ones(3)], [np.ones(3)], False),
        (None, [np.ones(2)], False),
        ([np.ones(2)], None, False),
    ],
)
def test_both_outputs_are_known_in_double_precision_or_none(exact: Any, result: Any, is_known: bool) -> None:
    for given in (result, lambda: result):
        assert (Precise(exact, given).both((0,), (2,)) is not None) == is_known
