"""The precisions and the recipes of each, plans that assign them to modules, and the models that plans make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.errors import UsageError, VerificationFailed
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
from sardonyx.verbs.quantize.calibration import METHODS, Calibration, Method, Ranges
from sardonyx.verbs.quantize.dynamic_int8 import QuantizeConvolutions, QuantizeDynamically, QuantizeTiedHead
from sardonyx.verbs.quantize.half import ConvertToHalf, StoreInBfloat16
from sardonyx.verbs.quantize.half_placement import Flaws
from sardonyx.verbs.quantize.loss import Answers, measure, size_of_loss
from sardonyx.verbs.quantize.recipe import Quantizer, Selection, Simulated, is_large
from sardonyx.verbs.quantize.scales import Moments
from sardonyx.verbs.quantize.stacked_weights import QuantizeLstm, QuantizeStacks
from sardonyx.verbs.quantize.static_int8 import QuantizeStatically, RaiseForScales
from sardonyx.verbs.quantize.weight_only import (
    QuantizeEmbeddings,
    QuantizeFilters,
    QuantizeSharedTables,
    QuantizeStoredWeights,
    QuantizeToMatMulNBits,
    QuantizeWeights,
)
from sardonyx.verbs.quantize.weights import DerivedTensor
from sardonyx.verification.subject import Subject

_MAX_MERGED_PRODUCTS = 16  # products of one activation that are considered
COMPARED_SAMPLES = 16  # samples on which methods for static ranges are compared


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
        if source is None or self._weight(node, graph) is None or len(source.uses()) > _MAX_MERGED_PRODUCTS:
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


class Assignment(Struct, frozen=True):
    """The modules that get one precision."""

    precision: Precision
    selection: Selection


Plan = tuple[Assignment, ...]  # each precision at most once; modules of no assignment stay in float32


_INTEGERS: tuple[Precision, ...] = ("int8", "int8-static", "int8-weights", "int4")  # whose embedding tables are in int8
_STACKS: tuple[Precision, ...] = ("int8", "int8-weights", "int4")  # whose stacks of matrices are in int8
_WEIGHTS: tuple[Precision, ...] = ("int8-weights", "int4")  # whose filters are in int8


class Recipes(Struct, frozen=True):
    """What every recipe of a plan is built with."""

    target: Target = "portable"
    calibration: Calibration | None = None  # ranges of activations, for static precisions
    ranges: Ranges = {}  # of activations, for fp16
    flaws: Flaws = field(default_factory=Flaws)  # of constants in fp16
    moments: Mapping[str, Moments] = {}  # of activations by name, for weights in blocks
    by_rows: bool = True  # whether activations that are quantized at run time have a scale for each row
    by_columns: bool = True  # whether their weights have one for each column

    def of(self, plan: Plan, *, simulate: bool = False) -> tuple[Pass, ...]:
        """Return the passes of a plan; with `simulate`, each product is computed in float32 as well.

        Ranges belong to names of the source, so nothing is replaced before static recipes. Products in blocks of 4 bits
        store the tables that they share with lookups; other tables are stored in 8 bits. The weights of an LSTM are
        stored as stacks only if it is not computed in integers.
        """
        static: list[Pass] = []
        early: list[Pass] = []
        late: list[Pass] = []

        def selected(among: Sequence[Precision]) -> Selection | None:
            selections = [each.selection for each in plan if each.precision in among]
            return Selection.any_of(selections) if selections else None

        if (tables := selected(_INTEGERS)) is not None:
            embeddings = QuantizeEmbeddings(tables, simulate=simulate)
            late += [embeddings, QuantizeTiedHead(embeddings, tables, simulate=simulate)]
        if (filters := selected(_WEIGHTS)) is not None:
            late.append(QuantizeFilters(filters, simulate=simulate))
        if (stacks := selected(_STACKS)) is not None:
            late.append(QuantizeStacks(stacks, simulate=simulate))
        for each in plan:  # passes of two precisions have different names
            selection, moments = each.selection, self.moments
            match each.precision:
                case "int8":
                    scales = {"by_rows": self.by_rows, "by_columns": self.by_columns}
                    late.append(QuantizeDynamically(selection, simulate=simulate, moments=moments, **scales))
                    late.append(QuantizeConvolutions(selection, simulate=simulate))
                    early += [QuantizeLstm(selection, simulate=simulate)] if self.target == "ort" else []
                case "int8-static":
                    assert self.calibration is not None
                    static.append(RaiseForScales(selection))
                    static.append(QuantizeStatically(self.calibration, selection, simulate=simulate))
                case "int8-weights":
                    recipe = QuantizeToMatMulNBits if self.target == "ort" else QuantizeStoredWeights
                    late.append(recipe(8, selection, simulate=simulate, moments=moments))
                case "int4" if self.target == "ort":
                    blocks = QuantizeToMatMulNBits(4, selection, simulate=simulate, moments=moments)
                    shared = QuantizeSharedTables(blocks, selection, simulate=simulate)
                    early += [MergeProducts(selection), blocks, shared]
                case "int4":
                    late.append(QuantizeWeights(4, selection, simulate=simulate, moments=moments))
                case "fp16":
                    late.append(ConvertToHalf(selection, self.ranges, self.flaws, simulate=simulate))
                case "bf16":
                    late.append(StoreInBfloat16(selection, simulate=simulate))
        return (*static, *early, *late)


class NothingQuantized(UsageError):
    """No product of the selected modules can be quantized."""


class Job:
    """The source and the recipes that are applied to it. Every model is built from the source again."""

    def __init__(self, source: Source, recipes: Recipes) -> None:
        self.source = Path(source) if isinstance(source, (str, os.PathLike)) else source
        self.recipes = recipes
        self._first = self._job(())
        unchanged = self._first.candidate()
        self.before = unchanged.before.counts
        self.labels = [label(node) for node in unchanged.model.graph]  # in the order in which they run
        self.owners = [module_of(owner(node)) or label(node) for node in unchanged.model.graph]
        self.opsets = self._first.opsets

    def use_best_ranges(self, selection: Selection, answers: Answers, threads: int | None, seed: int) -> None:
        """Use the ranges of the method that loses least, with all modules in static integers, from now on."""
        recipes, calibration = self.recipes, self.recipes.calibration
        assert calibration is not None
        losses: dict[Method, float] = {}
        for method in METHODS:
            self.recipes = replace(recipes, calibration=replace(calibration, method=method))
            try:
                candidate, _ = self.quantized((Assignment("int8-static", selection),))
                scores = measure(Subject(candidate.model), answers, threads, COMPARED_SAMPLES).scores(seed)
            except NothingQuantized:
                break
            except VerificationFailed:
                continue  # the ranges of this method give NaN
            if scores is not None:
                losses[method] = size_of_loss(scores)
        self.recipes = replace(recipes, calibration=calibration.chosen(losses))

    def quantized(self, plan: Plan) -> tuple[Candidate, tuple[PassRecord, ...]]:
        """Return the source after the passes of a plan, and what each did.

        Raises:
            NothingQuantized: No product can be quantized.
        """
        passes = self.recipes.of(plan)
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
        passes = self.recipes.of(plan, simulate=True)
        model = self._job(passes).candidate().model
        return model, [product for each in passes if isinstance(each, Quantizer) for product in each.simulated]

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
            self.recipes.target,
            lambda _phase, _fraction: None,
            allow_growth=True,
        )
