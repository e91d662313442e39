"""Small models of the transformers library, one of each architecture, for the table in converting.md."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

import anchorhead as ah

COMMON = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 100}  # fmt: skip
GROUPED = COMMON | {"num_key_value_heads": 2}
SHAPED = GROUPED | {"head_dim": 8}
NAMED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("Llama", "LlamaForCausalLM", "LlamaConfig", GROUPED),
    ("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", SHAPED),
    ("Gemma 2", "Gemma2ForCausalLM", "Gemma2Config", SHAPED),
    ("Gemma 3", "Gemma3ForCausalLM", "Gemma3TextConfig", SHAPED),
    ("Mistral", "MistralForCausalLM", "MistralConfig", GROUPED),
    ("Phi-3", "Phi3ForCausalLM", "Phi3Config", GROUPED | {"pad_token_id": 0}),
    ("Mixtral", "MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 4}),
    ("OLMo 2", "Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    ("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", COMMON),
    ("OPT", "OPTForCausalLM", "OPTConfig", COMMON | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    ("Bloom", "BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}),
    ("Falcon", "FalconForCausalLM", "FalconConfig", COMMON),
    ("ModernBERT", "ModernBertModel", "ModernBertConfig", COMMON | {"pad_token_id": 0}),
    ("MPNet", "MPNetModel", "MPNetConfig", COMMON),
    ("DistilBERT", "DistilBertModel", "DistilBertConfig",
     {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100}),
    ("T5, gated", "T5ForConditionalGeneration", "T5Config",
     {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100,
      "feed_forward_proj": "gated-gelu"}),
    ("Whisper", "WhisperForConditionalGeneration", "WhisperConfig",
     {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "vocab_size": 100,
      "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
      "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1,
      "eos_token_id": 2, "decoder_start_token_id": 1}),
    ("ViT", "ViTModel", "ViTConfig", COMMON | {"image_size": 16, "patch_size": 4}),
)  # fmt: skip


def small(kind: str, config: str, sizes: dict[str, Any]) -> nn.Module:
    """A model with random weights, the same every time."""
    sizes = {name: value for name, value in sizes.items() if name != "vocab_size" or kind != "ViTModel"}
    torch.manual_seed(0)
    made: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    return made


def rows() -> list[list[str]]:
    """For each architecture what became heads, what remains, the same of pure models, and the larger of the two largest
    differences over the largest output."""
    found = []
    for name, kind, config, sizes in NAMED:
        report, pure = (ah.convert(small(kind, config, sizes), pure=pure).report for pure in (False, True))
        kinds: dict[str, int] = {}
        for row in report.replaced:
            what = f"{row.formula}{'·v' if row.gated else ''}, {' + '.join(str(head.keys) for head in row.heads)} keys"
            kinds[what] = kinds.get(what, 0) + 1
        converted = "; ".join(f"{count} of {what}" for what, count in kinds.items())
        left, least = (", ".join(dict.fromkeys(what.split()[0] for _, what in r.remaining)) for r in (report, pure))
        share = max(r.difference / r.size for r in (report, pure))
        norms = sum(row.kind == "norm" for row in pure.replaced)
        apart = "below 1e-5" if share <= 1e-5 else f"{share:.0e}"  # the last digits are the processor's
        seen = report.watched and pure.watched
        found.append(
            [name, converted or "nothing", left, str(norms), least or "nothing", apart if seen else "not watched"]
        )
    return found
