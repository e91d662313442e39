"""A compiled model as tokens of a prompt, which an interpreter runs; with the proof of what comes out.

The file holds the tokens that are run, the network whose heads they are, and its proofs: `ah.verify` goes through
these, and bounds how far the tokens lie from them, what leaks and what is rounded (`proof/interpretation.py`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anchorhead.circuit.program import circuit_digest, to_program
from anchorhead.circuit.rows import StoredMap
from anchorhead.display import facts, page, sentence
from anchorhead.errors import FileError, InputError, OutsideRangeError
from anchorhead.file.container import read
from anchorhead.file.save import save
from anchorhead.file.stored import certificate_of as stored_certificate
from anchorhead.file.stored_program import stored_program
from anchorhead.head.parameters import check_tensor
from anchorhead.model.compiled import fingerprint
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.outside import Watched, behind_transforms
from anchorhead.model.prompt_core import PromptCore, check_mask, check_rows
from anchorhead.proof.certificate import Certificate, most_above
from anchorhead.proof.interpretation import Interpreted, assumed, output_bounds
from anchorhead.proof.network_claim import PlacedNetwork
from anchorhead.proof.rounding import ASSUMPTIONS
from anchorhead.proof.turns import reach

ADVICE = "Make it of a model compiled on a domain that holds the inputs"


class Data(NamedTuple):
    """Data tokens: their registers (..., d, registers), which of them means are over (..., d), how many answer."""

    registers: Tensor
    counted: Tensor
    answers: int
    """The last tokens, those of queries or one: they count in no mean of a prompt."""


class Program(Watched):
    """Tokens for an interpreter: `interpreter(program, x)` is what the model computes, (..., inputs) to (..., outputs).

    `keys`, `biases` and `values` are the numbers of its tokens, `instruction` says of which each is. `certificate`
    bounds how far what an interpreter makes of it is from the target: heads, leak and rounding.

    >>> ah.program(ah.compile("x*y", (-1, 1), tol=1e-4)).certificate.level
    'proved'
    """

    keys: Tensor
    biases: Tensor
    values: Tensor
    instruction: Tensor
    start: Tensor
    start_bias: Tensor

    def __init__(self, code: Interpreted, certificate: Certificate) -> None:
        super().__init__()
        self.code, self._claimed = code, certificate
        circuit = code.claim.circuit
        self.input_shape, self.output_shape = circuit.input_shape, circuit.output_shape
        registers = code.layout.registers
        counts = torch.tensor(code.code.starts).diff()
        numbers = {
            "keys": _dense(code.code.keys, 2 * registers),
            "biases": torch.tensor(code.code.keys.bias, dtype=torch.float64),
            "values": _dense(code.code.values, 2 * registers)[:, :registers],
            "instruction": torch.arange(len(counts)).repeat_interleave(counts),
            "start": _dense(code.layout.start, code.layout.inputs),
            "start_bias": torch.tensor(code.layout.start.bias, dtype=torch.float64),
        }
        for name, tensor in numbers.items():
            self.register_buffer(name, tensor)
        self.watch(certificate.domain, f"the program of {certificate.expression}", ADVICE)
        self._sealed = fingerprint(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, outside: str = "warn") -> Program:
        """A saved program. The file's form and digest are checked; `ah.verify` checks the proof itself."""
        found = read(path)
        if found.record["kind"] != "program":
            raise FileError(f"{path} holds a model and not a program; read it with ah.load, then ah.program(model).")
        code = stored_program(found)
        program = cls(code, replace(stored_certificate(found), evaluation=code.claim.evaluation))
        program.outside = outside
        return program

    @property
    def certificate(self) -> Certificate:
        """How far an interpreter's outputs are from the target; `unproved` once numbers of tokens were changed."""
        return self._claimed if fingerprint(self) == self._sealed else self._claimed.unproved()

    @property
    def registers(self) -> int:
        """How many registers it needs."""
        return self.code.layout.registers

    @property
    def instructions(self) -> int:
        """How many there are."""
        return len(self.code.layout.planned)

    @property
    def tokens(self) -> int:
        """How many tokens it has: the keys of all instructions."""
        return self.code.code.tokens

    @property
    def bits(self) -> int:
        """Entries of a pointer to one of its instructions."""
        return self.code.bits

    @property
    def gap(self) -> float:
        """What a pointer's agreement in one entry more or less adds to a score, over two."""
        return self.code.gap

    @property
    def steps(self) -> int:
        """How often an interpreter applies its layer."""
        return self.code.steps

    def pointers(self) -> Tensor:
        """(instructions, bits), ±1: the number of an instruction in binary."""
        number = torch.arange(self.instructions).unsqueeze(-1)
        return ((number >> torch.arange(self.bits)) & 1).to(torch.float64) * 2 - 1

    @property
    def takes(self) -> tuple[int, int]:
        """How many numbers a token of a prompt has, and how many a query, or the state that the prompt has."""
        circuit = self.code.claim.circuit
        return circuit.tokens, len(circuit.inputs) - circuit.tokens

    def data(self, x: Tensor, query: Tensor | None = None, mask: Tensor | None = None) -> Data:
        """The data tokens of a prompt. What one does not have, as a query's numbers, is the middle of its interval."""
        own, asked = self.takes
        if (query is not None and not (own and asked)) or (mask is not None and not own):
            taken = "tokens, and no query" if own else "x alone, and neither query nor mask"
            raise InputError(f"The program of {self._claimed.expression} takes {taken}.")
        if not own:
            check_tensor(x, torch.float64, self.input_shape, name="x")
            self.look(x)
            flat = x.flatten(-len(self.input_shape)) if self.input_shape else x.unsqueeze(-1)
            return Data(self._started(flat.unsqueeze(-2)), torch.ones(*flat.shape[:-1], 1, dtype=torch.bool), 1)
        tokens, counted = self._tokens(x, mask)
        rest = self._rest(query, tokens)
        batch = torch.broadcast_shapes(tokens.shape[:-2], rest.shape[:-2])
        tokens, rest = tokens.expand(*batch, -1, -1), rest.expand(*batch, -1, -1)
        middle = torch.tensor([(low + high) / 2 for low, high in self.code.claim.box], dtype=torch.float64)
        beside = rest[..., :1, :] if self.code.turns is not None else middle[own:]
        data = torch.cat([tokens, beside.expand(*tokens.shape[:-1], asked)], -1)
        asking = torch.cat([middle[:own].expand(*rest.shape[:-1], own), rest], -1)
        counted = torch.cat([counted.expand(*batch, -1), counted.new_zeros(*rest.shape[:-1])], -1)
        return Data(self._started(torch.cat([data, asking], -2)), counted, rest.shape[-2])

    def _tokens(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The prompt's tokens, those that do not count replaced by ones in range, and which of them do."""
        own = self.takes[0]
        check_rows(x, torch.float64, own, "tokens", "n")
        box = self.code.claim.box[:own]
        if mask is not None:
            x = check_mask(x, mask, box)
        self.look(x, box, ", in a token,")
        return x, torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask

    def _rest(self, query: Tensor | None, tokens: Tensor) -> Tensor:
        """Queries, or the state as one; what a program without either has is nothing."""
        own, asked = self.takes
        if not asked:
            return tokens[..., :1, :0]
        if query is None:
            shape = f"(..., {asked})" if self.code.turns is not None else f"(..., m, {asked})"
            raise InputError(f"This program needs query=, {shape}.")
        query = query.unsqueeze(-2) if self.code.turns is not None else query
        check_rows(query, torch.float64, asked, "query", "m")
        self.look(query, self.code.claim.box[own:], ", in a query,")
        return query

    def _started(self, inputs: Tensor) -> Tensor:
        return inputs @ self.start.T + self.start_bias

    def look_at_state(self, registers: Tensor) -> None:
        """Refuses a state that left the domain after a turn, where that it does not is no part of the proof."""
        low, high = zip(*self.code.claim.box[self.takes[0] :], strict=True)
        state = registers[..., list(self.code.layout.outputs)]
        inside = (state >= torch.tensor(low, dtype=state.dtype)) & (state <= torch.tensor(high, dtype=state.dtype))
        if behind_transforms(lambda seen: not bool(seen.all()), inside):
            raise OutsideRangeError(
                f"After a turn the state of {self._claimed.expression} left its domain, outside of which nothing is "
                "proved. Make the program on a larger domain, or begin closer to where it leads."
            )

    def result(self, registers: Tensor, answers: int) -> Tensor:
        """The outputs in the registers of the last data tokens: of queries (..., m, outputs), or of the only one."""
        found = registers[..., -answers:, list(self.code.layout.outputs)]
        own, asked = self.takes
        if own and asked and self.code.turns is None:
            return found
        found = found.squeeze(-2)
        if own:
            return found
        return found.unflatten(-1, self.output_shape) if self.output_shape else found.squeeze(-1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file: tokens, target, network and proofs, which `ah.verify` checks."""
        if fingerprint(self) != self._sealed:
            raise FileError("The program's tokens were changed since they were proved; make it again with ah.program.")
        claim = self.code.claim
        core = (PromptCore if claim.circuit.tokens else LayeredCore)(
            PlacedNetwork.of(claim), {"name": self.certificate.expression[:200]}
        )
        record, arrays = core.payload(self.certificate)
        record |= {"kind": "program", "method": "program", "gap": self.gap, "turns": self.code.turns,
                   "watched": self.code.watched,
                   "target": to_program(self.code.target)}  # fmt: skip
        for name, rows in (("keys", self.code.code.keys), ("values", self.code.code.values)):
            arrays |= {f"{name}.0.entries": np.array(rows.entries), f"{name}.0.bias": np.array(rows.bias),
                       f"{name}.0.columns": np.array(rows.columns, dtype=np.int32),
                       f"{name}.0.starts": np.array(rows.starts, dtype=np.int32)}  # fmt: skip
        save(record, arrays, self.certificate, path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [("tokens", self.tokens), ("instructions", self.instructions), ("registers", self.registers),
                ("steps of an interpreter", self.steps), ("pointer entries", self.bits)]  # fmt: skip
        return page(f"{self.certificate.expression} as a program", sentence(str(self.certificate)), facts(rows))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what it needs of an interpreter, and what is proved."""
        names = ("tokens", "instructions", "registers", "steps", "bits", "gap")
        counted = {name: getattr(self, name) for name in names} | {"turns": self.code.turns}
        return {"program": self._claimed.expression, **counted, "certificate": self.certificate.as_dict()}

    def __str__(self) -> str:
        turns = f" in each of {self.code.turns} turns" if self.code.turns is not None else ""
        return "\n".join([
            str(self.certificate),
            f"tokens {self.tokens}, instructions {self.instructions}{turns}, registers {self.registers}, steps of an "
            f"interpreter {self.steps:,}, pointer entries {self.bits}, gap {self.gap:g}",
            *(f"assuming that {assumption}" for assumption in self.certificate.assumptions),
        ])  # fmt: skip

    def __repr__(self) -> str:
        turns = f", {self.code.turns} turns" if self.code.turns is not None else ""
        return (
            f"Program({self.tokens} tokens, {self.instructions} instructions{turns}, {self.registers} registers; "
            f"{self.certificate})"
        )


def certificate_of(code: Interpreted, name: str) -> Certificate:
    """What is proved of an interpreter's outputs."""
    total, exact = output_bounds(code), output_bounds(code, machine=False)
    claim, level, assumptions, most = code.claim, "proved", (*ASSUMPTIONS, *assumed(code)), reach(code)
    if most is not None and any(bound >= apart for bound, apart in zip(total, most[0], strict=True)):
        total, exact = ([min(pair) for pair in zip(found, most[0], strict=True)] for found in (total, exact))
        level, assumptions = "trivial", (*assumptions, *most[1])
    return Certificate(
        expression=name,
        domain=claim.box,
        dtype=claim.dtype,
        level=level,
        approximation=max(exact),
        rounding=most_above(total, exact),
        boxes=claim.boxes,
        assumptions=assumptions,
        outputs=tuple(total),
        circuit=circuit_digest(code.target),
        evaluation=claim.evaluation,
    )


def _dense(stored: StoredMap, width: int) -> Tensor:
    """Rows of stored entries as a matrix."""
    found = torch.zeros(len(stored.bias), width, dtype=torch.float64)
    rows = torch.arange(len(stored.bias)).repeat_interleave(torch.tensor(stored.starts).diff())
    found[rows, torch.tensor(stored.columns, dtype=torch.int64)] = torch.tensor(stored.entries, dtype=torch.float64)
    return found
