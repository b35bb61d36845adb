"""The kinds and costs of torch's operators: those that reach the dispatcher, and the composite ones that export keeps.

`describe` takes an operator's name ("aten.addmm", in place or not), its tensor arguments in schema order (lists
flattened, absent ones omitted), and its other arguments by name. An operator in no table is returned as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from sardonyx.ir.shapes.expr import Size, add, multiply, product
from sardonyx.verbs.analyze.costs import program
from sardonyx.verbs.analyze.costs.program import (
    UNKNOWN,
    Description,
    OperatorUse,
    OpKind,
    Rule,
    Value,
    each,
    floating,
    norm_of,
)

# Operators without arithmetic, by kind.

_VIEWS = (
    *("view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "expand", "select", "slice", "squeeze"),
    *("unsqueeze", "split", "split_with_sizes", "chunk", "unbind", "alias", "detach", "as_strided", "diagonal"),
    *("unfold", "lift_fresh", "lift", "view_as", "view_as_real", "view_as_complex", "real", "imag", "numpy_T", "mT"),
    *("resize", "set", "_conj", "tensor_split", "positive", "adjoint"),
)
_COPIES = (
    *("clone", "copy", "cat", "stack", "pad", "constant_pad_nd", "repeat", "repeat_interleave", "tile", "roll", "flip"),
    *(f"{mode}_pad{axes}d" for mode in ("reflection", "replication") for axes in (1, 2, 3)),
    *("rot90", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "col2im", "slice_scatter"),
    *("select_scatter", "view_copy", "transpose_copy", "permute_copy", "unbind_copy", "split_with_sizes_copy"),
    *("resolve_conj", "conj_physical", "_conj_physical"),
)
_LOOKUPS = (
    *("embedding", "gather", "index", "index_select", "take", "_unsafe_index", "index_put", "_index_put_impl"),
    *("scatter", "masked_select", "masked_scatter", "index_copy", "index_fill", "_unsafe_index_put", "take_along_dim"),
)
_CREATED = (
    *("arange", "full", "zeros", "ones", "empty", "empty_strided", "eye", "linspace", "scalar_tensor", "new_full"),
    *("new_zeros", "new_ones", "new_empty", "new_empty_strided", "full_like", "zeros_like", "ones_like", "empty_like"),
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "uniform", "zero"),
    *("fill", "tril_indices", "triu_indices", "_efficientzerotensor", "lift_fresh_copy", "exponential", "random"),
)
_UNCOUNTED = (  # negligible arithmetic, and none of the other kinds
    *("_local_scalar_dense", "item", "nonzero", "sort", "topk", "argsort", "unique_consecutive", "_unique2"),
    *("_assert_async", "_assert_tensor_metadata", "_assert_scalar", "searchsorted", "bucketize", "is_same_size"),
    *("one_hot", "multinomial", "equal"),
)
PLAIN: Mapping[str, OpKind] = {
    **dict.fromkeys(_VIEWS, OpKind.VIEW),
    **dict.fromkeys(_COPIES, OpKind.COPY),
    **dict.fromkeys(_LOOKUPS, OpKind.LOOKUP),
    **dict.fromkeys(_CREATED, OpKind.CREATE),
    "bernoulli": OpKind.DROPOUT,
    **dict.fromkeys(_UNCOUNTED, OpKind.OTHER),
}


def describe(
    operator: str, reads: Sequence[Value], writes: Sequence[Value], scalars: Mapping[str, object]
) -> Description:
    """Describe an operator at the shapes of these tensors."""
    name = plain_name(operator)
    if name in _RULES:
        return _RULES[name](OperatorUse(reads, writes, scalars))
    if name in PLAIN:
        return Description(PLAIN[name])
    is_unary = len(reads) == 1  # max(a) is a reduction, max(a, b) is elementwise
    if name in program.REDUCTIONS and (is_unary or name not in program.ELEMENTWISE):
        return Description(OpKind.REDUCTION, 0, floating(reads[0], program.REDUCTIONS[name]))
    if name in program.ELEMENTWISE:
        kind, flops = program.ELEMENTWISE[name]
        return Description(kind, 0, floating(writes[0], flops) if writes else 0)
    return UNKNOWN


def plain_name(operator: str) -> str:
    """Return the name of an operator without its namespace and without the underscore of an in-place operator."""
    name = operator.rpartition("::")[2].removeprefix("aten.")
    if name.startswith("__") and name.endswith("__"):
        return _OPERATOR_SIGNS.get(name.strip("_").removeprefix("i"), name)
    return name.removesuffix("_")


_OPERATOR_SIGNS = {
    **{sign: f"bitwise_{sign}" for sign in ("and", "or", "xor")},
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}


def _product_of(first: int, *bias: int) -> Rule:
    """Return the rule of a matrix product with its left operand at index `first` and an optional bias at `bias`."""

    def rule(call: OperatorUse) -> Description:
        left = call.operand(first)
        return program.matrix_product(left.shape[-1] if left.shape else 1, call.result, more=call.has(*bias))

    return rule


def _convolution_of(*, transposed: bool = False) -> Rule:
    def rule(call: OperatorUse) -> Description:
        mirrored = transposed or bool(call.attributes.get("transposed", False))
        image, weight = call.operands(2)
        return program.convolution(image, weight, call.result, transposed=mirrored, more=call.has(2))

    return rule


def _attention(call: OperatorUse) -> Description:
    query, key, value = call.operands(3)
    return program.attention(query, key, value, mask=len(call.reads) > 3)


def _fast_attention(call: OperatorUse) -> Description:
    """Describe `nn.MultiheadAttention` as one kernel: packed projections, attention, output projection."""
    query, key, value, packed, _, output = call.operands(6)
    inner = program.attention(query, key, value, mask=len(call.reads) > 7)
    macs = add(inner.macs, product((*query.shape[:-1], add(packed.elements, output.elements))))
    return Description(OpKind.ATTENTION, macs, add(inner.other_flops, multiply(4, query.elements)))


def _fast_encoder_layer(call: OperatorUse) -> Description:
    """Describe an encoder layer as one kernel: attention, two norms, two linear layers with an activation between."""
    source, widening = call.operand(0), call.operand(9)
    inner = (source, source, source, *call.reads[1:5], *call.reads[13:])
    attended = _fast_attention(OperatorUse(inner, call.writes, call.attributes))
    wide = multiply(product(source.shape[:-1]), widening.shape[0])
    macs = add(attended.macs, multiply(2, multiply(source.shape[-1], wide)))
    inside = program.ELEMENTWISE["gelu" if call.attributes.get("use_gelu") else "relu"][1] + 1  # and the bias
    around = multiply(2 * (program.LAYER_NORM + 2 + 1) + 1, source.elements)  # two norms, two residuals, last bias
    return Description(OpKind.ATTENTION, macs, add(add(attended.other_flops, around), multiply(inside, wide)))


def _recurrent_layer(call: OperatorUse) -> Description:
    """Describe one direction of one layer: the operands are the input, two weights, two biases and the states."""
    return _recurrent(call, call.operands(3)[1:])


def _recurrent_layers(call: OperatorUse) -> Description:
    """Describe all layers at once: the weights are the tensors of rank 2; states have rank 3 and biases rank 1."""
    return _recurrent(call, [value for value in call.operands(len(call.reads))[1:] if len(value.shape) == 2])


def _recurrent(call: OperatorUse, matrices: Sequence[Value]) -> Description:
    cell = _CELLS.get(cast("int", call.attributes.get("mode", 2)), "lstm")
    return program.recurrent(product(call.operand(0).shape[:-1]), matrices, call.result.elements, cell)


_CELLS = {0: "rnn", 1: "rnn", 2: "lstm", 3: "gru"}


def _batch_norm(call: OperatorUse) -> int:
    return program.BATCH_NORM_IN_TRAINING if call.attributes.get("training") else program.BATCH_NORM


def _dropout(call: OperatorUse) -> Description:
    training = call.attributes.get("train", call.attributes.get("training", True)) is not False
    return Description(OpKind.DROPOUT, 0, floating(call.result, 2) if training and call.writes else 0)


def _pooled(call: OperatorUse) -> Description:
    window = call.attributes["kernel_size"]
    sizes = cast("Sequence[Size]", window) if isinstance(window, Sequence) else (cast("Size", window),)
    if len(sizes) == 1:  # one number for all axes
        sizes = tuple(sizes) * max(1, len(call.result.shape) - 2)
    return Description(OpKind.REDUCTION, 0, multiply(product(sizes), floating(call.result, 1)))


def _cast(call: OperatorUse) -> Description:
    return Description(OpKind.SELECT if call.operand(0).dtype != call.result.dtype else OpKind.COPY)


def _view_or_copy(call: OperatorUse) -> Description:
    """Describe a view if the result shares memory with the input, otherwise a copy."""
    shared = any(value is not None and value.buffer == call.operand(0).buffer for value in call.writes)
    return Description(OpKind.VIEW if shared else OpKind.COPY)


def _interpolated(flops: int) -> Rule:
    return each(OpKind.OTHER if flops else OpKind.COPY, flops)


def _accumulated(call: OperatorUse) -> Description:
    """Describe an addition at indexed positions."""
    return Description(OpKind.LOOKUP, 0, floating(call.operand(len(call.reads) - 1), 1))


def _summed_rows(call: OperatorUse) -> Description:
    """Describe an embedding bag: sums of rows of a table."""
    table, rows = call.operands(2)
    return Description(OpKind.LOOKUP, 0, multiply(rows.elements, table.shape[-1]))


def _distances(call: OperatorUse) -> Description:
    """Describe the distances between all pairs of rows: a difference, its power, a sum."""
    return Description(OpKind.OTHER, 0, multiply(floating(call.result, 3), call.operand(0).shape[-1]))


_BATCH_NORMS = (
    *("native_batch_norm", "batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"),
    *("_native_batch_norm_legit_no_training", "_batch_norm_no_update"),
)
_ADAPTIVE_POOL = each(OpKind.REDUCTION, 1, read=True)
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "_scaled_mm", "_int_mm", "inner"), _product_of(0)),
    "linear": _product_of(0, 2),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), _product_of(1, 0)),
    "einsum": program.einsum,
    **dict.fromkeys(("ger", "outer"), each(OpKind.ARITHMETIC, 1)),
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution"), _convolution_of()
    ),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "_slow_conv2d_forward", "mkldnn_convolution"), _convolution_of()),
    **dict.fromkeys(("thnn_conv2d", "slow_conv3d_forward", "_conv_depthwise2d", "conv_depthwise3d"), _convolution_of()),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _convolution_of(transposed=True)),
    "cudnn_convolution_transpose": _convolution_of(transposed=True),
    "scaled_dot_product_attention": _attention,
    **{f"_scaled_dot_product_{kernel}_attention": _attention for kernel in ("flash", "efficient", "cudnn")},
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    **{f"_scaled_dot_product_{kernel}": _attention for kernel in ("attention_math", "fused_attention_overrideable")},
    "_native_multi_head_attention": _fast_attention,
    "_transformer_encoder_layer_fwd": _fast_encoder_layer,
    "mkldnn_rnn_layer": _recurrent_layer,
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), _recurrent_layers),
    "gelu": each(OpKind.ACTIVATION, program.gelu),
    **dict.fromkeys(
        ("_softmax", "softmax", "_safe_softmax", "_log_softmax", "log_softmax"),
        each(OpKind.SOFTMAX, program.SOFTMAX),
    ),
    **dict.fromkeys(
        ("native_layer_norm", "layer_norm", "native_group_norm", "group_norm"), norm_of(program.LAYER_NORM, 1, 2)
    ),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm"), norm_of(program.RMS_NORM, 1, 2)),
    **dict.fromkeys(_BATCH_NORMS, each(OpKind.BATCH_NORM, _batch_norm, read=True)),
    "_batch_norm_with_update": each(OpKind.BATCH_NORM, program.BATCH_NORM_IN_TRAINING, read=True),
    **{
        f"_thnn_fused_{cell}_cell": each(OpKind.RECURRENT, program.RECURRENT_FLOPS[cell]) for cell in ("lstm", "gru")
    },  # their products are separate operators
    **dict.fromkeys(("native_dropout", "dropout", "feature_dropout", "alpha_dropout"), _dropout),
    **{f"{kind}_pool{axes}d": _pooled for kind in ("max", "avg") for axes in (1, 2, 3)},
    **{f"max_pool{axes}d_with_indices": _pooled for axes in (2, 3)},
    **{f"adaptive_{kind}_pool{axes}d": _ADAPTIVE_POOL for kind in ("avg", "max") for axes in (1, 2, 3)},
    **{f"_adaptive_avg_pool{axes}d": _ADAPTIVE_POOL for axes in (2, 3)},
    **dict.fromkeys(("_to_copy", "to", "type_as"), _cast),
    **dict.fromkeys(("reshape", "contiguous", "flatten", "unflatten", "expand_as", "reshape_as"), _view_or_copy),
    **dict.fromkeys(("movedim", "swapaxes", "narrow", "squeeze_copy", "_reshape_copy"), _view_or_copy),
    **{
        f"upsample_{kind}": _interpolated(program.INTERPOLATION[kind.rstrip("123d")])
        for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
    },
    **{f"_upsample_nearest_exact{axes}d": _interpolated(0) for axes in (1, 2, 3)},
    **{f"_upsample_{kind}2d_aa": _interpolated(program.INTERPOLATION[kind]) for kind in ("bilinear", "bicubic")},
    "grid_sampler_2d": _interpolated(program.INTERPOLATION["bilinear"]),
    **dict.fromkeys(("index_add", "scatter_add", "scatter_reduce"), _accumulated),
    "_embedding_bag": _summed_rows,
    "_cdist_forward": _distances,
    "_weight_norm_interface": each(OpKind.OTHER, 3),
}

KNOWN = frozenset({*_RULES, *PLAIN, *program.REDUCTIONS, *program.ELEMENTWISE})  # by their plain names
