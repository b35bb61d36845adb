"""The budget of a quantization: expressions that the result has to meet, given by the user or by the task.

The task is what the outputs are: scores of classes, embeddings, or other numbers. The graph says which outputs are
normalized: by Softmax to probabilities, or by their norm to embeddings. Rows that sum to 1 are probabilities too. The
last product of a network gives either logits or an embedding; the numbers tell them apart, because the largest logit of
a trained classifier stands out among the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import UsageError
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, SOFTMAXES
from sardonyx.ir.scopes import operand
from sardonyx.ir.storage import Array
from sardonyx.records.expressions import Gate, Number, Wording, parse
from sardonyx.records.quantization import Scores
from sardonyx.verbs.bench.statistics import student
from sardonyx.verbs.quantize.loss import LEVEL

Role = Literal["classes", "embeddings", "numbers"]
_TOP1, _CLASSES_LOSS, _COSINE, _LOSS = "top1>=0.99", "relative_l2<=0.05", "cosine>=0.999", "relative_l2<=0.01"
_KEEP_ROWS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_INDICES = frozenset({"ArgMax", "TopK"})
_NORMS = frozenset({"ReduceL2", "Sqrt"})
_BEFORE_NORMS = frozenset({"Add", "Clip", "Expand", "Max"})  # between a norm and the division by it
_LONGEST_CHAIN = 8
_MAX_NUMBERS = 1 << 17  # numbers of one output of one sample that are looked at
_MIN_EMBEDDING_WIDTH = 64  # numbers of a row of an embedding, at least
_CLEAR_GAP = 1.5  # the gap between the two largest numbers of a row, relative to that of normally distributed ones


class Task(Struct, frozen=True):
    """The default budget of a model, why it is the one, and the outputs whose rows are scores of classes."""

    limits: tuple[str, ...]
    reason: str
    classes: frozenset[str]


def find_task(model: ir.Model, outputs: Iterable[Mapping[str, Array]]) -> Task:
    """Return the task of a model, given its outputs on some samples."""
    facts = Facts(model)
    facts.infer()
    rows: dict[str, list[Array]] = {}
    for sample in outputs:
        for name, array in sample.items():
            if array.dtype.kind == "f" and array.ndim and array.shape[-1] > 1 and array.size:
                kept = array.reshape(-1, array.shape[-1])
                most = max(1, _MAX_NUMBERS // array.shape[-1])
                rows.setdefault(name, []).append(kept[:: -(-len(kept) // most)].astype(np.float32))
    values = {value.name or "": value for value in model.graph.outputs}
    if all((dtype := facts.dtype(value)) is not None and not dtype.is_floating_point() for value in values.values()):
        names = list(values)
        return Task((_TOP1,), f"{_list(names)} are integers, which are equal or not", frozenset(names))
    roles = {name: _role(value, facts, rows.get(name, ())) for name, value in values.items()}
    classes, embeddings = ([name for name in roles if roles[name] == role] for role in ("classes", "embeddings"))
    scores = f"rows of {_list(classes)} are scores of classes"
    if len(classes) == len(roles):
        return Task((_TOP1, _CLASSES_LOSS), scores, frozenset(classes))
    if len(embeddings) == len(roles):
        return Task((_COSINE,), f"rows of {_list(embeddings)} are embeddings", frozenset())
    if classes:
        return Task((_LOSS, _TOP1), f"{scores}, others are not", frozenset(classes))
    return Task((_LOSS,), "the outputs are neither scores of classes nor embeddings", frozenset())


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names[:2])) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _role(value: ir.Value, facts: Facts, rows: Sequence[Array]) -> Role:
    source = _computed(value, facts)
    node, rank = source.producer(), facts.rank(source)
    if node is not None and node.op_type in _INDICES:
        return "classes"
    if node is not None and node.op_type in SOFTMAXES:
        axis = node.attributes.get_int("axis", -1 if facts.opset(node) >= 13 else 1)
        return "classes" if axis == -1 or (rank is not None and axis == rank - 1) else "numbers"
    if node is not None and (node.op_type == "LpNormalization" or _is_divided_by_norm(node)):
        return "embeddings"
    # Rows with sum 1 and no negative number are those of a Softmax that an exporter has decomposed.
    if rows and all((each >= 0).all() and np.allclose(each.sum(-1, dtype=np.float64), 1, atol=1e-3) for each in rows):
        return "classes"
    if _is_last_product(node, facts) and _stand_out(rows):
        return "classes"
    shape = facts.shape(value)
    width = None if shape is None or len(shape) != 2 else shape[-1]
    return "embeddings" if isinstance(width, int) and width >= _MIN_EMBEDDING_WIDTH else "numbers"


def _computed(value: ir.Value, facts: Facts) -> ir.Value:
    """Return what the rows of a value are copied from."""
    for _ in range(_LONGEST_CHAIN):
        node = value.producer()
        inner = None if node is None or node.op_type not in _KEEP_ROWS else operand(node, 0)
        if inner is None:
            break
        outer_shape, inner_shape = facts.shape(value), facts.shape(inner)
        if not outer_shape or not inner_shape or outer_shape[-1] != inner_shape[-1]:
            break
        value = inner
    return value


def _is_divided_by_norm(node: ir.Node) -> bool:
    """Return whether a node is x / |x|, where the norm may be clipped and expanded."""
    if node.op_type != "Div":
        return False
    value = operand(node, 1)
    for _ in range(_LONGEST_CHAIN):
        producer = None if value is None else value.producer()
        if producer is None or producer.op_type not in _BEFORE_NORMS:
            return producer is not None and producer.op_type in _NORMS
        value = operand(producer, 0)
    return False


def _is_last_product(node: ir.Node | None, facts: Facts) -> bool:
    """Return whether a node is a product with a constant weight, or adds a constant to one."""
    if node is not None and node.op_type == "Add":
        others = [value for value in node.inputs if facts.tensor(value) is None]
        node = others[0].producer() if len(others) == 1 and others[0] is not None else None
    if node is None or node.op_type not in ALL_PRODUCTS | ALL_CONVOLUTIONS:
        return False
    weight = operand(node, 1)
    producer = None if weight is None else weight.producer()
    if producer is not None and producer.op_type == "Transpose":
        weight = operand(producer, 0)
    return facts.tensor(weight) is not None


def _stand_out(samples: Sequence[Array]) -> bool:
    """Return whether the largest number of most rows is further from the next than among normal numbers.

    What all rows have in common is left out: the bias of a product can be larger than what is added to it.
    """
    if not samples:
        return False
    rows = np.concatenate(samples)
    rows = rows[np.isfinite(rows).all(-1)]
    rows = rows - rows.mean(0) if len(rows) > 1 else rows
    largest, deviation = np.partition(rows, -2, axis=-1)[:, -2:], rows.std(-1)
    usual = 1 / math.sqrt(2 * math.log(rows.shape[-1]))
    gaps = (largest[:, 1] - largest[:, 0]) / np.where(deviation > 0, deviation, 1)
    return bool(gaps.size) and float(np.median(gaps)) > _CLEAR_GAP * usual


Objective = Literal["time", "bytes"]
LOSSES = ("relative_l2", "cosine", "top1", "metric")
NAMES = (*LOSSES, "bytes", "time")
_EXAMPLE = "write a name, a comparison and a limit: 'relative_l2<=0.01,top1>=99%', 'bytes<=0.3'"


def margin_of(samples: int) -> float:
    """Return how much wider than its interval a number has to be within a budget, for as many other samples to meet it.

    The difference between two sets of samples has the variance of both. A bootstrap of n samples has (n - 1) / n of the
    variance, and a few samples say little about it: Student's t takes the place of the normal distribution.
    """
    freedom = max(1, samples - 1)
    few = student((1 + LEVEL) / 2, freedom) / NormalDist().inv_cdf((1 + LEVEL) / 2)
    return math.sqrt(2 * (1 + 1 / freedom)) * few


class Budget(Struct, frozen=True):
    """Expressions over the loss, and over bytes and time relative to the source; all of them have to be true."""

    limits: tuple[Gate, ...]
    is_default: bool = False

    @classmethod
    def of(cls, texts: Sequence[str], *, has_metric: bool) -> Budget:
        """Parse expressions; each text may hold several, separated by commas. If there are none, the task gives some.

        Raises:
            UsageError: An expression cannot be parsed, or needs a metric and there is none.
        """
        parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
        limits = tuple(_limit(part) for part in parts)
        if not has_metric and (unknown := next((each for each in limits if each.name == "metric"), None)):
            raise UsageError(
                f"the budget {unknown.text!r} needs a metric", hint="name a function of a file with `metric`"
            )
        return cls(limits, not parts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions."""
        return tuple(each.text for each in self.limits)

    def bounds(self, name: str) -> bool:
        """Return whether some expression is about this number."""
        return any(each.name == name for each in self.limits)

    def of_task(self, task: Task) -> Budget:
        """Return the budget of the user, or otherwise that of the task."""
        return Budget(tuple(map(_limit, task.limits)), True) if self.is_default else self

    def check_rows(self, scores: Scores) -> None:
        """Check that there is a top-1 agreement if it has a limit.

        Raises:
            UsageError: There is none.
        """
        if scores.top1 is None and self.bounds("top1"):
            raise UsageError(
                "the outputs have no rows to compare, so there is no top1", hint="leave it out of `budget`"
            )

    def broken(self, measures: Mapping[str, Number], margin: float = 0.0) -> list[str]:
        """Return the expressions about these numbers that are not met, with the value.

        Args:
            measures: The numbers by name; expressions about others are left out.
            margin: An expression has to hold for so many times the interval of the number.
        """
        lines: list[str] = []
        for each in self.limits:
            measure = measures.get(each.name)
            if measure is None:
                continue
            value = _worst_end(measure, each.sign, margin)
            if not measure.known or not each.tripped(Number(value, 1.0)):
                lines.append(f"{each.text} ({_described(each, measure, value)})")
        return lines

    def widened(self, measures: Mapping[str, Number], margin: float) -> list[str]:
        """Return limits that these numbers meet, each the given one or the next number of two digits."""
        return [
            f"{each.name}{each.sign}{_rounded_outwards(measures[each.name], each, margin)}"
            if each.name in measures and Budget((each,)).broken(measures, margin)
            else each.text
            for each in self.limits
        ]

    def excess(self, measures: Mapping[str, Number]) -> float:
        """Return how far the numbers are from the budget: the largest ratio of a value to its limit."""
        ratios: list[float] = []
        for each in self.limits:
            if (measure := measures.get(each.name)) is not None:
                value, bound = measure.value, each.limit.number / (100 if each.limit.percent else 1)
                if not each.sign.startswith("<"):  # cosine and top1 are close to 1
                    value, bound = 1 - value, 1 - bound
                ratios.append(value / bound if bound > 0 else (0.0 if value <= bound else float("inf")))
        return max(ratios, default=0.0)


def loss_measures(scores: Scores) -> dict[str, Number]:
    """Return the losses by name, with their intervals."""
    intervals = {name: getattr(scores, name) for name in LOSSES}
    return {
        name: Number(interval.value, 1.0, interval.low, interval.high)
        for name, interval in intervals.items()
        if interval is not None
    }


def _limit(text: str) -> Gate:
    if "baseline" in text:
        raise UsageError(f"the budget {text!r}: there is no baseline", hint=_EXAMPLE)
    gate = parse(text, NAMES, shares=NAMES, wording=Wording("the budget", _EXAMPLE))
    if gate.sign in ("==", "!="):
        raise UsageError(f"the budget {text!r} is not an upper or a lower limit", hint=_EXAMPLE)
    if gate.name in ("bytes", "time") and text.rstrip()[-1].isalpha():
        raise UsageError(f"the budget {text!r}: {gate.name} is a ratio to the source", hint=_EXAMPLE)
    return gate


def _described(limit: Gate, measure: Number, worst: float) -> str:
    """Return the number that breaks a limit, with enough digits to see that it does."""
    described = f"{limit.name} is {_digits(limit, measure.value)}"
    if not measure.known or not limit.tripped(Number(measure.value, 1.0)):
        return described
    return f"{described}, and its interval reaches {_digits(limit, worst)}"


def _digits(limit: Gate, value: float) -> str:
    """Return a number rounded to few digits, on the same side of the limit; NaN is on every side."""
    meets = limit.tripped(Number(value, 1.0))
    rounded = (f"{value:.{digits}g}" for digits in range(3, 18))  # the last has all digits
    return next(text for text in rounded if limit.tripped(Number(float(text), 1.0)) == meets)


def _rounded_outwards(measure: Number, limit: Gate, margin: float) -> str:
    """Return the worst end of a number, rounded to two digits away from it."""
    is_upper = limit.sign.startswith("<")
    worst = _worst_end(measure, limit.sign, margin)
    distance = worst if is_upper else 1 - worst  # cosine and top1 are close to 1
    unit = 10.0 ** (math.floor(math.log10(distance)) - 1) if distance > 0 else 0.01
    away = math.ceil(distance / unit * (1 + 1e-9)) * unit
    return f"{away if is_upper else 1 - away:.12g}"


def _worst_end(measure: Number, sign: str, margin: float) -> float:
    end = measure.highest if sign.startswith("<") else measure.lowest
    return measure.value + margin * (end - measure.value)
