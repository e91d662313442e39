"""The table of torch's operations on tensors, by the names that torch.export gives them.

Not in the table is what torch can take apart into operations that are (see `tensor_trace`), and what is not known.
"""

from __future__ import annotations

from typing import Any

from anchorhead.errors import DiscontinuityError
from anchorhead.tracing import aten
from anchorhead.tracing import matrices as tensor_matrices
from anchorhead.tracing import sums as tensor_sums
from anchorhead.tracing.elements import (
    Context,
    Given,
    Operation,
    added,
    aliased,
    chosen,
    compared,
    divided,
    elementwise,
    filled,
    largest_of_two,
    moved,
    multiplied,
    negated,
    opposite,
)
from anchorhead.tracing.sums import along, extreme, reduction, summed

MOVES = frozenset(
    """view _unsafe_view reshape flatten unflatten permute transpose t squeeze unsqueeze expand expand_as broadcast_to
    select slice narrow cat concat concatenate stack hstack vstack dstack column_stack split split_with_sizes chunk
    tensor_split unbind index index_select gather take take_along_dim masked_fill index_fill fill flip fliplr flipud
    roll rot90 repeat tile repeat_interleave constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d
    replication_pad2d tril triu diag diagonal diag_embed movedim moveaxis swapaxes swapdims numpy_T mT adjoint
    copy slice_scatter select_scatter diagonal_scatter index_put _unsafe_index_put _unsafe_index index_copy scatter
    masked_scatter unfold view_as reshape_as atleast_1d atleast_2d atleast_3d ravel meshgrid block_diag
    pixel_shuffle pixel_unshuffle channel_shuffle im2col unsafe_split unsafe_chunk expand_copy view_copy squeeze_copy
    unsqueeze_copy permute_copy transpose_copy select_copy slice_copy""".split()
)
SAME = (
    aten.ALIAS
    | aten.COPY
    | set("dropout feature_dropout alpha_dropout feature_alpha_dropout type_as nan_to_num".split())
)
NEW = frozenset("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty".split())
WHOLE = frozenset("sinc xlogy special_xlog1py special_entr logit huber_loss smooth_l1_loss item".split())
"""What torch writes by choices that are not seen to be continuous: better refused by its own name."""
JUMPING = {
    "argmax": "the place of the largest entry jumps",
    "argmin": "the place of the smallest entry jumps",
    "argsort": "the order of the entries jumps",
    "eq": "whether two numbers are equal jumps",
    "ne": "whether two numbers are equal jumps",
    "floor_divide": "a division that rounds jumps",
    "heaviside": "it jumps at 0",
    "bucketize": "the number of a bucket jumps",
    "searchsorted": "the number of a place jumps",
    "nonzero": "whether a number is zero jumps",
    "count_nonzero": "whether a number is zero jumps",
    "any": "whether a number is zero jumps",
    "all": "whether a number is zero jumps",
    "isnan": "whether a number is finite jumps",
    "isfinite": "whether a number is finite jumps",
    "isinf": "whether a number is finite jumps",
    "one_hot": "it is a choice among whole numbers",
    "bitwise_and": "a combination of comparisons jumps",
    "bitwise_or": "a combination of comparisons jumps",
    "logical_and": "a combination of comparisons jumps",
    "logical_or": "a combination of comparisons jumps",
}


def _jumping(name: str) -> Operation:
    def refuse(context: Context, given: Given) -> Any:
        raise DiscontinuityError(f"torch's {name} cannot be approximated by continuous maps: {JUMPING[name]}")

    return refuse


OPERATIONS: dict[str, Operation] = (
    {name: elementwise(name) for name in aten.OPERATIONS}
    | {name: moved for name in MOVES}
    | {name: aliased for name in SAME}
    | {name: filled for name in NEW}
    | {name: _jumping(name) for name in JUMPING}
    | dict.fromkeys(("add", "__add__"), added(1))
    | dict.fromkeys(("sub", "subtract"), added(-1))
    | dict.fromkeys(("mul", "multiply"), multiplied)
    | dict.fromkeys(("div", "divide", "true_divide"), divided)
    | dict.fromkeys(("neg", "negative"), negated)
    | dict.fromkeys(("gt", "ge"), compared(False))
    | dict.fromkeys(("lt", "le"), compared(True))
    | dict.fromkeys(("bitwise_not", "logical_not"), opposite)
    | dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), along(tensor_sums.weights))
    | dict.fromkeys(("log_softmax", "_log_softmax"), along(tensor_sums.log_weights))
    | dict.fromkeys(("layer_norm", "native_layer_norm"), tensor_sums.layer_norm)
    | dict.fromkeys(("group_norm", "native_group_norm"), tensor_sums.group_norm)
    | dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), tensor_sums.batch_norm)
    | {f"max_pool{axes}d": tensor_matrices.pooling(True, axes) for axes in (1, 2, 3)}
    | {f"avg_pool{axes}d": tensor_matrices.pooling(False, axes) for axes in (1, 2, 3)}
    | {f"max_pool{axes}d_with_indices": tensor_matrices.pooling(True, axes) for axes in (2, 3)}
    | {f"adaptive_avg_pool{axes}d": tensor_matrices.adaptive_average for axes in (1, 2, 3)}
    | dict.fromkeys(("norm", "linalg_vector_norm"), reduction(tensor_sums.norm))
    | dict.fromkeys(("max", "amax"), extreme(1))
    | dict.fromkeys(("min", "amin"), extreme(-1))
    | {
        "rsub": added(-1, "other", "self"),
        "maximum": largest_of_two(1),
        "minimum": largest_of_two(-1),
        "where": chosen,
        "rms_norm": tensor_sums.rms_norm,
        "instance_norm": tensor_sums.instance_norm,
        "sum": summed,
        "mean": lambda context, given: summed(context, given, mean=True),
        "prod": reduction(tensor_sums.product),
        "var": reduction(tensor_sums.variance),
        "std": reduction(tensor_sums.deviation),
        "logsumexp": reduction(tensor_sums.log_sum_exp),
        "cumsum": along(tensor_sums.running_sums),
        "cumprod": along(tensor_sums.running_products),
        "linear": tensor_matrices.linear,
        "matmul": tensor_matrices.matmul("self", "other"),
        "mm": tensor_matrices.matmul("self", "mat2"),
        "bmm": tensor_matrices.matmul("self", "mat2"),
        "mv": tensor_matrices.matmul("self", "vec"),
        "dot": tensor_matrices.matmul("self", "tensor"),
        "vdot": tensor_matrices.matmul("self", "other"),
        "scaled_dot_product_attention": tensor_matrices.attention,
        "convolution": tensor_matrices.convolution,
        "addmm": tensor_matrices.added_product("self", "mat1", "mat2"),
        "addmv": tensor_matrices.added_product("self", "mat", "vec"),
        "baddbmm": tensor_matrices.added_product("self", "batch1", "batch2"),
    }
)
