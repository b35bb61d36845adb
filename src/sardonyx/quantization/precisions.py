"""The precisions that modules can have, and the passes of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from sardonyx.passes import Pass
from sardonyx.quantization.bfloat16_weights import StoreInBfloat16
from sardonyx.quantization.calibration import Calibration
from sardonyx.quantization.conv_integer import QuantizeConvolutions
from sardonyx.quantization.dynamic_int8 import QuantizeDynamically
from sardonyx.quantization.embeddings import QuantizeEmbeddings
from sardonyx.quantization.error_compensation import Moments
from sardonyx.quantization.filter_weights import QuantizeFilters
from sardonyx.quantization.half import ConvertToHalf
from sardonyx.quantization.half_placement import ConstantSizes
from sardonyx.quantization.lstm_int8 import QuantizeLstm
from sardonyx.quantization.matmul_nbits import QuantizeToMatMulNBits
from sardonyx.quantization.merge_products import MergeProducts
from sardonyx.quantization.ranges import Ranges
from sardonyx.quantization.recipe import Quantizer, Selection, Simulated
from sardonyx.quantization.shared_tables import QuantizeSharedTables
from sardonyx.quantization.stacked_weights import QuantizeStacks
from sardonyx.quantization.static_int8 import QuantizeStatically, RaiseForScales
from sardonyx.quantization.stored_weights import QuantizeStoredWeights
from sardonyx.quantization.tied_head import QuantizeTiedHead
from sardonyx.quantization.weight_only import QuantizeWeights

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

    def of(self, plan: Plan, *, simulate: bool = False) -> tuple[Pass, ...]:
        """Return the passes of a plan; with `simulate`, each product is computed in float32 as well."""
        tables = [each.selection for each in plan if each.precision in _INTEGERS]
        passes: list[Pass] = []
        if tables:
            selection = Selection.any_of(tables)
            embeddings = QuantizeEmbeddings(selection, simulate=simulate)
            passes = [embeddings, QuantizeTiedHead(embeddings, selection, simulate=simulate)]
        filters = [each.selection for each in plan if each.precision in _WEIGHTS]
        if filters:
            passes.append(QuantizeFilters(Selection.any_of(filters), simulate=simulate))
        stacks = [each.selection for each in plan if each.precision in _STACKS]
        if stacks:
            passes.append(QuantizeStacks(Selection.any_of(stacks), simulate=simulate))
        for each in plan:
            passes += self._products(each.precision, each.selection, simulate=simulate)
        return tuple(sorted(passes, key=_rank))

    def _products(self, precision: Precision, selection: Selection, *, simulate: bool) -> tuple[Pass, ...]:
        """Return the passes of one precision; their names differ from those of all others."""
        match precision:
            case "int8":
                products = QuantizeDynamically(selection, simulate=simulate, moments=self.moments)
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
    recipes = (each for each in passes if isinstance(each, Quantizer | ConvertToHalf | StoreInBfloat16))
    return [product for recipe in recipes for product in recipe.simulated]


def candidates(*, has_data: bool, has_half: bool) -> tuple[Precision, ...]:
    """Return the precisions that "auto" tries: those with ranges from data, and fp16 if the opset has it."""
    return ("int8", *(("int8-static",) if has_data else ()), "int8-weights", "int4", *(("fp16",) if has_half else ()))
