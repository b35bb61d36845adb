"""The precisions and the recipes of each, plans that assign them to modules, and the models that plans make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.errors import UsageError
from sardonyx.ir import io
from sardonyx.ir.origins import Source, owner
from sardonyx.ir.scopes import label, operand
from sardonyx.ir.tensors import ConcatTensor
from sardonyx.passes import Pass
from sardonyx.passes._parts import split_into
from sardonyx.passes.base import Accuracy, Builder, Facts, Match, NodePass, Replacement
from sardonyx.passes.cleanup import UNUSED
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.records.provenance import module_of
from sardonyx.records.run import Artifact, PassRecord
from sardonyx.verbs.optimize import run_tables
from sardonyx.verbs.optimize.candidates import Candidate, RewriteJob
from sardonyx.verbs.quantize.calibration import Calibration, Ranges
from sardonyx.verbs.quantize.dynamic_int8 import QuantizeDynamically
from sardonyx.verbs.quantize.embeddings import QuantizeEmbeddings, QuantizeSharedTables, QuantizeTiedHead
from sardonyx.verbs.quantize.filters import QuantizeConvolutions, QuantizeFilters
from sardonyx.verbs.quantize.half import ConvertToHalf, StoreInBfloat16
from sardonyx.verbs.quantize.half_placement import ConstantSizes
from sardonyx.verbs.quantize.recipe import Quantizer, Selection, Simulated, is_large
from sardonyx.verbs.quantize.scales import Moments
from sardonyx.verbs.quantize.stacked_weights import QuantizeLstm, QuantizeStacks
from sardonyx.verbs.quantize.static_int8 import QuantizeStatically, RaiseForScales
from sardonyx.verbs.quantize.weight_only import QuantizeStoredWeights, QuantizeToMatMulNBits, QuantizeWeights
from sardonyx.verbs.quantize.weights import DerivedTensor

_MERGED = 16  # products of one activation that are considered


class MergeProducts(NodePass):
    """MatMul(x, V), MatMul(x, W) => Split(MatMul(x, [V W])), for constant matrices V and W that nothing else reads.

    For products that get the same recipe, before it runs: their columns do not depend on each other. Refuses products
    of modules that are not selected, and weights that are too small to be quantized. Helps because x is rounded once,
    and because a kernel with few rows takes much of its time to start.
    """

    name = "merge-products"
    accuracy = Accuracy.REASSOCIATES
    roots = ("MatMul",)

    def __init__(self, selection: Selection) -> None:
        """Merge products of the selected modules."""
        self._selection = selection

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        """Match all products of the activation of a product."""
        source = operand(node, 0)
        if source is None or self._weight(node, graph) is None or len(source.uses()) > _MERGED:
            return None
        readers = dict.fromkeys(use.node for use in source.uses() if use.idx == 0 and use.node.graph is node.graph)
        products = [reader for reader in readers if self._weight(reader, graph) is not None]
        if len(products) < 2:
            return None
        first = graph.first(products)
        nodes = (*(product for product in products if product is not first), first)
        tensors = [tensor for product in products if (tensor := self._weight(product, graph)) is not None]
        return Match(nodes, {"tensors": tensors}, tuple(product.outputs[0] for product in products))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build one product and split its result."""
        source, tensors = match.root.inputs[0], match.details["tensors"]
        assert source is not None
        result = op.MatMul(source, op.constant(ConcatTensor(tensors), "weight"))
        return split_into(result, -1, [tensor.shape.numpy()[1] for tensor in tensors], op)

    def _weight(self, node: ir.Node, graph: Facts) -> ir.TensorProtocol | None:
        """Return the weight of a product that may be merged."""
        weight = operand(node, 1)
        tensor = graph.tensor(weight)
        if node.op_type != "MatMul" or node.domain or weight is None or tensor is None or len(tensor.shape) != 2:
            return None
        is_merged = isinstance(tensor, (ConcatTensor, DerivedTensor))
        if is_merged or tensor.dtype is not ir.DataType.FLOAT or not is_large(tensor):
            return None
        is_free = not graph.scope(node).path and graph.sole_consumer(weight) is node
        return tensor if is_free and self._selection.includes(node) else None


Precision = Literal["int8", "int8-static", "int8-weights", "int4", "fp16", "bf16"]
Target = Literal["portable", "ort"]
Scheme = Literal["asymmetric", "symmetric"]  # of activations with static ranges
AUTO = "auto"


class Assignment(Struct, frozen=True):
    """The modules that get one precision."""

    precision: Precision
    selection: Selection


Plan = tuple[Assignment, ...]  # each precision at most once; modules of no assignment stay in float32


class Recipes(Struct, frozen=True):
    """What every recipe of a plan is built with."""

    target: Target = "portable"
    calibration: Calibration | None = None  # ranges of activations, for static precisions
    ranges: Ranges = {}  # of activations, for fp16
    sizes: ConstantSizes = field(default_factory=ConstantSizes)
    moments: Mapping[str, Moments] = {}  # of activations by name, for weights in blocks
    by_rows: bool = True  # whether activations that are quantized at run time have a scale for each row

    def of(self, plan: Plan, *, simulate: bool = False) -> tuple[Pass, ...]:
        """Return the passes of a plan; with `simulate`, each product is computed in float32 as well."""

        def selected(among: Sequence[Precision]) -> Selection | None:
            selections = [each.selection for each in plan if each.precision in among]
            return Selection.any_of(selections) if selections else None

        passes: list[Pass] = []
        if (tables := selected(_INTEGERS)) is not None:
            embeddings = QuantizeEmbeddings(tables, simulate=simulate)
            passes = [embeddings, QuantizeTiedHead(embeddings, tables, simulate=simulate)]
        if (filters := selected(_WEIGHTS)) is not None:
            passes.append(QuantizeFilters(filters, simulate=simulate))
        if (stacks := selected(_STACKS)) is not None:
            passes.append(QuantizeStacks(stacks, simulate=simulate))
        for each in plan:
            passes += self._products(each.precision, each.selection, simulate=simulate)
        return tuple(sorted(passes, key=_rank))

    def _products(self, precision: Precision, selection: Selection, *, simulate: bool) -> tuple[Pass, ...]:
        """Return the passes of one precision; their names differ from those of all others."""
        match precision:
            case "int8":
                products = QuantizeDynamically(selection, simulate=simulate, moments=self.moments, by_rows=self.by_rows)
                lstm = (QuantizeLstm(selection, simulate=simulate),) if self.target == "ort" else ()
                return (products, QuantizeConvolutions(selection, simulate=simulate), *lstm)
            case "int8-static":
                assert self.calibration is not None
                return (RaiseForScales(selection), QuantizeStatically(self.calibration, selection, simulate=simulate))
            case "int8-weights":
                recipe = QuantizeToMatMulNBits if self.target == "ort" else QuantizeStoredWeights
                return (recipe(8, selection, simulate=simulate, moments=self.moments),)
            case "int4" if self.target == "ort":
                blocks = QuantizeToMatMulNBits(4, selection, simulate=simulate, moments=self.moments)
                return (MergeProducts(selection), blocks, QuantizeSharedTables(blocks, selection, simulate=simulate))
            case "int4":
                return (QuantizeWeights(4, selection, simulate=simulate, moments=self.moments),)
            case "fp16":
                return (ConvertToHalf(selection, self.ranges, self.sizes, simulate=simulate),)
            case "bf16":
                return (StoreInBfloat16(selection, simulate=simulate),)


def _rank(each: Pass) -> int:
    """Return 0 for what runs first: ranges belong to names of the source, so nothing is replaced before static recipes.

    Products in blocks of 4 bits store the tables that they share with lookups; other tables are stored in 8 bits. The
    weights of an LSTM are stored as stacks only if it is not computed in integers.
    """
    if isinstance(each, RaiseForScales | QuantizeStatically):
        return 0
    is_early = isinstance(each, MergeProducts | QuantizeSharedTables | QuantizeLstm)
    is_early |= isinstance(each, QuantizeToMatMulNBits) and each.is_symmetric
    return 1 if is_early else 2


_INTEGERS: tuple[Precision, ...] = ("int8", "int8-static", "int8-weights", "int4")  # whose embedding tables are in int8
_STACKS: tuple[Precision, ...] = ("int8", "int8-weights", "int4")  # whose stacks of matrices are in int8
_WEIGHTS: tuple[Precision, ...] = ("int8-weights", "int4")  # whose filters are in int8


def simulated(passes: tuple[Pass, ...]) -> list[Simulated]:
    """Return the simulations that the recipes among these passes have built."""
    return [product for recipe in passes if isinstance(recipe, Quantizer) for product in recipe.simulated]


def candidates(*, has_data: bool, has_half: bool) -> tuple[Precision, ...]:
    """Return the precisions that "auto" tries: those with ranges from data, and fp16 if the opset has it."""
    return ("int8", *(("int8-static",) if has_data else ()), "int8-weights", "int4", *(("fp16",) if has_half else ()))


class NothingQuantized(UsageError):
    """No product of the selected modules can be quantized."""


class Job:
    """The source and the recipes that are applied to it. Every model is built from the source again."""

    def __init__(self, source: Source, recipes: Recipes) -> None:
        self.source = Path(source) if isinstance(source, (str, os.PathLike)) else source
        self._recipes = recipes
        self.target = recipes.target
        self._first = self._job(())
        unchanged = self._first.candidate()
        self.before = unchanged.before.counts
        self.labels = [label(node) for node in unchanged.model.graph]  # in the order in which they run
        self.owners = [module_of(owner(node)) or label(node) for node in unchanged.model.graph]
        self.opsets = self._first.opsets

    def quantized(self, plan: Plan) -> tuple[Candidate, tuple[PassRecord, ...]]:
        """Return the source after the passes of a plan, and what each did.

        Raises:
            NothingQuantized: No product can be quantized.
        """
        passes = self._recipes.of(plan)
        job = self._job((*passes, EliminateDeadNodes()))  # weights of Constant nodes are dead once they are replaced
        candidate = job.candidate()
        recipes = [each.name for each in passes if not isinstance(each, MergeProducts)]
        if not any(candidate.log.tallies[name].rewrites for name in recipes):
            reasons = [refusal.reason for refusal in candidate.log.refusals]
            raise NothingQuantized(
                "nothing can be quantized" + (f": {reasons[0]}" if reasons else ""),
                hint="products of activations with constant float32 weights can be; see `keep_modules`, `only_modules`",
            )
        return candidate, run_tables.pass_records(job.passes, candidate.log)

    def simulated(self, plan: Plan) -> tuple[ir.Model, list[Simulated]]:
        """Return the result of a plan with the simulation of every product beside it."""
        passes = self._recipes.of(plan, simulate=True)
        model = self._job(passes).candidate().model
        return model, simulated(passes)

    def artifact(self) -> Artifact:
        """Return the source as an artifact of the record."""
        path = self._first.path
        return self._first.artifact(None if path is None else io.sha256_of(path))

    def opset_changes(self, model: ir.Model) -> dict[str, tuple[int, int]]:
        """Return the old and new versions of the operator sets that changed."""
        changed = model.opset_imports.items() - self.opsets.items()
        return {domain: (self._first.opset_of(domain), version) for domain, version in sorted(changed)}

    def _job(self, passes: tuple[Pass, ...]) -> RewriteJob:
        # A weight is replaced product by product, so that the model grows until the last one; the result is smaller.
        return RewriteJob(
            self.source,
            (*passes, *UNUSED),
            self._recipes.target,
            lambda _phase, _fraction: None,
            allow_growth=True,
        )
