"""Comparison of values that are not tensors, of fully masked rows, and of rounding that explains everything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import verify
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Value
from sardonyx.verification.exclusions import nearby
from sardonyx.verification.output_comparison import OutputComparer, Precise


def compared(a: Value, b: Value, *, hides_rows: bool = False) -> tuple[list[str], OutputComparer]:
    comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset())
    return comparer.compare([a], [b], lambda: None, hides_rows=hides_rows), comparer


TENSOR = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (TENSOR, [TENSOR], "a sequence of 1 instead of a tensor of float32[2, 3]"),
        ([TENSOR], None, "an empty optional instead of a sequence of 1"),
        ([{1: 0.5}], TENSOR, "a tensor of float32[2, 3] instead of a sequence of 1"),
        ({1: 0.5}, [{1: 0.5}], "a sequence of 1 instead of a map of 1 keys"),
        ([{1: 0.5}], [{2: 0.5}], "a map with the keys 2 instead of 1"),
        ([{1: 0.5}, {1: 0.5}], [{1: 0.5}], "shape [1, 1] instead of [2, 1]"),
        ([{"a": 0.5, "b": 0.5}], [{"a": 0.5, "b": 0.505}], "differs by up to 0.005"),
    ],
)
def test_differences_of_other_kinds_of_values_are_described(a: Value, b: Value, message: str) -> None:
    lines, _ = compared(a, b)
    assert len(lines) == 1
    assert message in lines[0]


def test_equal_maps_pass_in_any_order() -> None:
    assert compared([{"a": 0.25, "b": 0.75}], [{"b": 0.75, "a": 0.25 + 1e-8}])[0] == []


def classifier(scale: float) -> onnx.ModelProto:
    """A linear classifier of three classes as written by scikit-learn's converter: labels and a sequence of maps."""
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_ints=[0, 1, 2],
            coefficients=[0.3 * scale, -0.2, 0.5, 0.1, 0.7, -0.4], intercepts=[0.1, 0.0, -0.1],
            post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]  # fmt: skip
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    graph = helper.make_graph(
        nodes, "classifier", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]), helper.make_value_info("maps", maps)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_a_sequence_of_maps_verifies() -> None:
    assert verify(classifier(1.0), classifier(1.0)).passed
    verdict = verify(classifier(1.0), classifier(1.01))
    assert not verdict.passed
    assert not any("instead of" in failure for failure in verdict.failures)


def test_only_a_masked_row_may_change_from_nan_to_a_number() -> None:
    reference = np.ones((2, 3, 4), np.float32)
    reference[1, 2] = np.nan
    result = np.ones((2, 3, 4), np.float32)
    result[1, 2] = 0
    assert compared(reference, result)[0], "without a hidden row every NaN counts"
    lines, comparer = compared(reference, result, hides_rows=True)
    assert lines == []
    assert any("fully masked" in note for note in comparer.notes)
    assert compared(result, reference, hides_rows=True)[0], "a new NaN is never right"
    partly = reference.copy()
    partly[1, 2, 0] = 1
    assert compared(partly, result, hides_rows=True)[0], "part of a row is not a hidden row"
    result[0, 0, 0] = 1.01
    assert compared(reference, result, hides_rows=True)[0], "the other rows are compared"


def test_integers_that_rounding_changes_everywhere_are_reported() -> None:
    clean = np.arange(6)
    known = Precise(roundings=lambda: [([clean], [clean + 1])])
    comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset())
    assert comparer.compare([clean], [clean + 5], lambda: known) == []
    assert any("every element" in note for note in comparer.notes)


def test_large_allowed_rounding_is_reported() -> None:
    clean = np.ones((4, 16), np.float32)
    rng = np.random.default_rng(0)
    known = Precise(roundings=lambda: [([clean], [clean + 0.1 * rng.standard_normal(clean.shape).astype(np.float32)])])
    comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset())
    assert comparer.compare([clean], [clean + np.float32(0.05)], lambda: known) == []
    assert any("weak evidence" in note for note in comparer.notes)


def test_a_result_passes_if_both_functions_agree_in_double_precision_and_it_is_no_worse_computed() -> None:
    exact = np.linspace(1, 2, 64)
    own = exact.astype(np.float32)

    def lines(result: np.ndarray, in_double: np.ndarray, reference: np.ndarray = own) -> list[str]:
        comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset())
        known = Precise([exact], [in_double], lambda: [([reference], [exact])])
        return comparer.compare([reference], [result.astype(np.float32)], lambda: known)

    assert not lines(own * (1 + 5e-5), exact)
    assert lines(own * (1 + 5e-5), exact * (1 + 5e-5)), "another function"
    assert lines(own * 1.01, exact), "the same function, computed much worse"
    rough = own * np.float32(0.99)
    assert not lines(own * 1.01, exact, rough), "about as far from double precision as the reference"
    assert not lines(own * 1.01, exact * (1 + 1e-3), rough), "within the rounding error of the reference"
    assert lines(own * 1.01, exact * 1.2, rough)


def test_a_graph_runs_in_double_precision_only_if_the_rounding_of_its_module_does_not_explain_a_difference() -> None:
    exact = np.linspace(1, 2, 256).reshape(16, 16)
    noise = 2e-5 * np.random.default_rng(0).standard_normal((2, *exact.shape))
    own, result = ((exact * (1 + each)).astype(np.float32) for each in noise)
    runs: list[str] = []

    def compared_with(in_double: np.ndarray, result: np.ndarray) -> list[str]:
        comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset(), exported=True)

        def graph() -> list[np.ndarray]:
            runs.append("graph")
            return [in_double]

        known = Precise([exact], graph, lambda: [([own], [exact])])
        lines = comparer.compare([own], [result], lambda: known)
        (worst,) = comparer.outputs()
        assert lines or worst.error <= worst.allowed, "the limit includes rounding"
        return lines

    assert not compared_with(exact, result)
    assert not runs
    one = own.copy()
    one[3, 3] *= 1.0005  # far beyond the error of the module
    assert not compared_with(exact, one)
    assert runs == ["graph"]
    assert compared_with(exact * np.where(one == own, 1, 1.0005), one), "another function"


def test_roundings_are_computed_until_they_explain_a_difference() -> None:
    clean = np.ones((4, 16), np.float32)
    computed: list[float] = []

    def lines(error: float) -> list[str]:
        def roundings() -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
            for size in (1e-4, 1e-2):
                computed.append(size)
                yield [clean], [clean * np.float32(1 + size)]

        comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset())
        return comparer.compare([clean], [clean * np.float32(1 + error)], lambda: Precise(roundings=roundings))

    assert not lines(2e-4)
    assert computed == [1e-4]
    assert not lines(2e-2)
    assert computed[1:] == [1e-4, 1e-2]
    assert lines(0.1)


def test_the_record_has_the_place_where_an_output_is_closest_to_its_limit() -> None:
    result = TENSOR.copy()
    result[1, 2] = 1 + 1e-6
    lines, comparer = compared(TENSOR, result)
    assert lines == []
    (output,) = comparer.outputs()
    assert output.where == (1, 2)
    assert 0 < output.error < output.allowed


def test_inputs_that_differ_by_rounding_are_one_unit_away() -> None:
    x = np.array([1.0, -3e5, 0.0, np.inf, -np.inf], np.float32)
    feeds = {"x": x, "ids": np.arange(5), "h": np.ones(3, np.float16)}
    others = list(nearby(feeds))
    assert len(others) > 1
    for each in others:
        assert {name: np.asarray(value).dtype for name, value in each.items()} == {k: v.dtype for k, v in feeds.items()}
        assert np.array_equal(np.asarray(each["ids"]), feeds["ids"])
        assert (np.abs(np.asarray(each["x"])[:3] - x[:3]) <= np.spacing(np.abs(x[:3]))).all()
        assert np.array_equal(np.asarray(each["x"])[3:], x[3:])
    assert any(not np.array_equal(np.asarray(each["x"]), x) for each in others)
    assert not list(nearby({"ids": np.arange(5)}))


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 2.0**10), (np.float16, 2.0**4)])
def test_only_roundings_pass_if_the_rewrites_are_proven(dtype: type, most: float) -> None:
    a = np.linspace(1, 2, 64, dtype=dtype)
    eps = float(np.finfo(dtype).eps)

    def lines(moved: float, *, proven: bool) -> list[str]:
        comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset(), proven=proven)
        return comparer.compare([a], [(a * (1 + moved)).astype(dtype)], lambda: None)

    assert lines(0.8 * most * eps, proven=False)
    assert not lines(0.8 * most * eps, proven=True)
    assert lines(4 * most * eps, proven=True)
