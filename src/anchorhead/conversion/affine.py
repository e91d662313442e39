"""Which of torch's operations are affine in which of their arguments; whatever is not listed here is not.

Names are those of the dispatcher, without the underscore of the in-place form. An operation of `AFFINE` is affine in
all of its tensors together, but for those that steer it: where to look, what to choose, by what to divide. One of
`FACTORS` is affine in the tensors that it adds, and in one of its factors if the others are constants. Rounding to a
shorter floating dtype counts as affine: it is the rounding of the number format, not a function of the model's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

KEEPS_WEIGHTS = set(
    "alias clone detach view _unsafe_view reshape permute transpose t unsqueeze squeeze expand select slice split "
    "split_with_sizes unbind _to_copy lift_fresh contiguous _reshape_alias index index_select flip roll".split()
)
"""Rearrangements: attention weights are attention weights after them."""

AFFINE = KEEPS_WEIGHTS | set(
    "copy unsafe_split unsafe_chunk narrow diagonal diag_embed as_strided unfold repeat repeat_interleave cat stack "
    "tril triu rot90 constant_pad_nd neg _neg_view _conj conj_physical real imag view_as_real view_as_complex complex "
    "sum mean cumsum trace _fft_r2c _fft_c2c _fft_c2r pixel_shuffle pixel_unshuffle im2col col2im channel_shuffle "
    "native_channel_shuffle add sub rsub div fill zero where masked_fill masked_scatter gather take embedding "
    "_embedding_bag index_put _index_put_impl _unsafe_index _unsafe_index_put index_add index_copy index_fill scatter "
    "scatter_add select_scatter slice_scatter diagonal_scatter as_strided_scatter grid_sampler_2d grid_sampler_3d "
    "_native_batch_norm_legit_no_training native_batch_norm _native_batch_norm_legit _batch_norm_no_update set "
    "resize".split()
)
FAMILIES = ("avg_pool", "_adaptive_avg_pool", "adaptive_avg_pool", "upsample_", "_upsample_", "reflection_pad",
            "replication_pad")  # fmt: skip
"""Beginnings of the names of operations that are affine too, in one to three dimensions."""

STEERING = set("condition mask index indices offsets per_sample_weights grid repeats running_mean running_var".split())
STEERING_OF = {
    "div": {"other"},
    "_native_batch_norm_legit_no_training": {"weight"},
    "native_batch_norm": {"weight"},
    "_native_batch_norm_legit": {"weight"},
    "_batch_norm_no_update": {"weight"},
}

FACTORS = {
    "mul": ("self", "other"), "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "matmul": ("self", "other"),
    "mv": ("self", "vec"), "dot": ("self", "tensor"), "vdot": ("self", "other"), "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"), "addbmm": ("batch1", "batch2"), "addmv": ("mat", "vec"), "addr": ("vec1", "vec2"),
    "linear": ("input", "weight"), "convolution": ("input", "weight"), "addcmul": ("tensor1", "tensor2"),
    "_trilinear": ("i1", "i2", "i3"), "linalg_cross": ("self", "other"), "_sparse_mm": ("sparse", "dense"),
}  # fmt: skip
"""The arguments that are multiplied with each other."""

MATRIX = ("mm", "bmm", "matmul", "addmm", "baddbmm", "mv", "addmv")
"""Products that sum over the last axis of the first factor and the last but one, or only one, of the second."""

SOFTMAX = ("_softmax", "_safe_softmax", "softmax")

ATTENTION = (
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_native_multi_head_attention",
)  # fmt: skip

SHAPE_ONLY = set(
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty new_zeros new_ones new_full "
    "new_empty_strided empty sym_size sym_stride sym_numel sym_storage_offset _fused_sdp_choice is_pinned "
    "is_same_size _assert_tensor_metadata".split()
)
"""They look at shapes and dtypes alone."""


DRAWN = set("rand randn rand_like randn_like uniform normal".split())
"""Random numbers; with a seed they are as good as weights."""

LOOKUPS = set("embedding _embedding_bag index index_select gather take".split()) | set(MATRIX)
"""What tokens look up in the model's tensors, or make of them by a product with one-hot vectors."""

SHIFTS = set("add sub rsub mul neg".split())
"""What may be done with a constant to integers that were looked up, before they are looked up with."""

GATHERS = set(
    "cat stack repeat repeat_interleave copy narrow diagonal as_strided unfold constant_pad_nd _unsafe_index "
    "unsafe_split unsafe_chunk tril triu rot90 fill zero masked_fill slice_scatter select_scatter".split()
)
"""What rearranges integers, beside `KEEPS_WEIGHTS`."""

SUM, MEAN = 0, 1
"""The modes of a bag of embeddings that are affine."""

COUNTS = set("nonzero masked_select _unique2 unique_dim unique_consecutive bincount".split())
"""The shape of what they return depends on their argument."""


def is_affine(name: str, data: Collection[str]) -> bool:
    """Whether an operation is affine where these of its arguments depend on the data, and no two are multiplied."""
    return listed(name) and not steering(name).intersection(data)


def listed(name: str) -> bool:
    return name in FACTORS or name in AFFINE or name.startswith(FAMILIES)


def steering(name: str) -> set[str]:
    """The arguments by which an operation looks, chooses or divides."""
    return STEERING | STEERING_OF.get(name, set())


def is_plain(overload: str, given: Mapping[str, Any]) -> bool:
    """Whether an operation does what its name says: no other form or mode of it that reads bits as another dtype,
    rounds, takes statistics of a batch, or multiplies or takes the largest of what it brings together."""
    return (
        overload not in ("dtype", "no_stats")
        and given.get("rounding_mode") is None
        and not given.get("training")
        and given.get("reduce", "add") in ("add", "sum")
        and given.get("mode", SUM) in (SUM, MEAN)
    )
