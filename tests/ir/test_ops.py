"""Every trait of the operator table, checked by running the operators that it names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.reference
import pytest
from onnx import helper
from packaging.version import Version

from sardonyx.ir import ops

SOURCE = Path(ops.__file__).parents[1]
OPSET = 24
NAMES = {schema.name for schema in onnx.defs.get_all_schemas()}
TRAITS = {name: value for name, value in vars(ops).items() if name.isupper() and isinstance(value, frozenset)}
OF_RUNTIME = {"LAYER_NORMS", "RMS_NORMS", "NORMALIZES", "ALL_PRODUCTS", "ALL_CONVOLUTIONS", "GELUS", "ATTENTION_NAMES"}

FLOATS = np.arange(1, 17, dtype=np.float32).reshape(1, 4, 2, 2) / 20  # all different, and in the domain of Atanh
SPREAD = np.array([[-2.5, -0.4, 0.0, 0.3], [1.5, 3.0, -7.25, 2.0]], np.float32)
TWO_OPERANDS = sorted(ops.BINARY | ops.VARIADIC - {"Mean"})  # which onnx cannot evaluate on two shapes
# The other operands of operators that move data.
MOVES: Mapping[str, tuple[Sequence[object], Mapping[str, object]]] = {
    "Flatten": ((), {"axis": 2}),
    "Reshape": ((np.array([2, -1]),), {}),
    "Squeeze": ((np.array([0]),), {}),
    "Unsqueeze": ((np.array([1]),), {}),
    "Identity": ((), {}),
    "DepthToSpace": ((), {"blocksize": 2}),
    "SpaceToDepth": ((), {"blocksize": 2}),
    "ReverseSequence": ((np.array([2, 1, 2, 1]),), {"batch_axis": 1, "time_axis": 2}),
    "Transpose": ((), {"perm": [3, 1, 0, 2]}),
    "Expand": ((np.array([3, 4, 2, 2]),), {}),
    "Tile": ((np.array([1, 2, 1, 3]),), {}),
    "Gather": ((np.array([3, 0, 3]),), {"axis": 1}),
    "GatherElements": ((np.zeros((1, 4, 1, 2), np.int64),), {"axis": 2}),
    "GatherND": ((np.array([[0, 3], [0, 1]]),), {}),
    "Slice": ((np.array([1]), np.array([3]), np.array([1])), {}),
    "Split": ((), {"axis": 1, "num_outputs": 2}),
}


def outputs(
    op_type: str, operands: Sequence[np.ndarray], attributes: Mapping[str, Any], count: int = 1
) -> list[np.ndarray]:
    names = [f"i{place}" for place in range(len(operands))]
    node = helper.make_node(op_type, names, [f"o{place}" for place in range(count)], **attributes)
    kinds = [helper.np_dtype_to_tensor_dtype(each.dtype) for each in operands]
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    values = onnx.reference.ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))
    assert isinstance(values, list)
    return [np.asarray(value) for value in values]


def operands_of(op_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Two operands of different shapes, of a type that a binary operator accepts."""
    row, column = np.array([[3, 1, 2]]), np.array([[1], [2]])
    if op_type in ops.LOGIC:
        return row > 1, column > 1
    if op_type in ops.BITWISE:
        return row.astype(np.uint8), column.astype(np.uint8)
    return row.astype(np.float32), column.astype(np.float32)


def attributes_of(op_type: str) -> dict[str, Any]:
    attributes: dict[str, dict[str, Any]] = {
        "Cast": {"to": onnx.TensorProto.DOUBLE},
        "BitShift": {"direction": "LEFT"},
        "Mod": {"fmod": 1},
    }
    return attributes.get(op_type, {})


@pytest.mark.parametrize("trait", sorted(TRAITS.keys() - OF_RUNTIME))
def test_the_names_are_standard_operators(trait: str) -> None:
    assert TRAITS[trait] <= NAMES


def test_random_operators_are_those_that_onnx_calls_nondeterministic() -> None:
    schemas: Sequence[Any] = onnx.defs.get_all_schemas()  # whose stubs lack the determinism
    unsure = {
        schema.name
        for schema in schemas
        if schema.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic
    }
    # Bodies may hold any operator, Dropout is random in training only, AffineGrid is a function with an If in it.
    known = {"AffineGrid", "Dropout", "SequenceMap"}
    if Version(onnx.__version__) < Version("1.23"):  # it says so of these functions too, which have no random part
        known |= {"Range", "HannWindow", "HammingWindow", "BlackmanWindow"}
    assert unsure - ops.CONTROL_FLOW - known == ops.RANDOM


def test_every_operator_that_moves_data_is_tested() -> None:
    assert MOVES.keys() == ops.MOVES_DATA


@pytest.mark.parametrize("op_type", sorted(ops.MOVES_DATA))
def test_results_hold_elements_of_the_first_operand_alone(op_type: str) -> None:
    more, attributes = MOVES[op_type]
    count = 2 if op_type == "Split" else 1
    results = outputs(op_type, [FLOATS, *map(np.asarray, more)], attributes, count)
    moved = np.concatenate([np.asarray(each).reshape(-1) for each in results])
    assert set(moved.tolist()) <= set(FLOATS.reshape(-1).tolist())
    once = moved.size == FLOATS.size and set(moved.tolist()) == set(FLOATS.reshape(-1).tolist())
    in_order = once and bool((moved == FLOATS.reshape(-1)).all())
    if op_type != "Split":  # Split keeps all elements only if all of its results are read
        assert (op_type in ops.REARRANGES) == once
        assert (op_type in ops.KEEPS_ORDER) == in_order
    assert (op_type in ops.REPEATS) == (moved.size > FLOATS.size)


@pytest.mark.parametrize("op_type", sorted(ops.UNARY))
def test_unary_operators_treat_every_element_alone(op_type: str) -> None:
    data = SPREAD > 0 if op_type == "Not" else SPREAD.astype(np.int8) if op_type == "BitwiseNot" else SPREAD
    order = np.random.default_rng(0).permutation(data.size)
    with np.errstate(all="ignore"):
        (straight,) = outputs(op_type, [data], attributes_of(op_type))
        (moved,) = outputs(op_type, [data.reshape(-1)[order]], attributes_of(op_type))
    np.testing.assert_array_equal(moved, straight.reshape(-1)[order])


@pytest.mark.parametrize("op_type", sorted(ops.EXACT_UNARY - {"Not", "BitwiseNot"}))
def test_exact_operators_round_nothing(op_type: str) -> None:
    data = np.float32(1) + np.arange(-64, 64, dtype=np.float32) * np.float32(2**-20)
    results = [
        outputs(op_type, [np.concatenate([data, -data]).astype(kind)], {})[0] for kind in (np.float32, np.float64)
    ]
    np.testing.assert_array_equal(results[0].astype(np.float64), results[1].astype(np.float64))


@pytest.mark.parametrize("op_type", TWO_OPERANDS)
def test_operands_are_broadcast(op_type: str) -> None:
    (result,) = outputs(op_type, operands_of(op_type), attributes_of(op_type))
    full = [np.ascontiguousarray(np.broadcast_to(each, (2, 3))) for each in operands_of(op_type)]
    np.testing.assert_array_equal(result, outputs(op_type, full, attributes_of(op_type))[0])


@pytest.mark.parametrize("op_type", TWO_OPERANDS)
def test_commutative_operators_give_the_same_bits_either_way(op_type: str) -> None:
    one, two = operands_of(op_type)
    with np.errstate(all="ignore"):
        (straight,), (swapped,) = (outputs(op_type, each, attributes_of(op_type)) for each in ((one, two), (two, one)))
    same = straight.tobytes() == swapped.tobytes()
    assert same if op_type in ops.COMMUTATIVE | ops.VARIADIC else not same


@pytest.mark.parametrize("op_type", sorted(ops.BINARY | ops.UNARY))
def test_predicates_give_true_or_false(op_type: str) -> None:
    schema = onnx.defs.get_schema(op_type, OPSET)
    constraints = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
    kinds = constraints.get(schema.outputs[0].type_str, {schema.outputs[0].type_str})
    assert (op_type in ops.PREDICATES) == (kinds == {"tensor(bool)"})


@pytest.mark.parametrize("op_type", sorted(ops.READS_SHAPE | ops.READS_SHAPE_AND_TYPE))
def test_the_result_depends_on_the_shape_alone(op_type: str) -> None:
    one, other = (outputs(op_type, [each], {})[0] for each in (SPREAD, SPREAD * 3 + 1))
    np.testing.assert_array_equal(one, other)
    assert outputs(op_type, [SPREAD.T], {})[0].tobytes() != one.tobytes() or op_type == "Size"


def test_cast_like_depends_only_on_the_type_of_its_second_operand() -> None:
    one, other = (outputs("CastLike", [SPREAD, np.array(each, np.float64)], {})[0] for each in (0, [5, 7]))
    np.testing.assert_array_equal(one, other)


def literals(tree: ast.AST) -> Iterable[tuple[int, frozenset[str]]]:
    """The sets, tuples and lists of strings in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            names = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if len(names) == len(node.elts) and all(isinstance(name, str) for name in names):
                yield node.lineno, frozenset(map(str, names))


@pytest.mark.slow
def test_no_other_file_duplicates_a_trait() -> None:
    again = [
        f"{path.relative_to(SOURCE)}:{line} is {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != Path(ops.__file__)
        for line, names in literals(ast.parse(path.read_text()))
        for name, trait in TRAITS.items()
        if len(trait) > 2 and names == trait
    ]
    assert again == []
