"""Consecutive slices become one, for every sign of their ranges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.layout.merge_slices import MergeSlices

PASSES = (MergeSlices(),)


def sliced(kind: str, ranges: list[tuple[int, int, int, int]]) -> tuple[int, list[str]]:
    """The number of remaining Slices, and the reasons."""
    constants, body = list[str](), list[str]()
    for place, (axis, start, end, step) in enumerate(ranges):
        names = [f"{name}{place}" for name in ("axis", "start", "end", "step")]
        numbers = zip(names, (axis, start, end, step), strict=True)
        constants += [f"int64[1] {name} = {{{value}}}" for name, value in numbers]
        axes, starts, ends, steps = names
        body.append(f"v{place + 1} = Slice(v{place}, {starts}, {ends}, {axes}, {steps})")
    text = graph_text(f"""agraph (float{kind} x) => (float[A, B] y) <{", ".join(constants)}> {{
        v0 = Neg(x)  {"  ".join(body)}  y = Neg(v{len(ranges)}) }}""")
    model, log = run_passes(text, PASSES)
    assert_same(text, model)
    return op_types(model).count("Slice"), reasons(log)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_chain_of_slices(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 3))
    edge = st.one_of(st.integers(-9, 9), st.sampled_from([2**31 - 1, 2**63 - 1, -(2**31)]))
    row = [
        (
            data.draw(st.sampled_from([0, 1, -1])),
            data.draw(edge),
            data.draw(edge),
            data.draw(st.sampled_from([1, 1, 2, 3])),
        )
        for _ in range(count)
    ]
    assert sliced("[7, 6]", row)[0] == 1


def test_backward_steps_along_other_axes() -> None:
    assert sliced("[7, 6]", [(0, -1, -(2**63), -2), (1, 1, 5, 1)])[0] == 1
    left, why = sliced("[7, 6]", [(0, -1, -(2**63), -2), (0, 1, 5, 1)])
    assert left == 2
    assert any("step is negative" in reason for reason in why)


def test_slices_of_a_dynamic_axis_become_one() -> None:
    assert sliced("[N, 6]", [(0, 1, -1, 1), (1, 1, -1, 1)])[0] == 1
    assert sliced("[N, 6]", [(0, 1, 2**63 - 1, 1), (0, 1, 2**63 - 1, 1)])[0] == 2


def test_an_intermediate_value_that_others_read_stays() -> None:
    constants = "<int64[1] one = {1}, int64[1] five = {5}>"
    text = graph_text(f"""agraph (float[7, 6] x) => (float[A, B] y, float[C, D] z) {constants} {{
        a = Slice(x, one, five, one)  y = Slice(a, one, five, one)  z = Neg(a) }}""")
    model, log = run_passes(text, PASSES)
    assert op_types(model).count("Slice") == 2
    assert "the value in between is read elsewhere" in reasons(log)
