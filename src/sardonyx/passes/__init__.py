"""The passes, in the order they run. A new pass is one file and one line here."""

from __future__ import annotations

from sardonyx.passes.absorb_transpose import AbsorbTranspose
from sardonyx.passes.base import Example, ModelPass, NodePass, Pass
from sardonyx.passes.drop_dead_nodes import DropDeadNodes
from sardonyx.passes.drop_unused_initializers import DropUnusedInitializers
from sardonyx.passes.eliminate_add_zero import EliminateAddZero
from sardonyx.passes.eliminate_identity import EliminateIdentity
from sardonyx.passes.eliminate_noop_arithmetic import EliminateNoopArithmetic
from sardonyx.passes.eliminate_noop_shape import EliminateNoopShape
from sardonyx.passes.fold_constants import FoldConstants
from sardonyx.passes.fold_shapes import FoldShapes
from sardonyx.passes.fold_view_targets import FoldViewTargets
from sardonyx.passes.fold_weight_views import FoldWeightViews
from sardonyx.passes.fuse_batch_norm import FuseBatchNorm
from sardonyx.passes.fuse_conv_affine import FuseConvAffine
from sardonyx.passes.fuse_conv_relu import FuseConvRelu
from sardonyx.passes.fuse_matmul_add import FuseMatMulAdd
from sardonyx.passes.lift_constants import LiftConstants
from sardonyx.passes.merge_reshapes import MergeReshapes
from sardonyx.passes.merge_transposes import MergeTransposes
from sardonyx.passes.resolve_cast_like import ResolveCastLike
from sardonyx.passes.share_constants import ShareConstants
from sardonyx.passes.share_subexpressions import ShareSubexpressions

ALL: tuple[Pass, ...] = (
    EliminateIdentity(),
    EliminateNoopShape(),
    EliminateNoopArithmetic(),
    EliminateAddZero(),
    ResolveCastLike(),
    FoldShapes(),
    FoldViewTargets(),
    AbsorbTranspose(),
    FoldWeightViews(),
    FoldConstants(),
    ShareConstants(),
    ShareSubexpressions(),
    LiftConstants(),
    MergeReshapes(),
    MergeTransposes(),
    FuseBatchNorm(),
    FuseConvAffine(),
    FuseMatMulAdd(),
    FuseConvRelu(),
    DropDeadNodes(),
    DropUnusedInitializers(),
)

__all__ = ["ALL", "Example", "ModelPass", "NodePass", "Pass"]
