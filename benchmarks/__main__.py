"""``python -m benchmarks list``, ``run NAME [--json]`` and ``figure NAME [--json]``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.measure import table

BENCHMARKS = {
    "samplers": (
        "benchmarks.speed.samplers",
        "exact noise and randomised answers: samples and reports a second, against other libraries",
    ),
    "install": (
        "benchmarks.speed.install",
        "megabytes of the core and of each extra; seconds to import and to print help",
    ),
    "anonml": (
        "benchmarks.paper.anonml",
        "AnonML's predictions: test AUC at several budgets, five datasets, both variants",
    ),
    "anonml-speed": (
        "benchmarks.speed.anonml",
        "AnonML with a million people: seconds and memory; aggregation against multi-freq-ldpy; "
        "messages",
    ),
    "ddml": (
        "benchmarks.paper.ddml",
        "DDML: MNIST, theory, known weights, whole updates protected, spam; --only selects one",
    ),
    "ddml-speed": (
        "benchmarks.speed.ddml",
        "DDML: simulated updates a second, and draw + update pairs a second on each store",
    ),
    "sdq": (
        "benchmarks.paper.sdq",
        "SDQ: exactness, Nursery, Adult, held-out and synthetic rows, collusion; --only selects "
        "one",
    ),
    "sdq-speed": (
        "benchmarks.speed.sdq",
        "SDQ: processor time of a member and a round, against MPyC's sum and Flower's masks",
    ),
    "pfds": (
        "benchmarks.paper.pfds",
        "PFDS: gain of holders by variant plus, and the paper's table; --only plus or paper",
    ),
    "pfds-speed": (
        "benchmarks.speed.pfds",
        "PFDS: a tree's projection against piqp; both variants with 100 holders, time and memory",
    ),
    "server": (
        "benchmarks.speed.server",
        "a coordinator over HTTP: DDML's pairs against an echo server, AnonML's submissions, "
        "SDQ's rounds; --only takes part of a name",
    ),
    "floods": (
        "benchmarks.speed.floods",
        "delay of honest participants and memory of a coordinator while one host floods it; "
        "--seeds is the seconds of each flood, --only takes part of a name",
    ),
    "tokens": (
        "benchmarks.speed.tokens",
        "anonymous packets: tokens minted and verified, OHTTP and Tor, a million packets; --only "
        "credentials, ohttp, packets or tor",
    ),
    "flower": (
        "benchmarks.speed.flower",
        "processor time of an update against Flower's deployment engine; both servers killed; "
        "--only cpu or kill",
    ),
}
FIGURES = {
    "anonml-2": ("benchmarks.paper.anonml.errors", "best p and q by number of cells"),
    "anonml-3": (
        "benchmarks.paper.anonml.errors",
        "expected error of each mechanism, by budget and by number of cells",
    ),
    "anonml-4": (
        "benchmarks.paper.anonml.ensembles",
        "the paper's ensemble against others, without perturbation, with and without bins",
    ),
    "anonml-scores": (
        "benchmarks.paper.anonml.ensembles",
        "section VIII-D: partition classifiers and the scores that weigh them",
    ),
    "anonml-5": (
        "benchmarks.paper.anonml.sweeps",
        "AUC by budget: both settings of the paper under both accountings, and plus",
    ),
    "anonml-6": ("benchmarks.paper.anonml.sweeps", "AUC by size of the feature subsets"),
    "anonml-7": ("benchmarks.paper.anonml.sweeps", "AUC by number of partitions"),
    "ddml-2": (
        "benchmarks.paper.ddml.curves",
        "MNIST: loss and accuracy by rows seen, for several k, batches and epsilons",
    ),
    "ddml-3": ("benchmarks.paper.ddml.curves", "MNIST: other merge strategies for 20 instances"),
    "ddml-4": (
        "benchmarks.paper.ddml.curves",
        "MNIST: the same for several k, with a tenth of the learning rate",
    ),
    "ddml-5": (
        "benchmarks.paper.ddml.known_weights",
        "true against learned weights of the model with 33 known ones",
    ),
    "sdq-3a": ("benchmarks.paper.sdq.figures", "synthetic rows: accuracy by rows per database"),
    "sdq-3b": ("benchmarks.paper.sdq.figures", "synthetic rows: accuracy by budget"),
    "sdq-3c": ("benchmarks.paper.sdq.figures", "synthetic rows: accuracy by number of databases"),
    "sdq-3d": ("benchmarks.paper.sdq.figures", "Nursery: accuracy by budget"),
    "pfds-3a": (
        "benchmarks.paper.pfds.figures",
        "Adult: difference between private and true size of a dataset, by depth of the tree",
    ),
    "pfds-3b": (
        "benchmarks.paper.pfds.figures",
        "Adult: distance of private and real rows over random partitions, by depth",
    ),
    "pfds-3c": (
        "benchmarks.paper.pfds.figures",
        "Adult: time to make an agent's private dataset, by depth",
    ),
    "pfds-4": (
        "benchmarks.paper.pfds.figures",
        "Adult and News: error of variant paper by number of sharing holders",
    ),
}
TRIALS = 20
"""Default repetitions of a point of a figure, if its module sets no other number."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the benchmarks and figures")
    run = commands.add_parser("run", help="run one benchmark")
    run.add_argument("name", choices=sorted(BENCHMARKS))
    run.add_argument("--markdown", action="store_true", help="print a table for the documentation")
    run.add_argument("--seeds", type=int, help="repetitions, if the benchmark has any")
    run.add_argument(
        "--only",
        metavar="TEXT",
        help="run only the parts with this text in their name, if the benchmark has parts",
    )
    figure = commands.add_parser("figure", help="draw one figure of a paper (needs matplotlib)")
    figure.add_argument("name", choices=sorted(FIGURES))
    figure.add_argument(
        "--trials",
        type=int,
        help="repetitions of each point (AnonML: 20, its paper: 400 to 500; DDML, SDQ: 1; PFDS: "
        "10)",
    )
    figure.add_argument(
        "--to",
        type=Path,
        default=Path("docs/benchmarks"),
        metavar="DIR",
        help="directory of the SVG file",
    )
    for command in (run, figure):
        command.add_argument("--json", action="store_true", help="print one JSON object per figure")
    chosen = parser.parse_args()
    if chosen.command == "list":
        for name, (_, summary) in (BENCHMARKS | FIGURES).items():
            print(f"{name:13} {summary}")
    elif chosen.command == "figure":
        _draw(chosen)
    else:
        _run(parser, chosen)


def _run(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    module = import_module(BENCHMARKS[chosen.name][0])
    options = {
        name: value for name in ("seeds", "only") if (value := getattr(chosen, name)) is not None
    }
    unknown = set(options) - set(inspect.signature(module.measures).parameters)
    if unknown:
        parser.error(f"{chosen.name} takes no --{' --'.join(sorted(unknown))}")
    if chosen.markdown:
        lines: Callable[..., Iterator[str]] = getattr(
            module, "markdown", lambda **given: table(module.measures(**given))
        )
        for line in lines(**options):
            print(line, flush=True)
        return
    for measure in module.measures(**options):
        print(measure.to_json() if chosen.json else measure.to_text(), flush=True)


def _draw(chosen: argparse.Namespace) -> None:
    plots = import_module("benchmarks.paper.plots")
    plots.load_pyplot()  # fail before computing anything if matplotlib is missing
    module = import_module(FIGURES[chosen.name][0])
    figure = module.figure(chosen.name, chosen.trials or getattr(module, "TRIALS", TRIALS))
    path = plots.draw(figure, chosen.to / f"{chosen.name}.svg")
    for line in figure.lines(as_json=chosen.json):
        print(line)
    if not chosen.json:
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
