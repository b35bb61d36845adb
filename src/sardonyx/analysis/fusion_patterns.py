"""The patterns that are looked for, in the order they are shown: a new one is a detector and a line here."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.analysis.attention_sites import Parts
from sardonyx.analysis.fingerprint.attention import Attention
from sardonyx.analysis.fingerprint.graph_reading import Reading
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
from sardonyx.ir.scopes import is_constant

# One look over a whole graph that the detectors share: its nodes by operator, and what in it depends on no input.

Finding = tuple[ir.Node, ...]  # the nodes of one place where a pattern is, in the order of the data


class Survey:
    """Every node of a model, bodies of control flow included, and what detectors ask about it."""

    def __init__(self, facts: Facts) -> None:
        """A survey of the model as it is now; it does not follow later changes."""
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
        """The nodes of standard operators, the operators in the order given."""
        return (node for op_type in op_types for node in self._by_type[op_type] if not node.domain)

    def named(self, *op_types: str) -> Iterator[ir.Node]:
        """The nodes of operators of that name, whatever their domain."""
        return (node for op_type in op_types for node in self._by_type[op_type])

    def fixed(self, value: ir.Value | None) -> bool:
        """Whether a value is the same in every run: a constant, or computed from nothing else."""
        return value is not None and self._flow.of(value) is Dependence.CONSTANT

    def fixed_nodes(self) -> Collection[ir.Node]:
        """The nodes that compute the same in every run."""
        return self._fixed

    @functools.cached_property
    def attention(self) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """Every place of attention: those that are decomposed, and those that are one operator."""
        reading = Reading(self.facts.model)
        facts = self.facts if reading.model is self.facts.model else Facts(reading.model)
        attention = Attention(reading)
        parts = Parts(facts, reading, attention)
        fused = tuple(site.nodes for site in attention.sites if attention_operands(site.first) is not None)
        return tuple(parts.of(site) for site in attention.sites if site.nodes not in fused), fused

    def maker(self, value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """The node that makes a value, where it is one of these standard operators."""
        node = None if value is None else value.producer()
        return node if node is not None and not node.domain and node.op_type in op_types else None

    def user(self, node: ir.Node | None, *op_types: str) -> ir.Node | None:
        """The one node that reads the first result of a node, where it is one of these standard operators."""
        found = None if node is None else self.facts.sole_user(node.outputs[0])
        return found if found is not None and not found.domain and found.op_type in op_types else None

    def users(self, node: ir.Node, *op_types: str) -> list[ir.Node]:
        """The nodes of these standard operators that read the first result of a node, in the same graph."""
        found = dict.fromkeys(use.node for use in node.outputs[0].uses())
        return [each for each in found if not each.domain and each.op_type in op_types and each.graph is node.graph]

    def above(self, value: ir.Value | None, *op_types: str) -> ir.Value | None:
        """The value that nodes of these operators were handed first, through any number of them."""
        while (node := self.maker(value, *op_types)) is not None:
            value = node.inputs[0]
        return value

    def chains(self, nodes: Iterable[ir.Node]) -> Iterator[Finding]:
        """Runs of two or more such nodes, each the only reader of the one before."""
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
        """The one node that reads the result, as its data and not as a size or another parameter."""
        after = self.facts.sole_user(node.outputs[0])
        return after if after is not None and after.inputs[0] is node.outputs[0] else None


# Attention as the fingerprint finds it, and the rotation that goes with it.


def cores(survey: Survey) -> Iterator[Finding]:
    """softmax(q @ kᵀ · scale + mask) @ v, spelled out."""
    return iter(survey.attention[0])


def attention_operators(survey: Survey) -> Iterator[Finding]:
    """Attention in one operator."""
    return iter(survey.attention[1])


def rotations(survey: Survey) -> Iterator[Finding]:
    """Concat(-second half, first half), the rotation in rotary embeddings."""
    for concat in survey.of("Concat"):
        if len(concat.inputs) != 2:
            continue
        negated = survey.maker(concat.inputs[0], "Neg")
        parts = None if negated is None else (negated.inputs[0], concat.inputs[1])
        makers = [] if parts is None else [survey.maker(part, *PARTS) for part in parts]
        if negated is None or len(makers) != 2 or makers[0] is None or makers[1] is None:
            continue
        if makers[0].inputs[0] is makers[1].inputs[0]:
            yield *dict.fromkeys((makers[0], makers[1])), negated, concat


# Operators that move data or change its type to no effect, alone or one after the other.


def idle_transposes(survey: Survey) -> Iterator[Finding]:
    """Transposes that leave every dim where it is, or move only dims of size one."""
    return ((node,) for node in survey.of("Transpose") if _is_idle(node, survey))


def _is_idle(node: ir.Node, survey: Survey) -> bool:
    shape = survey.facts.shape(node.inputs[0])
    perm = node.attributes.get_ints("perm", None)
    if perm is None:
        perm = None if shape is None else tuple(reversed(range(len(shape))))
    if perm is None:
        return False
    moved = [axis for axis in perm if shape is None or shape[axis] != 1]
    return moved == sorted(moved)


def idle_reshapes(survey: Survey) -> Iterator[Finding]:
    """Reshapes whose result has the shape they were given."""
    return ((node,) for node in survey.of(*sorted(VIEWS)) if survey.facts.same_shape(node.inputs[0], node.outputs[0]))


def idle_expands(survey: Survey) -> Iterator[Finding]:
    """Expands that repeat nothing."""
    return ((node,) for node in survey.of("Expand", "Tile") if survey.facts.same_shape(node.inputs[0], node.outputs[0]))


def reshape_chains(survey: Survey) -> Iterator[Finding]:
    """Reshape, Squeeze, Unsqueeze and Flatten one after the other."""
    return survey.chains(survey.of(*sorted(VIEWS)))


def transpose_chains(survey: Survey) -> Iterator[Finding]:
    """Transpose after Transpose."""
    return survey.chains(survey.of("Transpose"))


def cast_chains(survey: Survey) -> Iterator[Finding]:
    """Cast after Cast."""
    return survey.chains(survey.of("Cast"))


def idle_casts(survey: Survey) -> Iterator[Finding]:
    """Casts to the type that the value has."""
    for node in survey.of("Cast", "CastLike"):
        have = survey.facts.dtype(node.inputs[0])
        if have is not None and have == survey.facts.dtype(node.outputs[0]):
            yield (node,)


# Normalizations and activations that an exporter spelled out in arithmetic.

SQUARE = 2


def layer_norms(survey: Survey) -> Iterator[Finding]:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps), spelled out."""
    for found, squared in _root_mean_squares(survey):
        centred = survey.maker(survey.above(squared, "Cast"), "Sub")
        mean = None if centred is None else survey.maker(centred.inputs[1], "ReduceMean")
        if centred is not None and mean is not None and _same(survey, mean.inputs[0], centred.inputs[0]):
            yield mean, centred, *found


def rms_norms(survey: Survey) -> Iterator[Finding]:
    """x / sqrt(mean(x²) + eps), spelled out."""
    for found, squared in _root_mean_squares(survey):
        centred = survey.maker(survey.above(squared, "Cast"), "Sub")
        if centred is None or survey.maker(centred.inputs[1], "ReduceMean") is None:
            yield found


def _same(survey: Survey, one: ir.Value | None, other: ir.Value | None) -> bool:
    return survey.above(one, "Cast", "Identity") is survey.above(other, "Cast", "Identity")


def _root_mean_squares(survey: Survey) -> Iterator[tuple[Finding, ir.Value]]:
    """sqrt(mean(x²) + eps) and the x that goes in, however root and square are written."""
    for mean in survey.of("ReduceMean"):
        square = survey.maker(mean.inputs[0], "Pow", "Mul")
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
    return survey.facts.scalar(node.inputs[1]) == SQUARE


def gelus(survey: Survey) -> Iterator[Finding]:
    """x * (1 + erf(x / √2)) / 2, or its form with tanh, spelled out."""
    for bend in survey.of("Erf", "Tanh"):
        added = survey.user(bend, "Add")
        product = survey.user(added, "Mul")
        if added is None or product is None:
            continue
        if any(survey.facts.scalar(value) == 1 for value in added.inputs):
            yield bend, added, product


# Matrix products and convolutions with what follows them: a bias, a normalization, an activation.

FLAT = 2  # the rank that Gemm takes
TRIPLE = 3
ACTIVATIONS = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish")


def flat_products(survey: Survey) -> Iterator[Finding]:
    """x @ W + b of a matrix x: one Gemm."""
    return (found for found in _biased(survey) if survey.facts.rank(found[0].outputs[0]) == FLAT)


def deep_products(survey: Survey) -> Iterator[Finding]:
    """x @ W + b of an x with three or more dims, which Gemm does not take as it is."""
    return (found for found in _biased(survey) if survey.facts.rank(found[0].outputs[0]) != FLAT)


def _biased(survey: Survey) -> Iterator[Finding]:
    for add in survey.of("Add"):
        for value, other in (add.inputs, reversed(add.inputs)):
            product = survey.maker(value, "MatMul")
            if product is None or not survey.fixed(other) or survey.user(product, "Add") is not add:
                continue
            if survey.fixed(product.inputs[0]) != survey.fixed(product.inputs[1]):
                yield product, add
                break


def shared_input(survey: Survey) -> Iterator[Finding]:
    """Three or more products of one value with weights, as query, key and value are."""
    groups: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for product in survey.of("MatMul", "Gemm"):
        source = survey.above(product.inputs[0], *VIEWS)
        if source is not None and survey.fixed(product.inputs[1]) and not survey.fixed(source):
            groups[source].append(product)
    return (tuple(group) for group in groups.values() if len(group) >= TRIPLE)


def normalized(survey: Survey) -> Iterator[Finding]:
    """A BatchNormalization right after the layer whose weights could hold it."""
    for norm in survey.of("BatchNormalization"):
        layer = survey.maker(norm.inputs[0], *CONVOLUTIONS, *MATRIX_PRODUCTS)
        if layer is not None and survey.user(layer, "BatchNormalization") is norm:
            yield layer, norm


def activated(survey: Survey) -> Iterator[Finding]:
    """A convolution and the activation that alone reads it."""
    for layer in survey.of("Conv"):
        activation = survey.user(layer, *ACTIVATIONS)
        if activation is not None:
            yield layer, activation


# What a graph computes about itself: sizes of its tensors, and results that no input changes.

_ARITHMETIC = (
    *("Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity", "Where", "Equal"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "ReduceProd", "ConstantOfShape", "Range", "Floor", "Ceil"),
)


def shape_chains(survey: Survey) -> Iterator[Finding]:
    """A Shape that is read at run time, and the arithmetic that follows from it alone."""
    for start in survey.of(*sorted(READS_SHAPE)):
        chain, edge = {start: None}, [start]
        while edge:
            readers = {use.node: None for node in edge for value in node.outputs for use in value.uses()}
            edge = [reader for reader in readers if reader not in chain and _is_arithmetic(reader, survey)]
            chain.update(dict.fromkeys(edge))
        yield tuple(chain)


def _is_arithmetic(node: ir.Node, survey: Survey) -> bool:
    """Whether a node works on sizes: a small tensor of integers, not the data."""
    if node.domain or node.op_type not in _ARITHMETIC:
        return False
    dtype = survey.facts.dtype(node.inputs[0])
    return dtype is not None and dtype.is_integer() and survey.facts.rank(node.inputs[0]) in (0, 1)


def unfolded(survey: Survey) -> Iterator[Finding]:
    """Results that are the same in every run, computed in every run: counted where they are used."""
    fixed = survey.fixed_nodes()
    for last in survey.nodes:
        if last in fixed and _is_used_elsewhere(last, survey):
            region: dict[ir.Node, None] = {last: None}
            edge: list[ir.Node] = [last]
            while edge:
                makers = {value.producer(): None for node in edge for value in node.inputs if value is not None}
                edge = [maker for maker in makers if maker is not None and maker in fixed and maker not in region]
                region.update(dict.fromkeys(edge))
            yield tuple(reversed(region))


def _is_used_elsewhere(node: ir.Node, survey: Survey) -> bool:
    fixed = survey.fixed_nodes()
    return any(value.is_graph_output() or any(use.node not in fixed for use in value.uses()) for value in node.outputs)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Something an optimizer looks for, or something it makes."""

    name: str
    what: str  # in the words of a table
    find: Callable[[Survey], Iterator[Finding]]
    made: bool = False  # what fusions make: more of it is better


def _operators(*op_types: str) -> Callable[[Survey], Iterator[Finding]]:
    return functools.partial(_each, op_types)


def _each(op_types: tuple[str, ...], survey: Survey) -> Iterator[Finding]:
    return ((node,) for node in survey.named(*op_types))


PATTERNS = (
    Pattern("attention-cores", "attention, spelled out", cores),
    Pattern("attention-operators", "attention, one operator", attention_operators, made=True),
    Pattern("qkv-products", "three products of one input (Q, K, V)", shared_input),
    Pattern("rotary-rotations", "rotary rotation, spelled out", rotations),
    Pattern("rotary-operators", "rotary embedding, one operator", _operators("RotaryEmbedding"), made=True),
    Pattern("layer-norms", "LayerNorm, spelled out", layer_norms),
    Pattern("layer-norm-operators", "LayerNorm, one operator", _operators(*sorted(LAYER_NORMS)), made=True),
    Pattern("rms-norms", "RMSNorm, spelled out", rms_norms),
    Pattern("rms-norm-operators", "RMSNorm, one operator", _operators(*sorted(RMS_NORMS)), made=True),
    Pattern("gelus", "GELU, spelled out", gelus),
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
