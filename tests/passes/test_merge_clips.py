"""Bounds after bounds are merged to what both let through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.normalisations import constant
from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.norms.merge_clips import MergeClips

PASSES = (MergeClips(),)
VALUES = {"x": np.array([-9, -4, -2.5, -1, -0.0, 0, 0.5, 1, 2.5, 4, 6, 9], np.float32)}


def written(low: int | None, high: int | None, place: int, opset: int) -> tuple[str, str]:
    """One Clip or Relu on `v{place}`, and the constants it needs."""
    bounds = {"min": low, "max": high}
    if opset < 11:
        attributes = ", ".join(f"{name} = {bound}.0" for name, bound in bounds.items() if bound is not None)
        return f"v{place + 1} = Clip <{attributes}> (v{place})", ""
    names = ", ".join("" if bound is None else f"{name}{place}" for name, bound in bounds.items())
    given_ = "".join(f", float {name}{place} = {{{bound}}}" for name, bound in bounds.items() if bound is not None)
    return f"v{place + 1} = Clip(v{place}, {names})", given_


ranges = st.one_of(
    st.just("Relu"),
    st.tuples(st.one_of(st.none(), st.integers(-5, 5)), st.one_of(st.none(), st.integers(-5, 5))).filter(
        lambda pair: pair != (None, None) and (None in pair or pair[0] <= pair[1])
    ),
)


@settings(max_examples=60)
@given(chain=st.lists(ranges, min_size=2, max_size=4), opset=st.sampled_from([10, 11, 13, 18]))
def test_any_chain_becomes_one(chain: list[object], opset: int) -> None:
    lines, constants = ["v0 = Identity(x)"], "float unused = {0}"
    for place, one in enumerate(chain):
        if one == "Relu":
            lines.append(f"v{place + 1} = Relu(v{place})")
            continue
        line, more = written(*one, place, opset)  # type: ignore[misc]
        lines.append(line)
        constants += more
    text = graph_text(
        f"agraph (float[N] x) => (float[N] y) <{constants}> {{ {' '.join(lines)} y = Neg(v{len(chain)}) }}", opset
    )
    after, _ = run_passes(text, PASSES)
    assert len(op_types(after)) == 3
    wanted, got = (_outputs(model) for model in (text, after))
    np.testing.assert_array_equal(got, wanted)


def _outputs(model: object) -> np.ndarray:
    import onnx_ir as ir

    from passes.util import outputs, parse

    proto = parse(model) if isinstance(model, str) else ir.to_proto(model)  # type: ignore[arg-type]
    return outputs(proto, VALUES)[0]


def test_two_rectifiers_stay_a_rectifier() -> None:
    text = graph_text("agraph (float[N] x) => (float[N] y) { a = Relu(x)  b = Relu(a)  y = Relu(b) }")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Relu"]
    assert_same(text, after, exact=False)


@pytest.mark.parametrize("kind", ["double", "float16"])
def test_other_float_types(kind: str) -> None:
    bounds = f"{constant(kind, 'low', '', -1)}, {constant(kind, 'high', '', 1.5)}"
    text = graph_text(f"agraph ({kind}[N] x) => ({kind}[N] y) <{bounds}> {{ a = Relu(x)  y = Clip(a, low, high) }}")
    after, _ = run_passes(text, PASSES)
    assert op_types(after) == ["Clip"]
    assert_same(text, after, exact=False)


def test_whole_numbers_are_left_alone() -> None:
    text = graph_text(
        "agraph (int32[N] x) => (int32[N] y) <int32 two = {2}> { a = Relu(x)  y = Clip(a, , two) }", opset=18
    )
    assert op_types(run_passes(text, PASSES)[0]) == ["Relu", "Clip"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Clip(x, , high)  y = Relu(a)", "a bound is computed"),
        ("a = Clip(x, two, one)  y = Relu(a)", "wrong way round"),
        ("a = Clip(x, one, two)  y = Clip(a, two, one)", "wrong way round"),
        ("a = Relu(x)  b = Clip(a, one, two)  y = Add(a, b)", "read elsewhere"),
    ],
)
def test_near_misses_are_refused(body: str, reason: str) -> None:
    text = graph_text(
        f"agraph (float[N] x, float high) => (float[N] y) <float one = {{1}}, float two = {{2}}> {{ {body} }}"
    )
    after, log = run_passes(text, PASSES)
    assert len(op_types(after)) >= 2
    assert not log.events
    assert any(reason in each for each in reasons(log))
