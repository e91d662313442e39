"""`python -m attack`, `make attack`: chains of every kind for an hour, and what they found.

Each chain runs in a worker process with bounded memory and time; each finished one is a line of the state file, and a
run that finds that file goes on with the next seeds. `--chain KIND:SEED` runs one again. Exits with 1 on a violation.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing import connection
from pathlib import Path
from typing import Any

from attack.kinds import KINDS, chain
from attack.workers import Worker


def names(kinds: list[str], seed: int, done: set[str]) -> Iterator[str]:
    """The chains in turn, kinds by their shares, without those that are done."""
    counters = {kind: itertools.count(seed * 1_000_000) for kind in kinds}
    for kind in itertools.cycle([kind for i in range(max(KINDS.values())) for kind in kinds if KINDS[kind] > i]):
        name = f"{kind}:{next(counters[kind])}"
        if name not in done:
            yield name


def attack(kinds: list[str], minutes: float, seed: int, workers: int, state: Path) -> list[dict[str, Any]]:
    """Runs chains until the time is over; returns all that the state file holds."""
    results = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    todo = names(kinds, seed, {r["chain"] for r in results})
    end, shown = time.monotonic() + 60 * minutes, 0.0
    crew = [Worker() for _ in range(workers)]
    for worker in crew:
        worker.start(next(todo))
    with state.open("a") as out:
        while crew:
            connection.wait([worker.pipe for worker in crew], timeout=1)
            for worker in list(crew):
                found = worker.hear()
                if found is None:
                    continue
                results.append(found)
                print(json.dumps(found), file=out, flush=True)
                crew.remove(worker)
                if time.monotonic() >= end:
                    worker.process.kill()
                    continue
                crew.append(worker if worker.process.is_alive() else Worker())
                crew[-1].start(next(todo))
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                line = f"{len(results)} chains, {sum(r['points'] for r in results):,} points, {_files(results)} files, "
                line += (
                    f"{sum(len(r['findings']) for r in results)} findings, {max(0, end - shown) / 60:.0f} minutes left"
                )
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def _files(results: list[dict[str, Any]]) -> int:
    return sum(r["refused"] + r["true"] + r["lies"] for r in results)


def report(results: list[dict[str, Any]]) -> int:
    """Prints what was found, kind by kind; 1 if anything was violated."""
    for kind in KINDS:
        own = [r for r in results if r["chain"].startswith(f"{kind}:")]
        if own:
            _kind(kind, own)
    wrong = [r for r in results if r["findings"]]
    for r in wrong:
        print(f"\nVIOLATED: python -m attack --chain {r['chain']}\n  {r['call'][:400]}")
        for finding in r["findings"]:
            print(f"  - {finding[:600]!a}")
    points, lies = sum(r["points"] for r in results), sum(r["lies"] for r in results)
    print(f"\n{len(results):,} chains, {points:,} points, {_files(results):,} mutated files: ", end="")
    print(f"{len(wrong)} chains with violations, {lies} lies")
    return 1 if wrong else 0


def _kind(kind: str, own: list[dict[str, Any]]) -> None:
    count = ", ".join(f"{n} {status}" for status, n in collections.Counter(r["status"] for r in own).most_common())
    print(f"\n{kind}: {len(own)} chains in {sum(r['seconds'] for r in own):.0f} s ({count}), ", end="")
    print(f"{sum(r['points'] for r in own):,} points")
    held = [r for r in own if r["points"] and r["status"] == "held"]
    if held:
        worst = max(held, key=lambda r: r["ratio"])
        print(f"  worst ratio of measured to proved {worst['ratio']:.6g}: python -m attack --chain {worst['chain']}")
        print(f"    {worst['call'][:300]}\n    {worst['at'][:200]}")
    if kind == "files":
        refused, true, lies = (sum(r[k] for r in own) for k in ("refused", "true", "lies"))
        print(f"  {_files(own):,} mutated files: {refused:,} refused, {true:,} accepted and true, {lies} LIES")
    reasons = collections.Counter(r["reason"][:70] for r in own if r["status"] in ("refused", "slow"))
    for reason, times in reasons.most_common(4):
        print(f"  {times:5d} x {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long to search (60)")
    parser.add_argument("--seed", type=int, default=0, help="which chains: another seed is another search")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--only", default=",".join(KINDS), help=f"kinds, by commas: {','.join(KINDS)}")
    parser.add_argument("--state", type=Path, default=Path("attack-state.jsonl"), help="finished chains, to go on with")
    parser.add_argument("--chain", help="run one chain again, KIND:SEED")
    given = parser.parse_args()
    if given.chain:
        return report([asdict(chain(given.chain, print))])
    return report(attack(given.only.split(","), given.minutes, given.seed, given.workers, given.state))


if __name__ == "__main__":
    sys.exit(main())
