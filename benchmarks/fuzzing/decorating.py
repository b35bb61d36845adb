"""Operators that change nothing, or nearly nothing: what stands between the nodes that a pass looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fuzzing.draft import Draft, Value


def _same_type(draft: Draft, value: Value) -> Value:
    return draft.cast(value, value.dtype)


def _there_and_back(draft: Draft, value: Value) -> Value:
    kinds = (np.float64, np.float16, np.float32, np.int32, np.int64, np.bool_, np.uint8, np.int8)
    return draft.cast(draft.cast(value, draft.rng.choice(kinds)), value.dtype)


def _times_one(draft: Draft, value: Value) -> Value:
    op_type, number = draft.rng.choice((("Mul", 1), ("Div", 1), ("Add", 0), ("Sub", 0), ("Pow", 1), ("Add", -0.0)))
    return draft.op(op_type, value, draft.scalar(number, value.dtype))


def _same_shape(draft: Draft, value: Value) -> Value:
    if draft.chance(0.5):
        return draft.op("Reshape", value, draft.op("Shape", value))
    return draft.op("Expand", value, draft.op("Shape", value))


def _grown_and_shrunk(draft: Draft, value: Value) -> Value:
    axis = draft.rng.randrange(value.rank + 1)
    return draft.squeeze(draft.unsqueeze(value, axis), axis)


def _turned_twice(draft: Draft, value: Value) -> Value:
    perm = draft.rng.sample(range(value.rank), value.rank)
    return draft.transpose(draft.transpose(value, *perm), *(int(axis) for axis in np.argsort(perm)))


def _all_of_it(draft: Draft, value: Value) -> Value:
    axis = draft.rng.randrange(max(value.rank, 1))
    return draft.slice(value, [0], [draft.rng.choice((2**63 - 1, 2**31 - 1, 1000))], [axis], [1])


DECORATIONS = (
    lambda draft, value: draft.op("Identity", value),
    lambda draft, value: draft.op("Dropout", value),
    _same_type,
    _there_and_back,
    _times_one,
    _same_shape,
    _grown_and_shrunk,
    _turned_twice,
    _all_of_it,
)
