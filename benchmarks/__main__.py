"""``python -m benchmarks list`` and ``python -m benchmarks run NAME [--json]``."""

from __future__ import annotations

import argparse
from importlib import import_module

BENCHMARKS = {
    "samplers": ("benchmarks.speed.samplers", "exact noise and randomised answers: samples and reports a second, against other libraries"),
    "install": ("benchmarks.speed.install", "megabytes of the core and of each extra; seconds to import and to print help"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the benchmarks")
    run = commands.add_parser("run", help="run one")
    run.add_argument("name", choices=sorted(BENCHMARKS))
    run.add_argument("--json", action="store_true", help="print one JSON object per measure")
    chosen = parser.parse_args()
    if chosen.command == "list":
        for name, (_, summary) in BENCHMARKS.items():
            print(f"{name:10} {summary}")
        return
    for measure in import_module(BENCHMARKS[chosen.name][0]).measures():
        print(measure.to_json() if chosen.json else measure.to_text(), flush=True)


if __name__ == "__main__":
    main()
