"""Check each operator of an export by itself: the ONNX nodes against the definition of the ATen operator."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
from onnx import numpy_helper
from torch.utils import _pytree as pytree

from sardonyx.frontend.tracing.dynamo import Operand, Operation
from sardonyx.ir.exact import Invalid, Undecided
from sardonyx.ir.exact.call import FLOATS, Value, dtype_of, numpy_type
from sardonyx.ir.exact.evaluate import Evaluator
from sardonyx.ir.exact.reals import Numbers, Order, Real
from sardonyx.records.export import OperatorChecks
from sardonyx.verbs.export import aten_elements, aten_tensors
from sardonyx.verbs.export.aten_elements import DEFINITIONS, SingleNumbers
from sardonyx.verification.exact_check import MOVES, Claim, Decision

_DEFINED = (aten_elements, aten_tensors)  # importing them fills the table
_DYNAMIC = ((3, 5, 7, 11, 13, 17), (4, 6, 10, 12, 14, 22))  # sizes of dynamic dimensions, in turn
_FIXED = ((18, 20, 22, 24, 26, 28, 30, 33), (21, 25, 27, 32, 36, 39, 40, 42))  # the same in place of fixed ones
_MOST_ELEMENTS = 1 << 20  # of all operands and of each result
_MOST_MOVED = 1 << 24  # the same, if elements are only moved
_INTEGERS = ((-8, 9), (0, 3), (0, 1), (1, 2))  # ranges tried in turn
_RANDOM_ORDERS = 3
_POSITIONS = frozenset(  # operators on both sides that name positions
    (
        *("constant_pad_nd", "narrow", "pad", "roll", "select", "slice", "slice_scatter", "split", "split_with_sizes"),
        *("tril", "triu", "Gather", "GatherND", "Pad", "ScatterND", "Slice", "Split", "Trilu"),
    )
)
_ENDLESS_SLICE = 1 << 31  # the end of a slice that has none
_ERRORS = (ArithmeticError, AttributeError, KeyError, IndexError, TypeError, ValueError)
_MOVES = frozenset(
    (
        *("alias", "cat", "chunk", "clone", "contiguous", "detach", "expand", "flatten", "flip", "permute", "repeat"),
        *("reshape", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "transpose"),
        *("unbind", "unflatten", "unsqueeze", "view", "_unsafe_view"),
    )
)

Sizes = Mapping[Any, int]  # in place of fixed sizes, of symbols, and of whole expressions


class _Unequal(Exception):
    """The two sides differ."""


class _Misfit(Exception):
    """The operation does not accept these sizes."""


def decide(operation: Operation, known: dict[Any, Decision] | None = None) -> Decision:
    """Return what exact arithmetic says about an operation and its nodes.

    `known` keeps what was found for operations that are the same at small sizes.
    """
    if operation.excerpt is None:
        return Decision(Claim.UNDECIDED, "its nodes cannot be cut out")
    if definition_of(operation) is None:
        return Decision(Claim.UNDECIDED, "it has no definition")
    with np.errstate(all="ignore"):
        return _decision(operation, {} if known is None else known)


def definition_of(operation: Operation) -> Any:
    """Return the definition of an operation, or None."""
    return DEFINITIONS.get(_plain(operation))


def _plain(operation: Operation) -> str:
    """Return the name of an operator without its library and overload."""
    name = operation.name
    return name if name.startswith("builtin.") else name.split(".")[1]


def _decision(operation: Operation, known: dict[Any, Decision]) -> Decision:
    """Compare at small sizes of all dimensions, at small sizes of the dynamic ones, and at those of the example."""
    expressions = [each for operand in operation.operands for each in (*operand.shape, operand.number)]
    symbols = sorted({s for each in expressions for s in getattr(each, "free_symbols", ())}, key=str)
    dynamic: list[Sizes] = [
        {symbol: size + offset for symbol, size in zip(symbols, itertools.cycle(sizes))}
        for sizes, offset in zip(_DYNAMIC, (0, _largest(operation)), strict=True)
        if symbols
    ]
    example: Sizes = {symbol: operation.example.get(str(symbol), _DYNAMIC[0][0]) for symbol in symbols}
    small, decision = _independent(operation), Decision(Claim.UNDECIDED)
    key = tuple(_at_sizes(operation, sizes) for sizes in small)
    if small and key in known:
        return known[key]
    is_single = {each.dtype for each in operation.operands} & FLOATS <= {onnx.TensorProto.FLOAT}
    readings = itertools.product((Numbers,) if is_single else (Numbers, SingleNumbers), (False, True))
    for choice, (kind, reads_literals) in itertools.product(filter(None, (small, dynamic, [example])), readings):
        comparison = _Comparison(operation, functools.partial(kind, reads_literals=reads_literals))
        try:
            claims = [comparison.claim(sizes, all_orders=sizes is choice[0]) for sizes in choice]
        except (Undecided, _Misfit) as error:
            decision = Decision(Claim.UNDECIDED, str(error))
        except (Invalid, _Unequal) as error:
            decision = Decision(Claim.UNEQUAL, str(error))
        else:
            decision = Decision(Claim.ORDERS_TRIED if Claim.ORDERS_TRIED in claims else Claim.ALL_VALUES)
            if choice is small:
                known[key] = decision
            break
    return decision


def _at_sizes(operation: Operation, sizes: Sizes) -> Any:
    """Return all that the results depend on at some sizes."""

    def at(value: Any) -> Any:
        if isinstance(value, Operand):
            return value.name, value.dtype, tuple(_value(size, sizes) for size in value.shape)
        if isinstance(value, tuple):
            return tuple(map(at, cast("tuple[Any, ...]", value)))
        return repr(value) if isinstance(value, bool | float) else sizes.get(value, value)

    arguments = at((operation.args, tuple(operation.kwargs.items()), operation.results))
    return operation.name, arguments, _renamed(operation.excerpt, sizes).SerializeToString(deterministic=True)


def _independent(operation: Operation) -> list[Sizes]:
    """Return small sizes for each dimension by itself, if no number depends on it.

    A fixed size that both sides name, such as a number of groups, is another one on both sides.
    """
    operands = operation.operands
    if any(each.number is not None for each in operands):
        return []
    dims = dict.fromkeys(size for each in operands for size in each.shape)
    taken, choices = {*_integers(operation.excerpt), *dims}, list[Sizes]()
    for dynamic, fixed, offset in zip(_DYNAMIC, _FIXED, (0, _largest(operation)), strict=True):
        pools = {True: iter(fixed), False: iter(dynamic)}
        chosen: dict[Any, int] = {}
        for dim in dims:
            small = next((s + offset for s in pools[isinstance(dim, int)] if s + offset not in taken), None)
            if small is None:
                return []
            if not isinstance(dim, int) or small < dim:
                chosen[dim] = small
        choices.append(chosen)
    return choices if all(choices) else []


def _largest(operation: Operation) -> int:
    """Return the largest position that one side names: a shorter dimension would not show it."""
    assert operation.excerpt is not None
    if not {_plain(operation), *(node.op_type for node in operation.excerpt.graph.node)} & _POSITIONS:
        return 0
    dims = {size for each in operation.operands for size in each.shape}
    arguments = pytree.tree_leaves((operation.args, operation.kwargs))
    named = (*_integers(operation.excerpt), *(each for each in arguments if isinstance(each, int)))
    return max((abs(each) for each in named if abs(each) < _ENDLESS_SLICE and each not in dims), default=0)


def _integers(excerpt: Any) -> Iterator[int]:
    for attribute in (each for node in excerpt.graph.node for each in node.attribute):
        yield from (attribute.i, *attribute.ints)
    for tensor in _tensors(excerpt):
        yield from numpy_helper.to_array(tensor).reshape(-1).tolist()


def _tensors(excerpt: Any) -> list[onnx.TensorProto]:
    attributes = [each for node in excerpt.graph.node for each in node.attribute if each.type == each.TENSOR]
    stored = (*excerpt.graph.initializer, *(each.t for each in attributes))
    return [tensor for tensor in stored if tensor.data_type == onnx.TensorProto.INT64]


def _renamed(excerpt: Any, sizes: Sizes) -> Any:
    """Return nodes that hold other sizes in place of fixed ones."""
    if sizes.keys().isdisjoint(_integers(excerpt)):
        return excerpt
    copy = onnx.ModelProto.FromString(excerpt.SerializeToString())
    for attribute in (each for node in copy.graph.node for each in node.attribute):
        attribute.i = sizes.get(attribute.i, attribute.i)
        attribute.ints[:] = [sizes.get(each, each) for each in attribute.ints]
    for tensor in _tensors(copy):
        array = numpy_helper.to_array(tensor)
        replaced = np.array([sizes.get(each, each) for each in array.reshape(-1).tolist()], array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(replaced.reshape(array.shape), tensor.name))
    return copy


class _Comparison:
    def __init__(self, operation: Operation, numbers: Callable[[Order, int], Numbers]) -> None:
        self._operation, self._arithmetic = operation, numbers
        self._operands = operation.operands
        self._excerpt: Any = operation.excerpt
        nodes = {node.op_type for node in self._excerpt.graph.node} - {"Constant"}
        self._only_moves = nodes <= MOVES and _plain(operation) in _MOVES
        self._most = _MOST_MOVED if self._only_moves else _MOST_ELEMENTS

    def claim(self, sizes: Sizes, *, all_orders: bool) -> Claim:
        """Compare at some sizes.

        Raises:
            _Misfit: If the operation does not accept them.
            _Unequal, Invalid: If the sides differ.
            Undecided: If one of them has no definition.
        """
        self._sizes, self._excerpt = sizes, _renamed(self._operation.excerpt, sizes)
        self._shapes = {each.name: tuple(_value(size, sizes) for size in each.shape) for each in self._operands}
        self._numbers = {each.name: _value(each.number, sizes) for each in self._operands if each.number is not None}
        if any(size < 0 for shape in self._shapes.values() for size in shape):
            raise _Misfit("no values fit")
        if sum(map(math.prod, self._shapes.values())) > self._most:
            raise Undecided("its operands are too large")
        integers = next(filter(self._fits, _INTEGERS), None)
        if integers is None:
            raise _Misfit("no values fit")
        compared = self._compare(integers, Order.TRUE, 0)
        count = 0 if self._only_moves or not all_orders else _RANDOM_ORDERS if compared else 1
        try:
            for seed in range(1, 1 + count):
                self._compare(integers, Order.RANDOM, seed)
        except _Unequal:
            for seed in range(10, 10 + _RANDOM_ORDERS):
                self._compare(integers, Order.TRUE, seed)
            return Claim.ORDERS_TRIED
        return Claim.ALL_VALUES

    def _fits(self, integers: tuple[int, int]) -> bool:
        try:
            self._torch(self._drawn(integers, 0), self._arithmetic(Order.TRUE, 0))
        except (Invalid, *_ERRORS):
            return False
        return True

    def _compare(self, integers: tuple[int, int], order: Order, seed: int) -> bool:
        """Compare once; return whether the order of numbers mattered."""
        numbers = self._arithmetic(order, seed)
        values = self._drawn(integers, seed)
        evaluator = Evaluator(self._excerpt, numbers, most=self._most)
        try:
            result = self._torch(values, numbers)
        except (Invalid, *_ERRORS):  # other values of this kind were accepted
            return True
        try:
            nodes = evaluator.run(values)
        except _ERRORS as error:
            raise Invalid(f"{type(error).__name__}: {error}") from error
        wanted = [result if place is None else result[place] for place in self._operation.results]
        for old, new in zip(wanted, nodes, strict=True):
            _compare(old, new)
        return numbers.compared

    def _drawn(self, integers: tuple[int, int], seed: int) -> dict[str, Value]:
        """Return random values; where elements are only moved, integers tell them apart."""
        rng = np.random.default_rng(seed)
        values: dict[str, Value] = {}
        for each in self._operands:
            shape, is_float = self._shapes[each.name], each.dtype in FLOATS
            if each.number is not None:
                number = np.asarray(self._numbers[each.name])
                values[each.name] = Real.of(number, each.dtype) if is_float else number.astype(numpy_type(each.dtype))
            elif self._only_moves:
                values[each.name] = rng.integers(0, 1 << 62, shape)
            elif is_float:
                values[each.name] = Real.drawn(rng, shape, each.dtype)
            elif each.dtype == onnx.TensorProto.BOOL:
                values[each.name] = rng.integers(0, 2, shape).astype(bool)
            else:
                values[each.name] = rng.integers(*integers, shape).astype(numpy_type(each.dtype))
        return values

    def _torch(self, values: Mapping[str, Value], numbers: Numbers) -> Any:
        def filled(argument: Any) -> Any:
            if isinstance(argument, Operand):
                return values[argument.name] if argument.number is None else self._numbers[argument.name]
            if isinstance(argument, tuple):
                return tuple(map(filled, cast("tuple[Any, ...]", argument)))
            return argument if isinstance(argument, bool | float) else self._sizes.get(argument, argument)

        named = {key: filled(each) for key, each in self._operation.kwargs.items()}
        return definition_of(self._operation)(numbers, *map(filled, self._operation.args), **named)


def _value(expression: Any, sizes: Sizes) -> Any:
    if expression in sizes:
        return sizes[expression]
    if not hasattr(expression, "free_symbols"):
        return expression
    found = expression.subs(sizes)
    return bool(found) if found.is_Boolean else int(found) if found.is_integer else float(found)


def _compare(old: Any, new: Any) -> None:
    """Raise if a result of the operation differs from that of the nodes."""
    if isinstance(old, tuple):
        items = cast("tuple[Any, ...]", old)
        if not isinstance(new, list) or len(items) != len(cast("list[Any]", new)):
            raise _Unequal("a sequence of another length")
        for one, other in zip(items, cast("list[Any]", new), strict=True):
            _compare(one, other)
        return
    old = (
        np.asarray(old)
        if isinstance(old, bool | int)
        else Real.of(np.asarray(old), dtype_of(new))
        if isinstance(old, float)
        else old
    )
    if tuple(old.shape) != tuple(new.shape):
        raise _Unequal(f"shape {list(new.shape)} instead of {list(old.shape)}")
    if dtype_of(old) != dtype_of(new):
        names = (onnx.TensorProto.DataType.Name(dtype_of(value)) for value in (new, old))
        raise _Unequal(" instead of ".join(names))
    wrong = old.differs(new) & ~np.isnan(old.doubles) if isinstance(old, Real) else np.asarray(old != new)
    if wrong.any():
        raise _Unequal(f"{int(wrong.sum())} of {wrong.size} elements differ")


_NODES_SHOWN = 4  # nodes in a message


def check(operations: Sequence[Operation]) -> OperatorChecks:
    """Decide the operations; each occurs in as many places as it has modules."""
    known: dict[Any, Decision] = {}
    decisions = [(each, decide(each, known)) for each in operations]
    counts, undecided = Counter[Claim](), Counter[str]()
    for operation, decision in decisions:
        counts[decision.claim] += len(operation.modules)
        if decision.claim is Claim.UNDECIDED:
            undecided[f"{operation.name}: {decision.reason}"] += len(operation.modules)
    wrong: list[str] = []
    for operation, decision in decisions:
        if decision.claim is Claim.UNEQUAL and operation.excerpt is not None:
            shown = [node.op_type for node in operation.excerpt.graph.node if node.op_type != "Constant"]
            became = ", ".join(shown[:_NODES_SHOWN]) + (", …" if len(shown) > _NODES_SHOWN else "") or "nothing"
            where = f" in module '{operation.modules[0]}'" if operation.modules[0] else ""
            differs = f"{operation.name}{where} became {became}, which differs in exact arithmetic"
            wrong.append(f"{differs}: {decision.reason}")
    return OperatorChecks(
        operators=counts.total(),
        distinct=len(operations),
        all_values=counts[Claim.ALL_VALUES],
        orders_tried=counts[Claim.ORDERS_TRIED],
        undecided=dict(undecided.most_common()),
        unequal=tuple(wrong),
    )
