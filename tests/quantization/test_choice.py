"""Choosing the precision of modules: groups, the front, the budget, and the choice itself on a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sardonyx
from quantization.small_model import LIMIT, build
from sardonyx.errors import UsageError
from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.expressions import Number
from sardonyx.records.quantization import Interval, Quantization, Scores
from sardonyx.reporting.quantization import quantization_sentence
from sardonyx.verbs.quantize import choice, sensitivity
from sardonyx.verbs.quantize.budget import Budget, Task, loss_measures, margin_of
from sardonyx.verbs.quantize.loss import resampled
from sardonyx.verbs.quantize.precisions import Assignment, Job, Recipes
from sardonyx.verbs.quantize.quantize import BudgetNotMet
from sardonyx.verbs.quantize.recipe import Selection, Simulated
from sardonyx.verbs.quantize.sensitivity import Option, coarsened, find_groups, pareto, sweep

NUMBERS = st.floats(0, 10)
OPTIONS = st.lists(
    st.builds(Option, st.sampled_from(["int8", "int4", "fp16"]), NUMBERS, NUMBERS),
    max_size=3,
    unique_by=lambda o: o.precision,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build(tmp_path / "m.onnx")


@pytest.fixture
def data() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"ids": rng.integers(0, 200, (2, 8))} for _ in range(24)]


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Ratios of times by label, in place of measurements, which differ from run to run."""
    ratios: dict[str, float] = {}

    def compared(
        trials: sensitivity.Trials, models: Any, _seconds: float = 0, _reference: Any = None
    ) -> dict[str, Comparison]:
        trials.milliseconds, trials.sizes = 2.0, {"batch": 1}
        found: dict[str, Comparison] = {}
        for label in models:
            ratio = ratios.get(label.partition("/")[0], 0.9)  # without the number of the shape
            finding = Finding.FASTER if ratio < 0.98 else Finding.SLOWER if ratio > 1.02 else Finding.SAME
            found[label] = Comparison(ratio, ratio - 0.01, ratio + 0.01, 0.012, finding, 12)
        return found

    monkeypatch.setattr(sensitivity.Trials, "compared", compared)
    return ratios


def _by_hand(groups: list[list[Option]], rate: float) -> float:
    """The largest gain - rate · loss² of all assignments."""
    return sum(max([0.0, *(option.gain - rate * option.loss**2 for option in options)]) for options in groups)


@given(st.lists(OPTIONS, max_size=5), st.floats(0.01, 100))
def test_the_sweep_contains_the_best_assignment_for_every_multiplier(groups: list[list[Option]], rate: float) -> None:
    plans = sweep(groups)
    assert plans[0] == (None,) * len(groups)

    def value(plan: tuple[str | None, ...]) -> float:
        chosen = [o for options, name in zip(groups, plan, strict=True) for o in options if o.precision == name]
        return sum(option.gain - rate * option.loss**2 for option in chosen)

    assert max(map(value, plans)) == pytest.approx(_by_hand(groups, rate), abs=1e-6)
    gains = [
        sum(o.gain for options, name in zip(groups, plan, strict=True) for o in options if o.precision == name)
        for plan in plans
    ]
    assert gains == sorted(gains)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8))
def test_a_point_on_the_front_is_dominated_by_none(points: list[tuple[float, float]]) -> None:
    on = pareto(points)
    assert not points or any(on)
    for one, is_on in zip(points, on, strict=True):
        beaten = any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in points)
        assert is_on is not beaten


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)


@given(st.lists(PATHS, min_size=1, max_size=20, unique=True), st.integers(1, 6))
def test_groups_are_joined_until_they_can_be_measured(paths: list[str], most: int) -> None:
    groups = coarsened([((path,), 1 + len(path)) for path in paths], most)
    assert len(groups) <= most or len(groups) == 1
    assert sorted(path for group in groups for path in group) == sorted(paths)
    assert len(paths) > most or groups == [(path,) for path in paths]


def test_a_plan_mixes_precisions_of_one_recipe(model: Path) -> None:
    selection = Selection()
    plan = (
        Assignment("int4", selection.of_owners(["encoder.first"])),
        Assignment("int8-weights", selection.of_owners(["head"])),
    )
    _, products = Job(model, Recipes("ort")).simulated(plan)
    assert {(each.module, each.recipe) for each in products} == {
        ("encoder.first", "quantize-to-matmul-nbits-4"),
        ("head", "quantize-to-matmul-nbits-8"),
    }


@pytest.mark.medium
def test_the_smallest_model_within_the_budget_is_chosen(model: Path, data: Any, times: dict[str, float]) -> None:
    made = sardonyx.quantize(model, to="int8", budget=f"relative_l2<={LIMIT}", objective="bytes", data=data)
    assert made.choice is not None
    found = made.choice
    chosen = found.points[found.chosen]
    parts = made.data
    assert (parts.calibrate, parts.choose, parts.judge, parts.shared) == (6, 6, 12, False)
    assert chosen.within
    assert chosen.scores.relative_l2.high <= LIMIT
    assert chosen.bytes == min(point.bytes for point in found.points if point.within)
    assert made.after.bytes == chosen.bytes
    kept = [group for group in found.groups if group.chosen == "float32"]
    assert [group.name for group in kept] == ["head"]  # the most sensitive one
    assert kept[0].reason.startswith("relative L2 0.0")
    assert {product.module for product in made.products} == {"embed", "encoder.first", "encoder.second"}
    assert made.loss.scores is not None
    assert made.loss.scores.relative_l2.value == pytest.approx(made.loss.relative_l2)
    assert found.broken == ()
    for point in found.points:  # losses of modules add in squares, nearly
        assert point.predicted_l2 is not None
        assert point.predicted_l2 == pytest.approx(point.scores.relative_l2.value, rel=0.3)
    assert Quantization.from_json(made.to_json()).choice == found


@pytest.mark.medium
def test_products_of_a_file_without_tags_are_chosen_one_by_one(model: Path, data: Any, times: dict[str, float]) -> None:
    untagged = onnx.load(model)
    for at, node in enumerate(untagged.graph.node):
        node.name = f"n{at}"
    onnx.save(untagged, model)
    made = sardonyx.quantize(model, to="int8", budget=f"relative_l2<={LIMIT}", objective="bytes", data=data)
    assert made.choice is not None
    precisions = {group.modules: group.chosen for group in made.choice.groups}
    gather, first, second, head = (("n0",), ("n1",), ("n5",), ("n8",))  # in the order in which they run
    assert precisions == {gather: "int8", first: "int8", second: "int8", head: "float32"}
    assert list(precisions) == [gather, first, second, head]
    assert len(made.products) == 3


def _product(node: str, elements: int) -> Simulated:
    value = ir.Value(name=node)
    return Simulated(node, "", "quantize", elements, 1, value, value)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 8))
def test_products_of_no_module_are_grouped_with_their_neighbours(sizes: list[int], most: int) -> None:
    products = [_product(f"n{at}", size) for at, size in enumerate(sizes)]
    groups = find_groups(products, most)
    weighted = [f"n{at}" for at, size in enumerate(sizes) if size]
    assert len(groups) <= most
    assert [label for group in groups for label in group.modules] == (weighted or [""])
    assert sum(group.elements for group in groups) == sum(sizes)


@pytest.mark.medium
def test_modules_get_what_is_faster_or_smaller(model: Path, data: Any, times: dict[str, float]) -> None:
    times.update({"int8": 0.7, "int4": 1.3, "int8-weights": 1.0, "int8-static": 1.0, "all int8": 0.8, "all fp16": 1.5})
    made = sardonyx.quantize(model, budget="relative_l2<=0.5", data=data)
    assert made.choice is not None
    assert {group.chosen for group in made.choice.groups} == {"int8"}
    assert made.choice.objective == "time"
    assert not any(group.options for group in made.choice.groups)  # the fastest is within the budget: none is alone
    made = sardonyx.quantize(model, budget="relative_l2<=0.006", data=data)
    assert made.choice is not None
    tried = {option.precision: option.excluded for group in made.choice.groups for option in group.options}
    assert tried == {"int8": None, "int8-weights": None, "int8-static": None}  # int4 and fp16 are slower
    assert {"all fp16", "all int4"} <= {point.label for point in made.choice.points}


@pytest.mark.medium
def test_float16_is_mixed_with_others_where_it_is_faster(model: Path, data: Any, times: dict[str, float]) -> None:
    times.update({"all fp16": 0.6, "fp16": 0.6, "int8": 1.2, "int4": 1.2, "int8-weights": 1.2, "int8-static": 1.2})
    times["all int8"] = 1.2
    made = sardonyx.quantize(model, budget="relative_l2<=0.0005", data=data)
    assert made.choice is not None
    chosen = {group.name: group.chosen for group in made.choice.groups}
    assert "fp16" in chosen.values()
    assert chosen.keys() == {"embed", "encoder.first", "encoder.second", "head"}  # no groups of sums and activations
    assert {product.recipe for product in made.products} == {"quantize-to-fp16"}


@pytest.mark.medium
def test_the_smallest_model_is_written_if_none_is_faster(model: Path, data: Any, times: dict[str, float]) -> None:
    times.update({f"all {each}": 1.0 for each in ("int8", "int8-static", "int8-weights", "int4", "fp16")})
    times.update({f"mixed {number}": 1.0 for number in range(20)})
    made = sardonyx.quantize(model, budget="relative_l2<=0.02", data=data)
    assert made.choice is not None
    within = {point.label: point for point in made.choice.points if point.within}
    least = min(point.bytes for point in within.values())
    assert made.after.bytes <= 1.1 * least < 0.4 * made.before.bytes
    near = [point for point in within.values() if point.bytes <= 1.1 * least and point.scores is not None]
    assert made.choice.points[made.choice.chosen] == min(near, key=lambda point: point.scores.relative_l2.value)


def normalized_product(columns: np.ndarray) -> onnx.ModelProto:
    """Return a product whose rows are divided by their norms, with columns of these sizes."""
    text = """
      <ir_version: 8, opset_import: ["" : 17]>
      g (float[2, 64] x) => (float[2, 48] y) {
        a = MatMul (x, w)  y = LpNormalization (a)
      }
    """
    model, weight = onnx.parser.parse_model(text), np.random.default_rng(3).standard_normal((64, 48)) * columns
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float32), "w"))
    return model


def rows_of(sizes: list[float]) -> list[dict[str, np.ndarray]]:
    """Return samples with rows of these sizes."""
    rng, factors = np.random.default_rng(4), np.array(sizes)[:, None]
    return [{"x": (factors * rng.standard_normal((2, 64))).astype(np.float32)} for _ in range(12)]


@pytest.mark.parametrize(("smallest", "by_rows"), [(1.0, False), (1e-3, True)])
def test_rows_have_scales_only_if_the_loss_asks_for_it(smallest: float, by_rows: bool, times: dict[str, float]) -> None:
    times |= {"all int8": 0.5, "one scale": 1.0}
    data = rows_of([1.0, smallest])
    made = sardonyx.quantize(normalized_product(np.ones(48)), to="int8", budget="relative_l2<=0.05", data=data)
    assert made.model is not None
    assert any(node.op_type == "ReduceMax" for node in made.model.graph) is by_rows
    assert any("an activation has one scale" in note for note in made.notes) is not by_rows


@pytest.mark.parametrize(
    ("budget", "time", "by_columns"), [(0.05, 0.9, False), (0.05, 1.0, True), (0.05, 1.1, True), (0.012, 0.9, True)]
)
def test_a_weight_has_one_scale_only_if_it_is_faster_and_within_the_budget(
    budget: float, time: float, by_columns: bool, times: dict[str, float]
) -> None:
    times |= {"all int8": 0.5, "one scale": time}
    model, data = normalized_product(np.where(np.arange(48) % 2, 1.0, 0.3)), rows_of([1.0, 1.0])
    made = sardonyx.quantize(model, to="int8", budget=f"relative_l2<={budget}", data=data)
    assert made.model is not None
    assert made.check is not None
    constants = [value.const_value for value in made.model.graph.initializers.values()]
    scales = [each.shape.numpy() for each in constants if each is not None and each.dtype is ir.DataType.FLOAT]
    assert scales == ([(48,)] if by_columns else [()])
    assert any("a weight has one scale" in note for note in made.notes) is not by_columns
    assert made.choice is not None
    assert [point.label for point in made.choice.points] == ["all int8"]


@pytest.mark.medium
def test_a_model_that_seems_faster_is_timed_for_longer(model: Path, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(
        _trials: sensitivity.Trials, models: Any, seconds: float, _reference: Any = None
    ) -> dict[str, Comparison]:
        finding = Finding.FASTER if seconds == sensitivity.PATIENT_SECONDS else Finding.SAME
        return dict.fromkeys(models, Comparison(0.7, 0.4, 1.1, 0.3, finding, 12))

    monkeypatch.setattr(sensitivity.Trials, "compared", compared)
    made = sardonyx.quantize(model, to="int8", budget="relative_l2<=0.5", data=data)
    assert made.choice is not None
    timed = made.choice.points[made.choice.chosen].time
    assert timed is not None
    assert timed.finding is Finding.FASTER


@pytest.mark.medium
def test_a_model_that_is_neither_faster_nor_smaller_is_not_written(
    model: Path, data: Any, tmp_path: Path, times: dict[str, float]
) -> None:
    times.update({"int8": 1.1, "all int8": 1.1})
    with pytest.raises(
        BudgetNotMet, match=r"nothing within the budget .* is faster by 5% or smaller by 10%; nearest: all int8"
    ) as error:
        sardonyx.quantize(model, tmp_path / "q.onnx", to="int8", budget="relative_l2<=0.5", data=data)
    assert error.value.exit_code == 4
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.medium
def test_a_budget_that_nothing_meets_returns_the_front_and_names_one_that_is_met(
    model: Path, data: Any, tmp_path: Path, times: dict[str, float]
) -> None:
    with pytest.raises(
        BudgetNotMet,
        match=r"nothing meets the budget relative_l2<=1e-6; nearest: mixed 1, relative_l2 0\.0\d+ \[0\.0\d+",
    ) as error:
        sardonyx.quantize(model, tmp_path / "q.onnx", to="int8", budget="relative_l2<=1e-6", data=data)
    assert not (tmp_path / "q.onnx").exists()
    record = Quantization.from_json(error.value.record.to_json())
    assert (record.status, record.result.path) == ("not met", None)
    assert record.choice is not None
    assert record.choice.points[record.choice.chosen].label == "mixed 1"
    assert len(record.choice.points) > 2
    assert error.value.hint is not None
    named = error.value.hint.split("'")[1]
    made = sardonyx.quantize(model, tmp_path / "q.onnx", to="int8", budget=named, data=data)
    assert made.choice is not None
    assert "mixed 1" in {point.label for point in made.choice.points if point.within}


@pytest.mark.medium
def test_modules_are_measured_in_groups_if_there_are_many(
    model: Path, data: Any, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_FEWEST_GROUPS", 1)
    monkeypatch.setattr(choice, "_MOST_SINGLES", 3)
    made = sardonyx.quantize(model, to="int8", budget="relative_l2<=0.5", objective="bytes", data=data)
    assert made.choice is not None
    assert {group.name: group.modules for group in made.choice.groups} == {
        "embed": ("embed",),
        "encoder": ("encoder.first", "encoder.second"),
        "head": ("head",),
    }
    assert "the precisions of 4 modules were chosen in 3 groups" in made.notes


@pytest.mark.medium
def test_the_default_budget_is_named(model: Path, data: Any, times: dict[str, float]) -> None:
    made = sardonyx.quantize(model, data=data, only_modules=["encoder.first"])
    assert made.choice is not None
    assert made.choice.is_default
    assert made.choice.budget == ("relative_l2<=0.01",)
    assert "the default budget: the outputs are neither scores of classes nor embeddings" in made.notes
    assert made.choice.precisions == ("int8", "int8-static", "int8-weights", "int4", "fp16")


@pytest.mark.medium
def test_a_model_that_breaks_the_budget_on_unseen_samples_is_reported(
    model: Path, data: Any, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice.Budget, "broken", lambda self, measures, margin=0: [] if margin else ["x<=1 (x is 2)"])
    made = sardonyx.quantize(model, to="int8", budget="relative_l2<=1", data=data)
    assert made.choice is not None
    assert made.choice.broken == ("x<=1 (x is 2)",)


def test_budgets_hold_for_the_whole_interval_or_for_the_value() -> None:
    budget = Budget.of(["relative_l2<=1%, top1>=0.9", "bytes<0.5"], has_metric=False)
    scores = Scores(Interval(0.009, 0.008, 0.011), Interval(1, 1, 1), Interval(0.95, 0.92, 0.97))
    measures = loss_measures(scores) | {"bytes": Number(0.3, 1.0)}
    assert budget.broken(measures) == []
    assert budget.broken(measures, 2**0.5) == [
        "relative_l2<=1% (relative_l2 is 0.009, and its interval reaches 0.0118)"
    ]
    assert budget.broken({"relative_l2": Number(0.0100004, 1.0)}) == ["relative_l2<=1% (relative_l2 is 0.0100004)"]
    assert budget.excess(measures) == pytest.approx(0.9)
    assert Budget.of([], has_metric=False).of_task(Task(("cosine>=0.999",), "", frozenset())).texts == (
        "cosine>=0.999",
    )
    assert budget.widened(measures, 2**0.5) == ["relative_l2<=0.012", "top1>=0.9", "bytes<0.5"]
    near_one = {"cosine": Number(0.9991, 1.0, 0.99873, 0.9993)}
    wider = Budget.of(["cosine>=0.9995"], has_metric=False).widened(near_one, 2**0.5)
    assert wider == ["cosine>=0.9985"]
    assert Budget.of(wider, has_metric=False).broken(near_one, 2**0.5) == []


def test_a_budget_leaves_a_wider_margin_if_there_are_few_samples() -> None:
    margins = [margin_of(count) for count in (1, 2, 3, 8, 32, 1000)]
    assert margins == pytest.approx([9.9, 9.9, 3.69, 1.82, 1.50, 2**0.5], rel=0.01)
    budget, measures = (
        Budget.of(["relative_l2<=0.01"], has_metric=False),
        {"relative_l2": Number(0.008, 1.0, 0.007, 0.009)},
    )
    assert [bool(budget.broken(measures, margin)) for margin in margins] == [True, True, True, False, False, False]
    rng = np.random.default_rng(0)
    kept = 0
    for seed in range(200):  # a limit at the end of the interval holds for as many other samples, nearly always
        errors = np.square(rng.normal(1, 0.3, (2, 4)))
        drawn = np.sqrt(np.append(errors[0].mean(), resampled(4, seed) @ errors[0] / 4))
        reach = drawn[0] + margin_of(4) * (np.quantile(drawn[1:], 0.975) - drawn[0])
        kept += np.sqrt(errors[1].mean()) <= reach
    assert kept >= 190


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relative_l2", "cannot read the budget 'relative_l2'"),
        ("speed<1", "the budget: unknown name 'speed'"),
        ("metric<=0.01", "the budget 'metric<=0.01' needs a metric"),
        ("top1==1", "the budget 'top1==1' is not an upper or a lower limit"),
        ("bytes<=30MB", "the budget 'bytes<=30MB': bytes is a ratio to the source"),
        ("bytes<baseline", "the budget 'bytes<baseline': there is no baseline"),
    ],
)
def test_a_budget_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        Budget.of([text], has_metric=False)
    assert error.value.message == message


@pytest.mark.medium
def test_classes_as_integers_are_compared(tmp_path: Path, times: dict[str, float]) -> None:
    times.update({"int4": 0.5})
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((64, 64)).astype(np.float32) for name in ("a", "b")}
    text = """<ir_version: 8, opset_import: ["" : 21]> g (float[n, 64] x) => (int64[n] y) {
      c = MatMul (x, a) d = Relu (c) e = MatMul (d, b) y = ArgMax <axis = 1, keepdims = 0> (e) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    data = [{"x": rng.standard_normal((50, 64)).astype(np.float32)} for _ in range(12)]
    made = sardonyx.quantize(model, data=data, objective="bytes", budget="top1>=0.95")
    assert made.choice is not None
    within = {point.label: point.within for point in made.choice.points}
    assert within["all int8-weights"]
    assert not within["all int4"], "4 bits change some of the classes"
    (output,) = made.loss.outputs
    assert (output.rows, output.top1 is not None and output.top1 > 0.95) == (6 * 50, True)
    assert "top-1 agreement" in quantization_sentence(made)
    with pytest.raises(BudgetNotMet):
        sardonyx.quantize(model, to="int4", data=data, budget="top1>=99%")
