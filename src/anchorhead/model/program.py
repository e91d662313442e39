"""A compiled model as tokens of a prompt, which an interpreter runs; with the proof of what comes out.

The file holds the tokens that are run, the network whose heads they are, and its proofs: `ah.verify` goes through
these, and bounds how far the tokens lie from them, what leaks and what is rounded (`proof/interpretation.py`).
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from anchorhead.circuit.program import circuit_digest, to_program
from anchorhead.circuit.rows import StoredMap
from anchorhead.errors import FileError
from anchorhead.file.container import read
from anchorhead.file.save import save
from anchorhead.file.stored import certificate_of as stored_certificate
from anchorhead.file.stored_program import stored_program
from anchorhead.head.parameters import check_tensor
from anchorhead.model.compiled import fingerprint
from anchorhead.model.layered_core import LayeredCore
from anchorhead.model.outside import Watched
from anchorhead.proof.certificate import Certificate, rest_above
from anchorhead.proof.interpretation import Interpreted, output_bounds
from anchorhead.proof.network_claim import PlacedNetwork
from anchorhead.proof.rounding import ASSUMPTIONS

ADVICE = "Make it of a model compiled on a domain that holds the inputs"


class Program(Watched):
    """Tokens for an interpreter: `interpreter(program, x)` is what the model computes, (..., inputs) to (..., outputs).

    `keys`, `biases` and `values` are the numbers of its tokens, `instruction` says of which each is. `certificate`
    bounds how far what an interpreter makes of it is from the target: heads, leak and rounding.
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
            "keys": _dense(code.code.keys, registers),
            "biases": torch.tensor(code.code.keys.bias, dtype=torch.float64),
            "values": _dense(code.code.values, registers),
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
        program = cls(stored_program(found), stored_certificate(found))
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

    def data(self, x: Tensor) -> Tensor:
        """The registers of a data token that holds x: (..., registers)."""
        check_tensor(x, torch.float64, self.input_shape, what="program")
        self.look(x)
        flat = x.flatten(-len(self.input_shape)) if self.input_shape else x.unsqueeze(-1)
        return flat @ self.start.T + self.start_bias

    def result(self, registers: Tensor) -> Tensor:
        """The outputs in the registers of a data token after the last step."""
        found = registers[..., list(self.code.layout.outputs)]
        return found.unflatten(-1, self.output_shape) if self.output_shape else found.squeeze(-1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file: tokens, target, network and proofs. `ah.load` reads it, `ah.verify` checks it."""
        if fingerprint(self) != self._sealed:
            raise FileError("The program's tokens were changed since they were proved; make it again with ah.program.")
        claim = self.code.claim
        core = LayeredCore(PlacedNetwork.of(claim), {"name": self.certificate.expression[:200]})
        record, arrays = core.payload(self.certificate)
        record |= {"kind": "program", "method": "program", "gap": self.gap, "turns": self.code.turns,
                   "body": None if self.code.body is None else to_program(self.code.body)}  # fmt: skip
        for name, rows in (("keys", self.code.code.keys), ("values", self.code.code.values)):
            arrays |= {f"{name}.0.entries": np.array(rows.entries), f"{name}.0.bias": np.array(rows.bias),
                       f"{name}.0.columns": np.array(rows.columns, dtype=np.int32),
                       f"{name}.0.starts": np.array(rows.starts, dtype=np.int32)}  # fmt: skip
        save(record, arrays, self.certificate, path)

    def __repr__(self) -> str:
        turns = f", {self.code.turns} turns" if self.code.body is not None else ""
        return (
            f"Program({self.tokens} tokens, {self.instructions} instructions{turns}, {self.registers} registers; "
            f"{self.certificate})"
        )


def certificate_of(code: Interpreted, name: str) -> Certificate:
    """What is proved of an interpreter's outputs."""
    total, exact = output_bounds(code), output_bounds(code, machine=False)
    claim = code.claim
    return Certificate(
        expression=name,
        domain=claim.box,
        dtype=claim.dtype,
        level="proved",
        approximation=max(exact),
        rounding=rest_above(max(total), max(exact)),
        boxes=claim.boxes,
        assumptions=tuple(ASSUMPTIONS),
        outputs=tuple(total),
        circuit=circuit_digest(claim.circuit if code.body is None else code.body),
        evaluation="",
    )


def _dense(stored: StoredMap, width: int) -> Tensor:
    """Rows of stored entries as a matrix."""
    found = torch.zeros(len(stored.bias), width, dtype=torch.float64)
    rows = torch.arange(len(stored.bias)).repeat_interleave(torch.tensor(stored.starts).diff())
    found[rows, torch.tensor(stored.columns, dtype=torch.int64)] = torch.tensor(stored.entries, dtype=torch.float64)
    return found
