"""Torch's operators that do no arithmetic, by what they do instead."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.costs.program import Kind

_VIEWS = (
    *("view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "expand", "select", "slice", "squeeze"),
    *("unsqueeze", "split", "split_with_sizes", "chunk", "unbind", "alias", "detach", "as_strided", "diagonal"),
    *("unfold", "lift_fresh", "lift", "view_as", "view_as_real", "view_as_complex", "real", "imag", "numpy_T", "mT"),
    *("resize", "set", "_conj", "tensor_split", "positive", "adjoint"),
)
_COPIES = (
    *(
        "clone",
        "copy",
        "cat",
        "stack",
        "constant_pad_nd",
        "pad",
        "reflection_pad1d",
        "reflection_pad2d",
        "repeat",
        "reflection_pad3d",
    ),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d", "roll", "flip", "pixel_shuffle", "tile"),
    *(
        "pixel_unshuffle",
        "im2col",
        "col2im",
        "channel_shuffle",
        "split_with_sizes_copy",
        "slice_scatter",
        "resolve_conj",
    ),
    *(
        "select_scatter",
        "view_copy",
        "transpose_copy",
        "permute_copy",
        "unbind_copy",
        "repeat_interleave",
        "rot90",
        "conj_physical",
        "_conj_physical",
    ),
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
_UNCOUNTED = (  # known to do no arithmetic worth the name, and nothing else that we have a word for
    *("_local_scalar_dense", "item", "nonzero", "sort", "topk", "argsort", "unique_consecutive", "_unique2"),
    *("_assert_async", "_assert_tensor_metadata", "_assert_scalar", "searchsorted", "bucketize", "is_same_size"),
    *("one_hot", "multinomial", "equal"),
)
PLAIN: Mapping[str, Kind] = {
    **dict.fromkeys(_VIEWS, Kind.VIEW),
    **dict.fromkeys(_COPIES, Kind.COPY),
    **dict.fromkeys(_LOOKUPS, Kind.LOOKUP),
    **dict.fromkeys(_CREATED, Kind.CREATE),
    "bernoulli": Kind.DROPOUT,
    **dict.fromkeys(_UNCOUNTED, Kind.OTHER),
}
