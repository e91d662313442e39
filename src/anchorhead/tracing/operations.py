"""The table of torch's operations on tensors, by the names that torch.export gives them.

Not in the table is what torch can take apart into operations that are (see `calling`), and what is not known.
"""

from __future__ import annotations

from anchorhead.tracing import aten, matrices, ordering, sums
from anchorhead.tracing.elements import (
    Operation,
    added,
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
NEW = frozenset("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty".split())
WHOLE = frozenset("sinc xlogy special_xlog1py special_entr logit huber_loss smooth_l1_loss item".split())
"""What torch writes by choices that are not seen to be continuous: better refused by its own name."""


def _whole(rule: aten.Rule) -> Operation:
    """What is the same for a tensor as for one number."""
    return lambda context, given: rule(given)


def _first(operation: Operation) -> Operation:
    """What returns, after its result, what only its gradient needs."""
    return lambda context, given: [operation(context, given), None, None]


OPERATIONS: dict[str, Operation] = (
    {name: elementwise(name) for name in aten.OPERATIONS}
    | {name: _whole(aten.OPERATIONS[name]) for name in [*aten.JUMPING, *aten.SAME]}
    | dict.fromkeys(MOVES, moved)
    | dict.fromkeys(NEW, filled)
    | dict.fromkeys(("add", "__add__"), added(1))
    | dict.fromkeys(("sub", "subtract"), added(-1))
    | dict.fromkeys(("mul", "multiply"), multiplied)
    | dict.fromkeys(("div", "divide", "true_divide"), divided)
    | dict.fromkeys(("neg", "negative"), negated)
    | dict.fromkeys(("gt", "ge"), compared(False))
    | dict.fromkeys(("lt", "le"), compared(True))
    | dict.fromkeys(("bitwise_not", "logical_not"), opposite)
    | dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), sums.weights)
    | dict.fromkeys(("log_softmax", "_log_softmax"), along(sums.log_weights))
    | {f"max_pool{axes}d": matrices.pooling(True, axes) for axes in (1, 2, 3)}
    | {f"avg_pool{axes}d": matrices.pooling(False, axes) for axes in (1, 2, 3)}
    | {f"max_pool{axes}d_with_indices": _first(matrices.pooling(True, axes)) for axes in (2, 3)}
    | {f"adaptive_avg_pool{axes}d": matrices.adaptive_average for axes in (1, 2, 3)}
    | dict.fromkeys(("norm", "linalg_vector_norm"), reduction(sums.norm))
    | dict.fromkeys(("max", "amax"), extreme(1))
    | dict.fromkeys(("min", "amin"), extreme(-1))
    | {
        "rsub": added(-1, "other", "self"),
        "sort": ordering.sort,
        "msort": ordering.msort,
        "topk": ordering.topk,
        "median": ordering.median,
        "kthvalue": ordering.kthvalue,
        "maximum": largest_of_two(1),
        "minimum": largest_of_two(-1),
        "where": chosen,
        "layer_norm": sums.layer_norm,
        "native_layer_norm": _first(sums.layer_norm),
        "group_norm": sums.group_norm,
        "native_group_norm": _first(sums.group_norm),
        "batch_norm": sums.batch_norm,
        "_native_batch_norm_legit_no_training": _first(sums.batch_norm),
        "rms_norm": sums.rms_norm,
        "instance_norm": sums.instance_norm,
        "sum": summed(mean=False),
        "mean": summed(mean=True),
        "prod": reduction(sums.product),
        "var": reduction(sums.variance),
        "std": reduction(sums.deviation),
        "logsumexp": reduction(sums.log_sum_exp),
        "cumsum": along(sums.running_sums),
        "cumprod": along(sums.running_products),
        "linear": matrices.linear,
        "matmul": matrices.matmul("self", "other"),
        "mm": matrices.matmul("self", "mat2"),
        "bmm": matrices.matmul("self", "mat2"),
        "mv": matrices.matmul("self", "vec"),
        "dot": matrices.matmul("self", "tensor"),
        "vdot": matrices.matmul("self", "other"),
        "scaled_dot_product_attention": matrices.attention,
        "convolution": matrices.convolution,
        "addmm": matrices.added_product("self", "mat1", "mat2"),
        "addmv": matrices.added_product("self", "mat", "vec"),
        "baddbmm": matrices.added_product("self", "batch1", "batch2"),
    }
)
KNOWN = OPERATIONS.keys() | WHOLE
"""What torch is not to take apart."""
