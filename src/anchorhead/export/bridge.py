"""A model inside TransformerLens' TransformerBridge, which hosts models that others built.

A bridge takes a floating point tensor for embeddings, so that the numbers of a sequence, (batch, tokens, inputs), go in
as they are, and what it calls logits are the outputs. The blocks are those of `lens.py`, with the same numbers; each of
its hook points becomes a component of the bridge, whose hook_out is what it passes on:

    blocks.l.hook_in, hook_out                 (batch, n, d) and (batch, queries, rows): the block
    blocks.l.resid.hook_out                    what the lift writes
    blocks.l.q, k, v, scores, pattern, z       .hook_out, as in `lens.py`

There is no tokenizer, embedding or vocabulary, and no loss: what needs those says so.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from anchorhead.errors import DependencyError, InputError
from anchorhead.export.lens import Hooked, hooked, require_dtype
from anchorhead.export.named import Named
from anchorhead.export.points import Pairs, not_there
from anchorhead.model.mechanism import Mechanism

try:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
    from transformer_lens.model_bridge.generalized_components import OpaqueBlockBridge
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
except ImportError as error:
    raise DependencyError("A bridge needs TransformerLens 4: pip install 'anchorhead[lens]'.") from error

PARTS = {"resid": "hook_resid_pre", **{part: f"attn.hook_{part}" for part in ("q", "k", "v", "pattern", "z")},
         "scores": "attn.hook_attn_scores"}  # fmt: skip
"""The components of a block, by the hook points of `lens.py`."""
PROMPT = ("query", "mask")
"""What a prompt has beside its tokens."""
ASKED = ("output_attentions", "use_cache")
"""What a bridge asks of every model, and what this one has anyway or not at all."""


class Host(nn.Module):
    """The network as a bridge calls it: embeddings in, logits out."""

    def __init__(self, network: Hooked) -> None:
        super().__init__()
        self.blocks, self.last, self._run = network.blocks, network.last, network.run
        self._wide, self._asks = network.features, network.asks
        self.config = SimpleNamespace(is_encoder_decoder=False)

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **prompt: Any) -> Any:
        """prompt: query and mask, of a model of a prompt."""
        other = [name for name in prompt if name not in PROMPT + ASKED]
        if other:
            raise InputError(f"This model takes no {', '.join(other)}; one of a prompt takes query= and mask=, which "
                             "is True for tokens that count.")  # fmt: skip
        x = input_ids if inputs_embeds is None else inputs_embeds
        given = [prompt.get(name) for name in PROMPT] if prompt.keys() & set(PROMPT) else []
        if self._asks and not given and isinstance(x, Tensor) and x.shape[-1] != self._wide:
            raise InputError("A bridge takes the queries of a prompt by name: bridge(tokens, query=query, mask=mask).")
        return SimpleNamespace(logits=self._run(x, *given))


class Adapter(ArchitectureAdapter):
    """Which parts of the host are which components."""

    def __init__(self, config: TransformerBridgeConfig) -> None:
        super().__init__(config)
        parts = {name: GeneralizedComponent(name=path) for name, path in PARTS.items()}
        self.component_mapping = {"blocks": OpaqueBlockBridge(name="blocks", submodules=parts)}


class NamedBridge(Named, Pairs, TransformerBridge):
    """A bridge that knows its heads by name, as `HookedNetwork` does."""

    def __init__(self, network: Hooked) -> None:
        super().__init__(Host(network), Adapter(network.cfg), None)
        self.stated, self.own_keys, self._network = network.stated, network.own_keys, [network]
        network.through = list(self.blocks)
        self.eval()

    @property
    def mechanism(self) -> Mechanism | None:
        return self._network[0].mechanism

    @property
    def running(self) -> int:
        return self._network[0].running

    def _apply(self, fn: Any, recurse: bool = True) -> NamedBridge:
        require_dtype(self, fn)
        super()._apply(fn, recurse)
        return self

    def _resolve_hook_point(self, name: str, *rest: Any) -> Any:
        try:
            return super()._resolve_hook_point(name, *rest)
        except KeyError:
            raise InputError(not_there(name, self.hook_dict)) from None

    def point(self, block: int, part: str) -> str:
        return f"blocks.{block}.{part}.hook_out"


def bridged(model: nn.Module, tokens: int | None = None) -> NamedBridge:
    """See `ah.to_bridge`."""
    return NamedBridge(hooked(model, tokens))
