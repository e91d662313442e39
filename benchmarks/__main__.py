"""`make bench`: every benchmark in turn, or those named; `--tiny` shrinks each to seconds, to see that it runs."""

import argparse
import importlib
import pkgutil

import benchmarks

NAMES = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in ("__main__", "clock")]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--tiny", action="store_true", help="small sizes, a few repeats: seconds for each")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"{name} is not one of {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n== {name}: {module.__doc__.strip().splitlines()[0]}", flush=True)
        module.main(arguments.tiny)
