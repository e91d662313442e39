"""The paper's theorems, literally: each a network with its target, its bound and its matrices."""

from anchorhead.theorems.attention_then_softmax import attention_then_softmax
from anchorhead.theorems.construction import Construction
from anchorhead.theorems.grid_network import GridNetwork
from anchorhead.theorems.multi_head import MultiHead, multi_head
from anchorhead.theorems.single_head import SingleHead, single_head
from anchorhead.theorems.sizes import Plan, plan
from anchorhead.theorems.two_layer import two_layer

__all__ = [
    "Construction",
    "GridNetwork",
    "MultiHead",
    "Plan",
    "SingleHead",
    "attention_then_softmax",
    "multi_head",
    "plan",
    "single_head",
    "two_layer",
]
