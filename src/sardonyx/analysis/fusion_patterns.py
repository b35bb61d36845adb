"""Detect the patterns that optimizers fuse or remove, and what fusions produce.

A new pattern is a detector (a function from a `Survey` to its matches) and a line in `PATTERNS`, which gives the
order in the output.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator

import onnx_ir as ir
from msgspec import Struct

from sardonyx.analysis.attention_sites import SiteNodes, view_of
from sardonyx.analysis.fingerprint.attention import Attention
from sardonyx.ir.dataflow import Dataflow, Dependence
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import (
    CONVOLUTIONS,
    GELUS,
    LAYER_NORMS,
    MATRIX_PRODUCTS,
    PARTS,
    READS_SHAPE,
    RMS_NORMS,
    VIEWS,
    attention_operands,
)
from sardonyx.ir.scopes import is_constant, is_used_outside

PatternMatch = tuple[ir.Node, ...]  # the nodes of one match of a pattern, in data-flow order


class Survey:
    """An index over every node of a model, bodies of control flow included, that the detectors share."""

    def __init__(self, facts: Facts) -> None:
        """Index the model as it is now; later changes are not tracked."""
        self.facts = facts
        self.nodes: list[ir.Node] = []
        self._by_type: dict[str, list[ir.Node]] = defaultdict(list)
        self._flow = Dataflow()
        self._fixed: set[ir.Node] = set()
        for node in (node for scope in facts.live_scopes() for node in scope.graph):
            depends = self._flow.visit(node)
            if is_constant(node):
                continue
            self.nodes.append(node)
            self._by_type[node.op_type].append(node)
            if depends is Dependence.CONSTANT:
                self._fixed.add(node)

    def of(self, *op_types: str) -> Iterator[ir.Node]:
        """Return the nodes of standard operators, in the order of the arguments."""
        return (node for op_type in op_types for node in self._by_type[op_type] if not node.domain)

    def named(self, *op_types: str) -> Iterator[ir.Node]:
        """Return the nodes of operators with these names in any domain."""
        return (node for op_type in op_types for node in self._by_type[op_type])

    def fixed(self, value: ir.Value | None) -> bool:
        """Return whether a value is a constant or computed from constants only."""
        return value is not None and self._flow.of(value) is Dependence.CONSTANT

    def fixed_nodes(self) -> Collection[ir.Node]:
        """Return the nodes that are computed from constants only."""
        return self._fixed

    @functools.cached_property
    def attention(self) -> tuple[tuple[PatternMatch, ...], tuple[PatternMatch, ...]]:
        """The attention sites that are decomposed, and those that are one operator."""
        view, facts = view_of(self.facts)
        attention = Attention(view)
        parts = SiteNodes(facts, view, attention)
        decomposed = tuple(parts.of(site) for site in attention.sites if attention_operands(site.first) is None)
        return decomposed, tuple(site.nodes for site in attention.sites if attention_operands(site.first) is not None)

    def producer(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """Return the producer of a value if it is one of these standard operators, otherwise None."""
        node = None if value is None else value.producer()
        return node if node is not None and not node.domain and node.op_type in op_types else None

    def user(self, node: ir.Node | None, *op_types: str) -> ir.Node | None:
        """Return the only user of a node's first output if it is one of these standard operators, otherwise None."""
        user = None if node is None else self.facts.sole_consumer(node.outputs[0])
        return user if user is not None and not user.domain and user.op_type in op_types else None

    def above(self, value: ir.Value | None, *op_types: str) -> ir.Value | None:
        """Return the value before any chain of these operators, following their first operands."""
        while (node := self.producer(value, *op_types)) is not None:
            value = node.inputs[0]
        return value

    def chains(self, nodes: Iterable[ir.Node]) -> Iterator[PatternMatch]:
        """Yield the runs of two or more of these nodes, each the only user of the one before."""
        follows = {node: self._follower(node) for node in nodes}
        inside = {after for after in follows.values() if after in follows}
        for first in follows:
            if first in inside:
                continue
            run: list[ir.Node] = [first]
            while (after := follows[run[-1]]) is not None and after in follows:
                run.append(after)
            if len(run) > 1:
                yield tuple(run)

    def _follower(self, node: ir.Node) -> ir.Node | None:
        """Return the only user of a result if it reads it as its first operand, otherwise None."""
        after = self.facts.sole_consumer(node.outputs[0])
        return after if after is not None and after.inputs[0] is node.outputs[0] else None


# Attention, as the fingerprint finds it, and rotary embeddings.


def cores(survey: Survey) -> Iterator[PatternMatch]:
    """Find softmax(q @ kᵀ · scale + mask) @ v in primitive operators."""
    return iter(survey.attention[0])


def attention_operators(survey: Survey) -> Iterator[PatternMatch]:
    """Find attention operators."""
    return iter(survey.attention[1])


def rotations(survey: Survey) -> Iterator[PatternMatch]:
    """Find Concat(-second half, first half), the rotation in rotary embeddings."""
    for concat in survey.of("Concat"):
        if len(concat.inputs) != 2:
            continue
        negated = survey.producer(concat.inputs[0], "Neg")
        if negated is None:
            continue
        second, first = survey.producer(negated.inputs[0], *PARTS), survey.producer(concat.inputs[1], *PARTS)
        if second is not None and first is not None and second.inputs[0] is first.inputs[0]:
            yield *dict.fromkeys((second, first)), negated, concat


# Moves and casts without effect, and chains of them.


def idle_transposes(survey: Survey) -> Iterator[PatternMatch]:
    """Find Transposes that keep the order of all dimensions other than those of size one."""
    return ((node,) for node in survey.of("Transpose") if _is_idle(node, survey))


def _is_idle(node: ir.Node, survey: Survey) -> bool:
    shape = survey.facts.shape(node.inputs[0])
    perm = node.attributes.get_ints("perm", None)
    if perm is None:
        perm = None if shape is None else tuple(reversed(range(len(shape))))
    if perm is None or (shape is not None and len(perm) != len(shape)):
        return False
    moved = [axis for axis in perm if shape is None or shape[axis] != 1]
    return moved == sorted(moved)


def idle_reshapes(survey: Survey) -> Iterator[PatternMatch]:
    """Find Reshapes whose output has the shape of the input."""
    return ((node,) for node in survey.of(*sorted(VIEWS)) if survey.facts.same_shape(node.inputs[0], node.outputs[0]))


def idle_expands(survey: Survey) -> Iterator[PatternMatch]:
    """Find Expands and Tiles whose output has the shape of the input."""
    return ((node,) for node in survey.of("Expand", "Tile") if survey.facts.same_shape(node.inputs[0], node.outputs[0]))


def reshape_chains(survey: Survey) -> Iterator[PatternMatch]:
    """Find chains of Reshape, Squeeze, Unsqueeze and Flatten."""
    return survey.chains(survey.of(*sorted(VIEWS)))


def transpose_chains(survey: Survey) -> Iterator[PatternMatch]:
    """Find chains of Transposes."""
    return survey.chains(survey.of("Transpose"))


def cast_chains(survey: Survey) -> Iterator[PatternMatch]:
    """Find chains of Casts."""
    return survey.chains(survey.of("Cast"))


def idle_casts(survey: Survey) -> Iterator[PatternMatch]:
    """Find Casts to the type that the value already has."""
    for node in survey.of("Cast", "CastLike"):
        dtype = survey.facts.dtype(node.inputs[0])
        if dtype is not None and dtype == survey.facts.dtype(node.outputs[0]):
            yield (node,)


# Decomposed normalizations and activations.


def layer_norms(survey: Survey) -> Iterator[PatternMatch]:
    """Find (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps)."""
    for nodes, squared in _root_mean_squares(survey):
        centred = survey.producer(survey.above(squared, "Cast"), "Sub")
        mean = None if centred is None else survey.producer(centred.inputs[1], "ReduceMean")
        if centred is not None and mean is not None and _same(survey, mean.inputs[0], centred.inputs[0]):
            yield mean, centred, *nodes


def rms_norms(survey: Survey) -> Iterator[PatternMatch]:
    """Find x / sqrt(mean(x²) + eps)."""
    for nodes, squared in _root_mean_squares(survey):
        centred = survey.producer(survey.above(squared, "Cast"), "Sub")
        if centred is None or survey.producer(centred.inputs[1], "ReduceMean") is None:
            yield nodes


def _same(survey: Survey, one: ir.Value | None, other: ir.Value | None) -> bool:
    return survey.above(one, "Cast", "Identity") is survey.above(other, "Cast", "Identity")


def _root_mean_squares(survey: Survey) -> Iterator[tuple[PatternMatch, ir.Value]]:
    """Yield the nodes of sqrt(mean(x²) + eps) and x, with root and square in any form."""
    for mean in survey.of("ReduceMean"):
        square = survey.producer(mean.inputs[0], "Pow", "Mul")
        added = survey.user(mean, "Add")
        root = survey.user(added, "Sqrt", "Pow")
        if square is None or added is None or root is None or not _is_square(square, survey):
            continue
        squared = square.inputs[0]
        if squared is not None:
            yield (square, mean, added, root), squared


def _is_square(node: ir.Node, survey: Survey) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    return survey.facts.scalar(node.inputs[1]) == 2


def gelus(survey: Survey) -> Iterator[PatternMatch]:
    """Find x * (1 + erf(x / √2)) / 2, or its approximation with tanh."""
    for curve in survey.of("Erf", "Tanh"):
        added = survey.user(curve, "Add")
        product = survey.user(added, "Mul")
        if added is None or product is None:
            continue
        if any(survey.facts.scalar(value) == 1 for value in added.inputs):
            yield curve, added, product


# Matrix products and convolutions followed by a bias, a normalization or an activation.

_GEMM_RANK = 2
_TRIPLE = 3
_ACTIVATIONS = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish")


def flat_products(survey: Survey) -> Iterator[PatternMatch]:
    """Find x @ W + b of a matrix x, which is one Gemm."""
    return (match for match in _biased(survey) if survey.facts.rank(match[0].outputs[0]) == _GEMM_RANK)


def deep_products(survey: Survey) -> Iterator[PatternMatch]:
    """Find x @ W + b of an x with three or more dimensions, which Gemm does not accept."""
    return (match for match in _biased(survey) if survey.facts.rank(match[0].outputs[0]) != _GEMM_RANK)


def _biased(survey: Survey) -> Iterator[PatternMatch]:
    for add in survey.of("Add"):
        for value, other in (add.inputs, reversed(add.inputs)):
            product = survey.producer(value, "MatMul")
            if product is None or not survey.fixed(other) or survey.user(product, "Add") is not add:
                continue
            if survey.fixed(product.inputs[0]) != survey.fixed(product.inputs[1]):
                yield product, add
                break


def shared_input(survey: Survey) -> Iterator[PatternMatch]:
    """Find three or more products of one value with weights, such as query, key and value."""
    groups: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for product in survey.of("MatMul", "Gemm"):
        source = survey.above(product.inputs[0], *VIEWS)
        if source is not None and survey.fixed(product.inputs[1]) and not survey.fixed(source):
            groups[source].append(product)
    return (tuple(group) for group in groups.values() if len(group) >= _TRIPLE)


def normalized(survey: Survey) -> Iterator[PatternMatch]:
    """Find a BatchNormalization right after a layer whose weights could absorb it."""
    for norm in survey.of("BatchNormalization"):
        layer = survey.producer(norm.inputs[0], *CONVOLUTIONS, *MATRIX_PRODUCTS)
        if layer is not None and survey.user(layer, "BatchNormalization") is norm:
            yield layer, norm


def activated(survey: Survey) -> Iterator[PatternMatch]:
    """Find a convolution whose only user is an activation."""
    for layer in survey.of("Conv"):
        activation = survey.user(layer, *_ACTIVATIONS)
        if activation is not None:
            yield layer, activation


# Computations on sizes of tensors, and results that depend on no input.

_ARITHMETIC = (
    *("Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity", "Where", "Equal"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "ReduceProd", "ConstantOfShape", "Range", "Floor", "Ceil"),
)


def shape_chains(survey: Survey) -> Iterator[PatternMatch]:
    """Find each Shape that is computed at run time, with the integer arithmetic on it."""
    for start in survey.of(*sorted(READS_SHAPE)):
        chain, edge = {start: None}, [start]
        while edge:
            readers = {use.node: None for node in edge for value in node.outputs for use in value.uses()}
            edge = [reader for reader in readers if reader not in chain and _is_arithmetic(reader, survey)]
            chain.update(dict.fromkeys(edge))
        yield tuple(chain)


def _is_arithmetic(node: ir.Node, survey: Survey) -> bool:
    """Return whether a node computes on sizes: integers of rank 0 or 1."""
    if node.domain or node.op_type not in _ARITHMETIC:
        return False
    dtype = survey.facts.dtype(node.inputs[0])
    return dtype is not None and dtype.is_integer() and survey.facts.rank(node.inputs[0]) in (0, 1)


def unfolded(survey: Survey) -> Iterator[PatternMatch]:
    """Find the results computed from constants only, one match for each result that other nodes use."""
    fixed = survey.fixed_nodes()
    for last in survey.nodes:
        if last in fixed and _is_used_elsewhere(last, survey):
            region: dict[ir.Node, None] = {last: None}
            edge: list[ir.Node] = [last]
            while edge:
                producers = {value.producer(): None for node in edge for value in node.inputs if value is not None}
                edge = [node for node in producers if node is not None and node in fixed and node not in region]
                region.update(dict.fromkeys(edge))
            yield tuple(reversed(region))


def _is_used_elsewhere(node: ir.Node, survey: Survey) -> bool:
    return any(is_used_outside(value, survey.fixed_nodes()) for value in node.outputs)


class Pattern(Struct, frozen=True):
    """A pattern that an optimizer looks for or produces."""

    name: str
    what: str  # the label in tables
    find: Callable[[Survey], Iterator[PatternMatch]]
    made: bool = False  # produced by fusions: more matches are better


def _operators(*op_types: str) -> Callable[[Survey], Iterator[PatternMatch]]:
    return lambda survey: ((node,) for node in survey.named(*op_types))


PATTERNS = (
    Pattern("attention-cores", "attention, decomposed", cores),
    Pattern("attention-operators", "attention, one operator", attention_operators, made=True),
    Pattern("qkv-products", "three products of one input (Q, K, V)", shared_input),
    Pattern("rotary-rotations", "rotary rotation, decomposed", rotations),
    Pattern("rotary-operators", "rotary embedding, one operator", _operators("RotaryEmbedding"), made=True),
    Pattern("layer-norms", "LayerNorm, decomposed", layer_norms),
    Pattern("layer-norm-operators", "LayerNorm, one operator", _operators(*sorted(LAYER_NORMS)), made=True),
    Pattern("rms-norms", "RMSNorm, decomposed", rms_norms),
    Pattern("rms-norm-operators", "RMSNorm, one operator", _operators(*sorted(RMS_NORMS)), made=True),
    Pattern("gelus", "GELU, decomposed", gelus),
    Pattern("gelu-operators", "GELU, one operator", _operators(*sorted(GELUS)), made=True),
    Pattern("deep-products", "MatMul + Add, 3-D or more", deep_products),
    Pattern("flat-products", "MatMul + Add, 2-D", flat_products),
    Pattern("layer-batch-norms", "BatchNorm after a layer", normalized),
    Pattern("conv-activations", "Conv + activation", activated),
    Pattern("shape-chains", "shape chain", shape_chains),
    Pattern("unfolded-constants", "unfolded constant", unfolded),
    Pattern("reshape-chains", "Reshape after Reshape", reshape_chains),
    Pattern("transpose-chains", "Transpose after Transpose", transpose_chains),
    Pattern("cast-chains", "Cast after Cast", cast_chains),
    Pattern("idle-reshapes", "Reshape that changes nothing", idle_reshapes),
    Pattern("idle-transposes", "Transpose that changes nothing", idle_transposes),
    Pattern("idle-expands", "Expand that repeats nothing", idle_expands),
    Pattern("idle-casts", "Cast to the type it has", idle_casts),
)
