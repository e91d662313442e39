"""One network with fixed weights that runs whatever compiled model its prompt holds.

The prompt is a sequence of tokens: those of a program (`model/program.py`), data, and a sink. A data token has
registers r, the mean m of the registers of all data tokens, a one and a pointer b with entries ±1. A token of a program
has a key, a value, and nothing else. One layer, applied again and again, is

    r, b  <-  r, b + attention of (r, m, 1, b) to the keys of program tokens, with their values
    m     <-  attention of data tokens to data tokens, all alike, with the values r

The pointer's score selects the tokens of one instruction, their keys make the scores of its head on the registers, and
their values add what it computes and move the pointer on (`proof/interpretation.py` has the errors). Tokens of a
program and the sink itself look at the sink, whose values are zero, and stay as they are: by so much that exp
underflows. `matrices()` are the fixed W_Q, W_K, W_V of both heads: selectors, no number of any program is in them.

*Fast*: data tokens attend to the tokens of the program alone. *Literal*: everything is in one sequence, with those
matrices. Weights that are zero in the one are absent in the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, SizeError
from anchorhead.model.program import Program

AWAY = 1024.0
"""The score by which tokens that are not to be seen are kept away: exp(-1024) is zero in float64."""


class Interpreter(nn.Module):
    """`interpreter(program, x)`: what the program's model computes of x, (..., inputs) to (..., outputs).

    registers: how many numbers a data token has room for. instructions: how many a pointer can tell apart.
    """

    def __init__(self, registers: int, instructions: int = 256) -> None:
        super().__init__()
        for name, value in (("registers", registers), ("instructions", instructions)):
            if type(value) is not int or not 1 <= value <= 1 << 20:
                raise InputError(f"{name}={value!r} must be a whole number from 1 to {1 << 20:,}.")
        self.registers, self.bits = registers, max(1, (instructions - 1).bit_length())
        for name, matrix in self._selectors().items():
            self.register_buffer(name, matrix)

    @property
    def size(self) -> int:
        """Of a query: registers, means, one, pointer."""
        return 2 * self.registers + 1 + self.bits

    @property
    def width(self) -> int:
        """Of a token: what a data token holds, a key, a value, and whether it is of a program, or the sink."""
        return 2 * self.size + self.registers + self.bits + 2

    def _places(self) -> dict[str, range]:
        """Where a token holds what."""
        r, names, found, at = self.registers, {}, {}, 0
        names = {"r": r, "m": r, "one": 1, "b": self.bits, "key": self.size, "value": r + self.bits, "program": 1,
                 "sink": 1}  # fmt: skip
        for name, count in names.items():
            found[name] = range(at, at + count)
            at += count
        return found

    def _selectors(self) -> dict[str, Tensor]:
        """The fixed matrices, (rows, width); scores are queries times keys, as they are."""
        at, one = self._places(), 1.0
        queries = [[(k, one)] for name in ("r", "m", "one", "b") for k in at[name]]
        keys: list[list[tuple[int, float]]] = [[(k, one)] for k in at["key"]]
        queries += [[(at["one"][0], one)], [(at["program"][0], one), (at["sink"][0], one)]]
        keys += [[(at["one"][0], -AWAY), (at["sink"][0], -AWAY)], [(at["sink"][0], AWAY)]]
        written = [*at["r"], *at["b"]]
        kept = [[(k, one)] for k in range(self.width)]
        for k in at["m"]:
            kept[k] = []
        return {
            "W_Q": self._matrix(queries),
            "W_K": self._matrix(keys),
            "W_V": self._matrix([[(at["value"][written.index(k)], one)] if k in written else []
                                 for k in range(self.width)]),
            "mean_Q": self._matrix([[(at["one"][0], one)], [(at["program"][0], one), (at["sink"][0], one)]]),
            "mean_K": self._matrix([[(at["one"][0], AWAY)], [(at["sink"][0], AWAY)]]),
            "mean_V": self._matrix([[(k - self.registers, one)] if k in at["m"] else [] for k in range(self.width)]),
            "kept": self._matrix(kept),
        }  # fmt: skip

    def _matrix(self, rows: list[list[tuple[int, float]]]) -> Tensor:
        found = torch.zeros(len(rows), self.width, dtype=torch.float64)
        for i, row in enumerate(rows):
            for k, value in row:
                found[i, k] = value
        return found

    def matrices(self) -> dict[str, Tensor]:
        """The fixed weights by name: W_Q, W_K, W_V of the head that runs instructions and mean_Q, mean_K, mean_V of the
        one that takes means, and what a token keeps of itself."""
        return {name: buffer.clone() for name, buffer in self.named_buffers()}

    def check(self, program: Program) -> None:
        """Refuses a program that needs more than there is."""
        if not isinstance(program, Program):
            raise InputError(
                f"The interpreter runs a program, made by ah.program(model), not a {type(program).__name__}."
            )
        if program.registers > self.registers or program.bits > self.bits:
            raise SizeError(
                f"The program needs {program.registers} registers and {program.instructions} instructions, and this "
                f"interpreter has {self.registers} and {1 << self.bits}; make one with ah.interpreter(registers="
                f"{program.registers}, instructions={program.instructions})."
            )

    def tokens(self, program: Program) -> tuple[Tensor, Tensor]:
        """The keys (tokens, size) and values (tokens, registers + bits) of a program, in this machine's places."""
        self.check(program)
        keys = torch.zeros(program.tokens, self.size, dtype=torch.float64)
        values = torch.zeros(program.tokens, self.registers + self.bits, dtype=torch.float64)
        pointers = program.pointers()
        keys[:, : program.registers] = program.keys
        keys[:, 2 * self.registers] = program.biases
        first = 2 * self.registers + 1
        keys[:, first : first + program.bits] = program.gap * pointers[program.instruction]
        values[:, : program.registers] = program.values
        moved = pointers.roll(-1, 0) - pointers
        values[:, self.registers : self.registers + program.bits] = moved[program.instruction]
        return keys, values

    def forward(self, program: Program, x: Tensor) -> Tensor:
        """What the program computes of every x, (..., inputs) to (..., outputs)."""
        keys, values = self.tokens(program)
        state, pointer = self._begin(program, x)
        ones = torch.ones_like(state[..., :1])
        mean = torch.zeros_like(state)
        for _ in range(program.steps):
            query = torch.cat([state, mean, ones, pointer], -1)
            written = (query @ keys.T).softmax(-1) @ values
            mean = state
            state, pointer = state + written[..., : self.registers], pointer + written[..., self.registers :]
        return program.result(state)

    def _begin(self, program: Program, x: Tensor) -> tuple[Tensor, Tensor]:
        """Registers and pointer of data tokens before the first step."""
        start = program.data(x)
        state = nn.functional.pad(start, (0, self.registers - program.registers))
        pointer = nn.functional.pad(program.pointers()[0], (0, self.bits - program.bits))
        return state, pointer.expand(*state.shape[:-1], self.bits)

    def sequence(self, program: Program, x: Tensor) -> Tensor:
        """Program, data and sink as one sequence (..., tokens + 2, width), for each x."""
        keys, values = self.tokens(program)
        at, (state, pointer) = self._places(), self._begin(program, x)
        count = program.tokens
        found = torch.zeros(*state.shape[:-1], count + 2, self.width, dtype=torch.float64)
        found[..., :count, at["key"].start : at["key"].stop] = keys
        found[..., :count, at["value"].start : at["value"].stop] = values
        found[..., :count, at["program"].start] = 1.0
        found[..., count, at["r"].start : at["r"].stop] = state
        found[..., count, at["one"].start] = 1.0
        found[..., count, at["b"].start : at["b"].stop] = pointer
        found[..., count + 1, at["sink"].start] = 1.0
        return found

    def layer(self, sequence: Tensor) -> Tensor:
        """The fixed layer on one sequence: two heads of self-attention, and what is kept."""
        buffers: dict[str, Any] = dict(self.named_buffers())
        run, mean = (
            ((sequence @ buffers[q].T) @ (sequence @ buffers[k].T).transpose(-1, -2)).softmax(-1)
            @ (sequence @ buffers[v].T)
            for q, k, v in (("W_Q", "W_K", "W_V"), ("mean_Q", "mean_K", "mean_V"))
        )
        return sequence @ buffers["kept"].T + run + mean

    def literal(self, program: Program, x: Tensor) -> Tensor:
        """The same as `forward`, as self-attention of one sequence with the fixed matrices."""
        sequence = self.sequence(program, x)
        for _ in range(program.steps):
            sequence = self.layer(sequence)
        return program.result(sequence[..., program.tokens, : self.registers])

    def __repr__(self) -> str:
        return f"Interpreter(registers={self.registers}, instructions={1 << self.bits})"


def interpreter(registers: int = 24, instructions: int = 256) -> Interpreter:
    """A network with fixed weights that runs programs of up to so many registers and instructions."""
    return Interpreter(registers, instructions)
