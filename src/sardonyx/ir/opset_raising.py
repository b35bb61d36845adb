"""Plan the conversion of a whole model to a newer operator set.

Functions have their own operator sets and are not changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import ClassVar

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.opset_adapters import ADAPTERS, CannotRaise, OpsetStep, Rewrite
from sardonyx.ir.rules import BARE_INITIALIZERS, Rule
from sardonyx.ir.scopes import label
from sardonyx.records.run import Accuracy

# The versions of each standard operator, and which of the changes affect existing nodes.
#
# A version is followed by `!` if a node of an older version may have to be rewritten (`adapters`), or cannot be
# converted or run at all. All other versions only added types, an attribute whose default is the old meaning or an
# optional input, or improved the documentation. A test checks this table against every schema and the list of the
# runtime's kernels.

NEWEST = 23  # the last version in this table
OLDEST = 7  # before that, broadcasting was requested by an attribute

_CHANGES = """
1: Not
1 2 11 13! 18!: Split
1 2 11! 13 18 19 21 23: Pad
1 2 11 18 22: LpPool
1 2 22!: GlobalLpPool
1 3 7 14 22: GRU
1 4 11 13: Concat
1 5 13 14 19 21 23: Reshape
1 6 7 9 11 13: Gemm
1 6 7 9! 14! 15: BatchNormalization
1 6 7 9 16: PRelu
1 6 7 10! 12! 13 22: Dropout
1 6 7 13 14: Add Div Mul Sub
1 6 8 12 13: Max Min
1 6 8 13: Mean Sum
1 6 9 13 19 21 23: Cast
1 6 11! 12 13: Clip
1 6 13: Abs Ceil Exp Floor Log Neg Reciprocal Sigmoid Sqrt Tanh Tile
1 6 13 14: Relu
1 6 16: LeakyRelu
1 6 22: Elu HardSigmoid InstanceNormalization Selu
1 7: And Or Xor
1 7 9! 10!: Upsample
1 7 9 13: Greater Less
1 7 10 11 19! 22!: AveragePool
1 7 11 13 19: Equal
1 7 12 13 15: Pow
1 7 14 22: LSTM RNN
1 8 10 11 12 22!: MaxPool
1 9 11 12 13 19 21 23: Constant
1 9 11 13 21 23: Flatten
1 9 13: MatMul
1 10! 11: TopK
1 10! 11 13: Slice
1 11 12 13: ArgMax ArgMin
1 11 12 13 18! 20: ReduceMax ReduceMin
1 11 13: DepthToSpace Gather
1 11 13!: Hardmax LogSoftmax ReduceSum Softmax
1 11 13 16 19 21 23: If Loop
1 11 13 18!: ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSumSquare
1 11 13! 21 23: Squeeze Unsqueeze
1 11 22: Conv
1 11! 22: ConvTranspose
1 13: LRN SpaceToDepth
1 13 14 16 19 21 23: Identity
1 13 15 19 21 23: Shape
1 13 19 21 23: Size
1 13 21 23: Transpose
1 22: GlobalAveragePool GlobalMaxPool LpNormalization Softplus Softsign
1 22!: MaxRoiPool RandomNormal RandomNormalLike RandomUniform RandomUniformLike
7 22: Acos Asin Atan Cos Sin Tan
7 22!: Multinomial
8 9! 11 16 19 21 23: Scan
8 13: Expand
9: Shrink TfIdfVectorizer
9 11: Compress
9 11!: OneHot Scatter
9 11 22: MaxUnpool
9 13!: Erf MeanVarianceNormalization
9 13: NonZero Sign
9 13 20: IsNaN
9 16: Where
9 20 21 23: ConstantOfShape
9 22: Acosh Asinh Atanh Cosh EyeLike Sinh
10: ConvInteger MatMulInteger QLinearConv ReverseSequence StringNormalizer
10 11: NonMaxSuppression
10 11! 13! 18 19: Resize
10 13: Mod
10 13 19 21 23: DequantizeLinear QuantizeLinear
10 16! 22!: RoiAlign
10 20: IsInf
10 21: QLinearMatMul
10 22: ThresholdedRelu
11: BitShift ConcatFromSequence DynamicQuantizeLinear Range SequenceAt SequenceConstruct
11: SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence Unique
11 12 13: GatherND
11 13: GatherElements
11 13 16 18: ScatterElements ScatterND
11 14: CumSum
11 22: Det Round
12: Celu Einsum
12 13: SoftmaxCrossEntropyLoss
12 13 22: NegativeLogLikelihoodLoss
12 16: GreaterOrEqual LessOrEqual
14: Trilu
14 22: HardSwish
15: Optional
15 18: OptionalGetElement OptionalHasElement
15 19 21 23: CastLike
15 22!: Bernoulli
16 20! 22: GridSample
17: BlackmanWindow HammingWindow HannWindow LayerNormalization MelWeightMatrix STFT SequenceMap
17 20!: DFT
18: BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im
18 21!: GroupNormalization
18 22: Mish
19 22: DeformConv
20: AffineGrid Gelu ImageDecoder RegexFullMatch StringConcat StringSplit
23: Attention RMSNormalization RotaryEmbedding
"""


@functools.cache
def changes() -> dict[str, tuple[tuple[int, bool], ...]]:
    """Return for each operator its versions, and whether older nodes may have to be adapted to each."""
    table: dict[str, tuple[tuple[int, bool], ...]] = {}
    for line in _CHANGES.strip().splitlines():
        versions, _, names = line.partition(":")
        steps = tuple((int(version.rstrip("!")), version.endswith("!")) for version in versions.split())
        table.update(dict.fromkeys(names.split(), steps))
    return table


def exists(op_type: str, opset: int) -> bool:
    """Return whether the operator is part of an operator set."""
    steps = changes().get(op_type)
    return steps is not None and steps[0][0] <= opset


def since(op_type: str, opset: int) -> int:
    """Return the version of the operator in an operator set, or 0 if it has none."""
    return max((version for version, _ in changes().get(op_type, ()) if version <= opset), default=0)


def must_adapt(op_type: str, old: int, new: int) -> bool:
    """Return whether nodes of opset `old` may have to be rewritten for opset `new`."""
    return any(marked and old < version <= new for version, marked in changes()[op_type])


HIGHEST = NEWEST  # the default limit for raising a model


class OpsetPlan(Struct, frozen=True, eq=False):
    """The changes that convert a model to a newer operator set."""

    old: int
    new: int
    ir_version: int
    rewrites: tuple[tuple[ir.Node, Rewrite], ...]

    @property
    def name(self) -> str:
        """Return the stable key of the conversion."""
        return f"opset {self.new}"


class RaiseOpset(Rule):
    """The rule under which a conversion is recorded."""

    name: str = "raise-opset"
    accuracy: ClassVar[Accuracy] = Accuracy.REASSOCIATES
    algebra: ClassVar[str] = "a node of an older opset  =>  the same in a newer one, for a fusion that needs it"
    about: ClassVar[str] = (
        "The whole model is raised in one rewrite, because a model has one opset. The function stays the same, "
        "but a runtime may have another kernel for a newer operator, which may round differently."
    )


RAISE = RaiseOpset()


def plan(facts: Facts, nodes: Mapping[str, Iterable[ir.Node]], new: int) -> OpsetPlan:
    """Return how to raise a model; `nodes` are its nodes of standard operators, by operator.

    Raises:
        CannotRaise: if something in the model would not stay the same.
    """
    old = facts.scopes[facts.model.graph].opset
    if not OLDEST <= old < new <= NEWEST:
        raise CannotRaise(f"opset {old} is not raised")
    ir_version = max(facts.model.ir_version, onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", new)]))
    _check_inputs(facts.model, ir_version)
    rewrites: list[tuple[ir.Node, Rewrite]] = []
    functions = bool(facts.model.functions)
    for op_type, users in nodes.items():
        outside = [node for node in users if not facts.scope(node).in_function] if functions else list(users)
        if not outside:
            continue
        if not exists(op_type, old):
            raise CannotRaise(f"{op_type} ({label(outside[0])}) is not an operator of opset {old}")
        if must_adapt(op_type, old, new):
            rewrites.extend(_adapted(outside, facts, old, new))
    _check_functions(facts, new)
    return OpsetPlan(old, new, ir_version, tuple(rewrites))


def _adapted(nodes: Iterable[ir.Node], facts: Facts, old: int, new: int) -> Iterable[tuple[ir.Node, Rewrite]]:
    for node in nodes:
        try:
            rewrite = ADAPTERS[node.op_type](OpsetStep(node, facts, old, new))
        except CannotRaise as error:
            raise CannotRaise(f"{node.op_type} ({label(node)}) cannot be raised: {error}") from error
        if rewrite is not None:
            yield node, rewrite


def _check_inputs(model: ir.Model, ir_version: int) -> None:
    """Refuse weights that are also inputs: they are constants in old files, but not in newer IR versions."""
    if model.ir_version < BARE_INITIALIZERS <= ir_version and any(
        value.is_graph_input() for value in model.graph.initializers.values()
    ):
        raise CannotRaise(
            f"weights that are also inputs would no longer be constants above IR version {model.ir_version}"
        )


def _check_functions(facts: Facts, new: int) -> None:
    """Refuse a function whose operators differ from those of the same name in the new operator set."""
    for function in facts.model.functions.values():
        own = function.opset_imports.get("", 0) or function.opset_imports.get("ai.onnx", 0)
        for node in function.all_nodes():
            if not node.domain and since(node.op_type, own) != since(node.op_type, new):
                raise CannotRaise(f"the function {function.name} uses {node.op_type} of opset {own}")
