"""One network with fixed weights that runs whatever compiled model its prompt holds.

The prompt is a sequence of tokens: those of a program (`model/program.py`), data, and a sink. A data token has
registers r, the mean m of the registers of all data tokens, a one and a pointer b with entries ±1. A token of a program
has a key, a value, and nothing else. Two layers, applied again and again, are

    m     <-  attention of data tokens to data tokens, all alike, with the values r
    r, b  <-  r, b + attention of (r, m, 1, b) to the keys of program tokens, with their values

The pointer's score selects the tokens of one instruction, their keys make the scores of its head on the registers, and
their values add what it computes and move the pointer on (`proof/interpretation.py` has the errors). Tokens of a
program and the sink itself look at the sink, whose values are zero, and stay as they are: by so much that exp
underflows. `matrices()` are the fixed W_Q, W_K, W_V of both heads: selectors, no number of any program is in them.

*Fast*: data tokens attend to the tokens of the program alone. *Literal*: everything is in one sequence, with those
matrices. Weights that are zero in the one are absent in the other.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, SizeError
from anchorhead.model.pool import paired_mean
from anchorhead.model.program import Program

AWAY = 1024.0
"""The score by which tokens that are not to be seen are kept away: exp(-1024) is zero in float64."""


class Interpreter(nn.Module):
    """`interpreter(program, x)`: what the program's model computes of x, (..., inputs) to (..., outputs).

    registers: how many numbers a data token has room for. instructions: how many a pointer can tell apart.

    >>> run = ah.interpreter(registers=16)
    >>> round(run(ah.program(ah.compile("x*y", (-1, 1), tol=1e-4)), torch.ones(2, dtype=torch.float64)).item(), 2)
    1.0
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
        """Of a token: what a data token holds, a key, a value, whether means count it, and of which kind it is."""
        return 2 * self.size + self.registers + self.bits + 3

    def _places(self) -> dict[str, range]:
        """Where a token holds what."""
        r = self.registers
        sizes = {"r": r, "m": r, "one": 1, "b": self.bits, "key": self.size, "value": r + self.bits, "counted": 1,
                 "program": 1, "sink": 1}  # fmt: skip
        ends = list(itertools.accumulate(sizes.values(), initial=0))
        return {name: range(a, b) for name, a, b in zip(sizes, ends, ends[1:], strict=False)}

    def _selectors(self) -> dict[str, Tensor]:
        """The fixed matrices, (rows, width); scores are queries times keys, as they are."""
        at = self._places()
        one, counted, program, sink = (at[name].start for name in ("one", "counted", "program", "sink"))
        asking = [{one: 1.0}, {program: 1.0, sink: 1.0}]
        written = [*at["r"], *at["b"]]
        own = [{k: 1.0} for k in range(self.width)]
        return {
            "run_Q": self._matrix([{k: 1.0} for name in ("r", "m", "one", "b") for k in at[name]] + asking),
            "run_K": self._matrix([{k: 1.0} for k in at["key"]] + [{one: -AWAY, sink: -AWAY}, {sink: AWAY}]),
            "run_V": self._matrix([{at["value"][written.index(k)]: 1.0} if k in written else {}
                                   for k in range(self.width)]),
            "mean_Q": self._matrix(asking),
            "mean_K": self._matrix([{counted: AWAY}, {sink: AWAY}]),
            "mean_V": self._matrix([{k - self.registers: 1.0} if k in at["m"] else {} for k in range(self.width)]),
            "mean_kept": self._matrix([{} if k in at["m"] else row for k, row in enumerate(own)]),
        }  # fmt: skip

    def _matrix(self, rows: list[dict[int, float]]) -> Tensor:
        found = torch.zeros(len(rows), self.width, dtype=torch.float64)
        for i, row in enumerate(rows):
            for k, value in row.items():
                found[i, k] = value
        return found

    def matrices(self) -> dict[str, Tensor]:
        """The fixed weights by name: W_Q, W_K, W_V of the head that takes means and of the one that runs instructions
        (`mean_Q`, `run_Q` and so on), and what a token keeps of itself beside its means."""
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
        count = program.registers
        keys[:, :count] = program.keys[:, :count]
        keys[:, self.registers : self.registers + count] = program.keys[:, count:]
        keys[:, 2 * self.registers] = program.biases
        first = 2 * self.registers + 1
        keys[:, first : first + program.bits] = program.gap * pointers[program.instruction]
        values[:, : program.registers] = program.values
        moved = pointers.roll(-1, 0) - pointers
        values[:, self.registers : self.registers + program.bits] = moved[program.instruction]
        return keys, values

    def forward(self, program: Program, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """What the program computes: of every x, (..., inputs) to (..., outputs).

        Of a function of a prompt: x are its tokens (..., n, t), query is (..., m, k), mask (..., n) is True for tokens
        that count, and the result (..., m, outputs), or (..., outputs) without a query. Of turns on a prompt query is
        the state (..., k) to begin with.
        """
        keys, values = self.tokens(program)
        state, counted, answers = program.data(x, query, mask)
        state, pointer = self._begin(program, state)
        ones = torch.ones_like(state[..., :1])
        averages, per_turn = bool(program.takes[0]), program.instructions
        mean = torch.zeros_like(state)
        for step in range(program.steps):
            if averages:
                mean = paired_mean(state, counted).expand(state.shape)
            written = (torch.cat([state, mean, ones, pointer], -1) @ keys.T).softmax(-1) @ values
            state, pointer = state + written[..., : self.registers], pointer + written[..., self.registers :]
            if program.code.watched and (step + 1) % per_turn == 0:
                program.look_at_state(state)
        return program.result(state, answers)

    def _begin(self, program: Program, start: Tensor) -> tuple[Tensor, Tensor]:
        """Registers and pointer of data tokens before the first step."""
        state = nn.functional.pad(start, (0, self.registers - program.registers))
        pointer = nn.functional.pad(program.pointers()[0], (0, self.bits - program.bits))
        return state, pointer.expand(*state.shape[:-1], self.bits)

    def sequence(self, program: Program, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Program, data and sink as one sequence, (..., tokens of the program + data + 1, width), for each prompt."""
        keys, values = self.tokens(program)
        start, counted, _ = program.data(x, query, mask)
        at, (state, pointer) = self._places(), self._begin(program, start)
        count = program.tokens
        found = torch.zeros(*state.shape[:-2], count + state.shape[-2] + 1, self.width, dtype=torch.float64)
        code, data = found[..., :count, :], found[..., count:-1, :]
        code[..., at["key"].start : at["key"].stop] = keys
        code[..., at["value"].start : at["value"].stop] = values
        code[..., at["program"].start] = 1.0
        data[..., at["r"].start : at["r"].stop] = state
        data[..., at["one"].start] = 1.0
        data[..., at["b"].start : at["b"].stop] = pointer
        data[..., at["counted"].start] = counted.to(torch.float64)
        found[..., -1, at["sink"].start] = 1.0
        return found

    def layer(self, sequence: Tensor) -> Tensor:
        """The fixed layers on a sequence: means, then an instruction, each one head of self-attention."""
        buffers: dict[str, Any] = dict(self.named_buffers())
        for name in ("mean", "run"):
            query, key, value = (sequence @ buffers[f"{name}_{part}"].T for part in "QKV")
            kept = sequence @ buffers["mean_kept"].T if name == "mean" else sequence
            sequence = kept + (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return sequence

    def literal(self, program: Program, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The same as a call, as self-attention of one sequence with the fixed matrices."""
        sequence, answers = self.sequence(program, x, query, mask), program.data(x, query, mask).answers
        for step in range(program.steps):
            sequence = self.layer(sequence)
            if program.code.watched and (step + 1) % program.instructions == 0:
                program.look_at_state(sequence[..., program.tokens : -1, : self.registers])
        return program.result(sequence[..., program.tokens : -1, : self.registers], answers)

    def __repr__(self) -> str:
        return f"Interpreter(registers={self.registers}, instructions={1 << self.bits})"


def interpreter(registers: int = 24, instructions: int = 256) -> Interpreter:
    """A network with fixed weights that runs programs of up to so many registers and instructions.

    >>> run = ah.interpreter(registers=16)
    >>> x = torch.tensor([0.5, 0.5], dtype=torch.float64)
    >>> [round(run(ah.program(ah.compile(f, (-1, 1), tol=1e-4)), x).item(), 2) for f in ("x*y", "sin(x)*y")]
    [0.25, 0.24]
    """
    return Interpreter(registers, instructions)
