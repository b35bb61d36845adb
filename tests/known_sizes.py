"""How much of the types, shapes and contents of values is inferred, and what of it is wrong."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import onnx
import onnx_ir as ir

from backend.cases import Case, node_cases
from ir.shapes_truth import Verdict, compare, sizes_of
from sardonyx.ir.facts import Facts
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size

PARTS = 12  # of the operators


def variant(case: Case, *, frozen: bool, symbolic: bool) -> onnx.ModelProto:
    """The case with its small inputs as constants, or with a name for every dim of those that stay inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    kept: list[onnx.ValueInfoProto] = []
    for info in model.graph.input:
        value = case.data[0][0].get(info.name)
        if frozen and isinstance(value, np.ndarray) and value.size <= 16 and value.dtype.name in ("int64", "float32"):
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, info.name))
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim) if symbolic else ():
            dim.dim_param = f"{info.name}.{axis}"
        kept.append(info)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def check_case(case: Case, verdict: Verdict, *, frozen: bool, symbolic: bool) -> None:
    """Compare everything inferred about the outputs of a case with its expected outputs."""
    model = variant(case, frozen=frozen, symbolic=symbolic)
    graph = ir.from_proto(model)
    facts = Facts(graph)
    facts.infer()
    for feeds, outputs in case.data:
        arrays = {name: array for name, array in feeds.items() if isinstance(array, np.ndarray)}
        pairs = [pair for pair in zip(graph.graph.outputs, outputs, strict=False) if isinstance(pair[1], np.ndarray)]
        for value, array in pairs:
            dtype = facts.dtype(value)
            if dtype is not None and array.dtype != object and dtype.numpy() != array.dtype:
                verdict.wrong.append(f"{case.name}: {value.name}: {dtype} is {array.dtype}")
        compare(facts, [v for v, _ in pairs], [array for _, array in pairs], sizes_of(model, arrays), verdict)


def node_case_verdicts(part: int) -> Iterator[tuple[str, Verdict]]:
    """What is known of the outputs of all cases of each operator in one part of all operators."""
    cases: dict[str, list[Case]] = {}
    for case in node_cases():
        operator = case.model.graph.node[0].op_type
        if zlib.crc32(operator.encode()) % PARTS == part:
            cases.setdefault(operator, []).append(case)
    for operator, members in sorted(cases.items()):
        verdict = Verdict()
        for case in members:
            for frozen, symbolic in ((True, True), (True, False), (False, True), (False, False)):
                check_case(case, verdict, frozen=frozen, symbolic=symbolic)
        yield operator, verdict


OPERATIONS: dict[str, tuple[Callable[[Size, Size], Size], Callable[[int, int], int]]] = {
    "add": (expr.add, lambda one, other: one + other),
    "subtract": (expr.subtract, lambda one, other: one - other),
    "multiply": (expr.multiply, lambda one, other: one * other),
    "larger": (expr.larger, max),
    "smaller": (expr.smaller, min),
    "floor_quotient": (expr.floor_quotient, lambda one, other: one // other),
    "remainder": (expr.remainder, lambda one, other: one % other),
    "copied_if_zero": (expr.copied_if_zero, lambda one, other: one or other),
    "broadcast": (expr.broadcast, lambda one, other: other if one == 1 else one),
}
_DIVIDES = ("floor_quotient", "remainder")


def size_amounts(rounds: int = 700) -> tuple[dict[str, list[int]], list[str]]:
    """How much is known of random sizes, and what is wrong about it at the sizes tried.

    Of each operation the operations and bounds in its results; of each question the answers.
    """
    rng, wrong = Random(0), list[str]()
    names = [expr.symbol(name) for name in "abc"]
    pool: list[Size] = [*names, *names, expr.unknown(1), 0, 1, 2, 3, -1]
    amounts: dict[str, list[int]] = {}
    trials = [{"a": rng.choice((0, 1, 2, 3, 6)), "b": rng.randrange(8), "c": rng.randrange(8), "?1": rng.randrange(5)}
              for _ in range(12)]  # fmt: skip
    for number in range(rounds):
        one = rng.choice(pool)
        near = (expr.add(one, rng.choice((-2, -1, 1, 2))), expr.multiply(one, rng.choice((2, 3))), expr.larger(one, 1))
        other = rng.choice((rng.choice(pool), rng.choice(pool), *near))
        for name, (operation, meant) in OPERATIONS.items():
            if (name in _DIVIDES and not expr.at_least(other, 1)) or (name == "broadcast" and not _fits(one, other)):
                continue
            size = operation(one, other)
            for sizes in trials:
                left, right = expr.value_of(one, sizes), expr.value_of(other, sizes)
                is_run = name != "broadcast" or left == right or 1 in (left, right)
                if is_run and expr.value_of(size, sizes) != meant(left, right):
                    wrong.append(f"{name}({one}, {other}) = {size} at {sizes}")
            count(amounts, name, [expr.weight(size), expr.lower_bound(size) is not None, expr.lower_bound(size) or 0])
            if number < rounds // 3 and isinstance(size, expr.Expr) and size.weight < 9:
                pool.append(size)
        answers = [expr.less(one, other), expr.equal(one, other), expr.at_least(one, 1), expr.at_least(other, 0)]
        quotient = expr.exact_quotient(one, other)
        for sizes in trials:
            left, right = expr.value_of(one, sizes), expr.value_of(other, sizes)
            true = [left < right, left == right, left >= 1, right >= 0]
            wrong += [f"{one}, {other}: {place}" for place, claim in enumerate(answers[:2])
                      if claim not in (None, true[place])]  # fmt: skip
            wrong += [f"{one}, {other}: {place}" for place in (2, 3) if answers[place] and not true[place]]
            if quotient is not None and right and expr.value_of(quotient, sizes) * right != left:
                wrong.append(f"{one} / {other} = {quotient}")
        count(amounts, "answers", [answer is not None for answer in answers[:2]])
        count(amounts, "bounds", [bool(answer) for answer in answers[2:]])
        count(amounts, "quotients", [quotient is not None, expr.weight(quotient or 0)])
        count(amounts, "magnitudes", [expr.magnitude(one).bit_length(), expr.copied_size(one) is not None])
    return amounts, wrong


def _fits(one: Size, other: Size) -> bool:
    """Whether both may be sizes of axes that are broadcast."""
    if isinstance(one, int) and isinstance(other, int):
        return one >= 0 and other >= 0 and (one == other or 1 in (one, other))
    return expr.at_least(one, 0) and expr.at_least(other, 0)


def count(amounts: dict[str, list[int]], name: str, numbers: list[int]) -> None:
    """Add numbers to the amounts of a name."""
    old = amounts.get(name, [0] * len(numbers))
    amounts[name] = [one + int(other) for one, other in zip(old, numbers, strict=True)]
