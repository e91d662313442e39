"""A hundred functions of one variable that nobody chose: refusals, keys and seconds, beside Chebyshev and AAA.

A grammar writes them (`anchorhead/lab/grammar.py`); each is compiled at 1e-3, 1e-6 and 1e-9 of its size.
"""

from __future__ import annotations

import time
from statistics import median

import anchorhead as ah
from anchorhead.lab.grammar import MOST, Case, aaa_count, cases, chebyshev_count

TOLERANCES = (1e-3, 1e-6, 1e-9)


def run(case: Case, tol: float) -> dict:
    """One compilation: seconds, keys, layers, or the refusal."""
    start = time.process_time()
    try:
        model = ah.compile(case.text, (case.low, case.high), tol=tol * case.scale)
        found = {"keys": model.resources.keys, "layers": model.resources.layers, "method": model.method, "refused": ""}
    except ah.AnchorheadError as refusal:
        found = {"keys": None, "layers": None, "method": "", "refused": str(refusal)}
    return found | {"seconds": time.process_time() - start}


def main(tiny: bool = False) -> None:
    """Prints a line for each tolerance, and every refusal."""
    for tol in TOLERANCES[:1] if tiny else TOLERANCES:
        rows = []
        for case in cases(3 if tiny else 100):
            error = tol * case.scale
            row = run(case, tol) | {"chebyshev": chebyshev_count(case, error), "aaa": aaa_count(case, error)}
            rows.append(row)
            if row["refused"]:
                print(f"  refused: {case.text} on [{case.low}, {case.high}]: {row['refused'][:160]}")
        kept = [row for row in rows if not row["refused"]]
        peers = {name: median([row[name] or MOST for row in kept]) for name in ("keys", "chebyshev", "aaa")}
        seconds = [row["seconds"] for row in rows]
        print(f"tol {tol:g}: {len(rows)} functions, {len(rows) - len(kept)} refused; median keys {peers['keys']:g}, "
              f"Chebyshev {peers['chebyshev']:g}, AAA {peers['aaa']:g}; seconds median {median(seconds):.2f}, "
              f"worst {max(seconds):.1f}")  # fmt: skip
