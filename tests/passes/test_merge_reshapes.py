"""Consecutive views become one equivalent view, for every form of their targets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.ir.ops import VIEWS
from sardonyx.passes.cleanup.eliminate_noop_shape import EliminateNoopShape
from sardonyx.passes.folding.fold_weight_views import FoldWeightViews
from sardonyx.passes.layout.merge_reshapes import MergeReshapes

PASSES = (MergeReshapes(),)
CONSTANTS = """<
    int64[3] s16 = {16, 2, 2}, int64[3] zeros = {0, 0, -1}, int64[3] z2 = {0, 2, -1}, int64[2] flat = {0, -1},
    int64[1] all = {-1}, int64[2] rows = {-1, 8}, int64[3] b12 = {1, 2, -1}, int64[1] a0 = {0}, int64[1] a1 = {1},
    int64[1] m1 = {-1}, int64[2] a02 = {0, 2}
>"""

# Two views, the type of x, the rank after them, and the number of remaining views.
PAIRS = [
    ("Reshape(x, s16)", "Reshape(a, zeros)", "float[2, 4, 8]", 3, 1),  # a 0 copies the inner result's dim, not x's
    ("Reshape(x, s16)", "Reshape(a, zeros)", "float[N, 4, 8]", 3, 1),
    ("Reshape(x, all)", "Reshape(a, rows)", "float[N, M]", 2, 1),
    ("Reshape(x, flat)", "Reshape(a, z2)", "float[N, 4, 8]", 3, 1),
    ("Reshape(x, rows)", "Reshape(a, flat)", "float[N, 4, 8]", 2, 1),  # the copied dim is N*4, left to -1
    ("Reshape(x, rows)", "Reshape(a, flat)", "float[3, 4, 8]", 2, 1),
    ("Flatten(x)", "Reshape(a, z2)", "float[N, 4, 8]", 3, 1),
    ("Unsqueeze(x, a0)", "Unsqueeze(a, a1)", "float[N, M]", 4, 1),
    ("Unsqueeze(x, a02)", "Unsqueeze(a, m1)", "float[N, M]", 5, 1),
    ("Unsqueeze(x, m1)", "Unsqueeze(a, a02)", "float[N, M]", 5, 1),
    ("Unsqueeze(x, a1)", "Squeeze(a, a1)", "float[N, M]", 2, 0),
    ("Unsqueeze(x, a0)", "Squeeze(a, m1)", "float[N, 1]", 2, 1),
    ("Squeeze(x, a1)", "Unsqueeze(a, a1)", "float[N, 1, M]", 3, 0),
    ("Squeeze(x, m1)", "Unsqueeze(a, m1)", "float[N, M, 1]", 3, 0),
    ("Squeeze(x)", "Unsqueeze(a, a0)", "float[1, 4]", 2, 0),
    ("Unsqueeze(x, a0)", "Squeeze(a)", "float[N, M]", 2, 2),  # N or M may be 1 as well
    ("Flatten(x)", "Flatten <axis = 0> (a)", "float[N, 4, 8]", 2, 1),
    ("Unsqueeze(x, a1)", "Flatten <axis = 2> (a)", "float[N, 4]", 2, 0),
]


@pytest.mark.parametrize(("first", "second", "kind", "rank", "left"), PAIRS)
def test_two_views_become_one_or_none(first: str, second: str, kind: str, rank: int, left: int) -> None:
    dims = ", ".join(f"D{axis}" for axis in range(rank))
    text = graph_text(f"""agraph ({kind} w) => (float[{dims}] y) {CONSTANTS} {{
        x = Neg(w)  a = {first}  b = {second}  y = Neg(b) }}""")
    model, _ = run_passes(text, PASSES)
    assert sum(op in VIEWS for op in op_types(model)) == left
    sizes = {"N": 2, "M": 12}
    shape = [sizes[dim] if dim in sizes else int(dim) for dim in kind[6:-1].split(", ")]
    assert_same(text, model, feeds={"w": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)})


def test_an_intermediate_output_stays() -> None:
    body = "{ a = Reshape(x, flat)  y = Reshape(a, all) }"
    text = graph_text(f"agraph (float[N, 4, 8] x) => (float[A, B] a, float[C] y) {CONSTANTS} {body}")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["Reshape", "Reshape"]
    assert "the value in between is read elsewhere" in reasons(log)
    assert_same(text, model)


def test_an_intermediate_value_that_a_body_reads_stays() -> None:
    text = graph_text(f"""agraph (bool c, float[N, 4, 8] x) => (float[A] y, float[B, C] z) {CONSTANTS} {{
        a = Reshape(x, flat)
        y = Reshape(a, all)
        z = If(c) <
            then_branch = t () => (float[E, F] r) {{ r = Neg(a) }},
            else_branch = e () => (float[G, H] s) {{ s = Abs(a) }}
        >
    }}""")
    model, log = run_passes(text, PASSES)
    assert op_types(model) == ["Reshape", "Reshape", "If"]
    assert "the value in between is read elsewhere" in reasons(log)


def test_an_inverse_pair_is_removed_even_if_others_read_the_intermediate_value() -> None:
    text = graph_text(f"""agraph (float[N, 4] w) => (float[N, 4] y, float[N, 1, 4] z) {CONSTANTS} {{
        x = Neg(w)  a = Unsqueeze(x, a1)  b = Squeeze(a, a1)  y = Neg(b)  z = Neg(a) }}""")
    model, _ = run_passes(text, PASSES)
    assert "Squeeze" not in op_types(model)
    assert_same(text, model)


def test_zeros_that_mean_zero_are_kept() -> None:
    text = graph_text("""agraph (float[0, 4] w) => (float[A, B, C] y) <int64[1] f = {0}, int64[3] t = {3, 0, 2}> {
        x = Neg(w)  a = Reshape <allowzero = 1> (x, f)  b = Reshape <allowzero = 1> (a, t)  y = Neg(b) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Reshape", "Neg"]
    assert_same(text, model)


def test_a_computed_inner_target_does_not_matter_but_a_computed_outer_one_does() -> None:
    text = graph_text(f"""agraph (float[N, 4] w, int64[2] t) => (float[A] y) {CONSTANTS} {{
        x = Neg(w)  a = Reshape(x, t)  b = Reshape(a, all)  y = Neg(b) }}""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Reshape", "Neg"]
    turned = text.replace("Reshape(x, t)", "Reshape(x, all)").replace("Reshape(a, all)", "Reshape(a, t)")
    turned = turned.replace("float[A] y", "float[A, B] y")
    model, log = run_passes(turned, PASSES)
    assert op_types(model) == ["Neg", "Reshape", "Reshape", "Neg"]
    assert "the outer target is computed" in reasons(log)


def test_a_copied_dim_that_the_source_does_not_have_becomes_minus_one() -> None:
    text = graph_text("""agraph (float[N, 4, 8] w) => (float[A, B, C] y)
        <int64[3] parts = {-1, 2, 8}, int64[4] windows = {-1, 2, 2, 8},
        int64[3] rows = {0, 4, 8}> {
            x = Neg(w)  a = Reshape(x, parts)  v = Abs(a)
            b = Reshape(v, windows)  c = Reshape(b, rows)  y = Neg(c) }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Reshape", "Abs", "Reshape", "Neg"]
    assert_same(text, model)


def test_axes_as_attributes_stay_attributes() -> None:
    text = graph_text(
        "agraph (float[N] w) => (float[A, B, C] y)"
        "{ x = Neg(w)  a = Unsqueeze <axes = [0]> (x)  b = Unsqueeze <axes = [2]> (a)  y = Neg(b) }",
        11,
    )
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Unsqueeze", "Neg"]
    assert_same(text, model)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, list[int]]]]:
    """A shape and a valid sequence of views."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    start, steps = list(shape), []
    for _ in range(draw(st.integers(2, 4))):
        op = draw(st.sampled_from(sorted(VIEWS)))
        ones = [axis for axis, dim in enumerate(shape) if dim == 1]
        if op == "Unsqueeze":
            axes = [draw(st.integers(-len(shape) - 1, len(shape)))]
            place = axes[0] % (len(shape) + 1)
            shape = [*shape[:place], 1, *shape[place:]]
        elif op == "Squeeze" and ones:
            axes = [draw(st.sampled_from(ones))]
            shape = [dim for axis, dim in enumerate(shape) if axis != axes[0]]
        elif op == "Flatten":
            axes = [draw(st.integers(0, len(shape)))]
            shape = [math.prod(shape[: axes[0]]), math.prod(shape[axes[0] :])]
        else:
            op, goal = "Reshape", draw(st.permutations(shape))
            copies = [old == new and draw(st.booleans()) for old, new in zip(shape, goal, strict=True)]
            axes = [0 if copy else dim for copy, dim in zip(copies, goal, strict=True)]
            if goal and draw(st.booleans()):
                axes[draw(st.integers(0, len(goal) - 1))] = -1
            shape = list(goal)
        steps.append((op, axes))
    return start, steps


@pytest.mark.slow
@settings(max_examples=60)
@given(chain=chains(), dynamic=st.booleans())
def test_any_chain_of_views_keeps_its_function_and_becomes_at_most_one(
    chain: tuple[list[int], list[tuple[str, list[int]]]], dynamic: bool
) -> None:
    shape, steps = chain
    lines, constants, value = [], [], "x"
    for index, (op, numbers) in enumerate(steps):
        if op == "Flatten":
            lines.append(f"v{index} = Flatten <axis = {numbers[0]}> ({value})")
        else:
            constants.append(f"int64[{len(numbers)}] c{index} = {{{', '.join(map(str, numbers))}}}")
            lines.append(f"v{index} = {op}({value}, c{index})")
        value = f"v{index}"
    dims = ", ".join("N" if dynamic and axis == 0 else str(dim) for axis, dim in enumerate(shape))
    rank = _final_rank(len(shape), steps)
    result = f"float[{', '.join(f'D{axis}' for axis in range(rank))}]" if rank else "float"
    header = f"<{', '.join(constants)}>" if constants else ""
    text = graph_text(
        f"agraph (float[{dims}] w) => ({result} y) {header} {{ x = Neg(w)  {'  '.join(lines)}  y = Neg({value}) }}"
    )
    model, _ = run_passes(text, (EliminateNoopShape(), MergeReshapes(), FoldWeightViews()))
    if not dynamic:
        assert sum(op in VIEWS for op in op_types(model)) <= 1
    assert_same(text, model, feeds={"w": np.arange(math.prod(shape), dtype=np.float32).reshape(shape)})


def _final_rank(rank: int, steps: list[tuple[str, list[int]]]) -> int:
    for op, numbers in steps:
        rank = {"Flatten": 2, "Reshape": len(numbers), "Squeeze": rank - 1, "Unsqueeze": rank + 1}[op]
    return rank
