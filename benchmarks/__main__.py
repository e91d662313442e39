"""`make bench`: every benchmark in turn, or those named on the command line."""

import importlib
import pkgutil
import sys

import benchmarks

names = sys.argv[1:] or [
    m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in ("__main__", "clock")
]
for name in names:
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n== {name}: {module.__doc__.strip().splitlines()[0]}")
    module.main()
