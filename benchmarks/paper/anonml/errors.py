"""Figures 2 and 3 of the AnonML paper: theory of the mechanisms.

They are computed from the exact parameters that the library uses.
"""

from __future__ import annotations

from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from shoal.mechanisms.calibrate import make_mechanism
from shoal.mechanisms.unary_encoding import OneTimeRappor, PQPerturbation

N_PEOPLE = 10_000
EPSILONS = tuple(2.0 ** (i / 4) for i in range(-12, 13))
CELLS = tuple(sorted({round(2 ** (i / 4)) for i in range(4, 41)}))
COLOURS = {
    "random-response": "orange",
    "rappor": "vermilion",
    "pq": "blue",
    "subset-selection": "green",
}


def figure(name: str, trials: int) -> Figure:  # noqa: ARG001 -- nothing is random here
    """Return the figure with that name."""
    return _best_chances() if name == "anonml-2" else _errors()


def _best_chances() -> Figure:
    """Return Figure 2: p and q of least error by number of cells, and those of RAPPOR."""
    ours = [PQPerturbation(1.0, m) for m in CELLS]
    rappor = OneTimeRappor(1.0, 2)
    lines = [
        Line("p of least error", CELLS, [float(one.p) for one in ours], colour=PALETTE["blue"]),
        Line(
            "q of least error", CELLS, [float(one.q) for one in ours], colour=PALETTE["vermilion"]
        ),
        Line(
            "p of one-time RAPPOR", CELLS, [float(rappor.p)] * len(CELLS), "dashed", PALETTE["blue"]
        ),
        Line(
            "q of one-time RAPPOR",
            CELLS,
            [float(rappor.q)] * len(CELLS),
            "dashed",
            PALETTE["vermilion"],
        ),
    ]
    panel = Panel(
        "Figure 2: (p, q)-perturbation at epsilon 1 per answer",
        "cells m",
        "probability that a bit is 1",
        lines,
        has_log_x=True,
    )
    return Figure("anonml-2", [panel], columns=1)


def _errors() -> Figure:
    """Return Figure 3: expected error of a histogram by epsilon and by number of cells."""
    by_epsilon = [
        Line(
            name,
            EPSILONS,
            [make_mechanism(name, epsilon, 16).expected_error(N_PEOPLE) for epsilon in EPSILONS],
            colour=PALETTE[colour],
        )
        for name, colour in COLOURS.items()
    ]
    by_cells = [
        Line(
            name,
            CELLS,
            [make_mechanism(name, 1.0, m).expected_error(N_PEOPLE) for m in CELLS],
            colour=PALETTE[colour],
        )
        for name, colour in COLOURS.items()
    ]
    error = "expected error of the histogram (root mean square)"
    panels = [
        Panel(
            "Figure 3a: 16 cells, 10,000 people",
            "epsilon of one answer, replace one",
            error,
            by_epsilon,
            has_log_x=True,
            has_log_y=True,
        ),
        Panel(
            "Figure 3b: epsilon 1, 10,000 people",
            "cells m",
            error,
            by_cells,
            has_log_x=True,
            has_log_y=True,
        ),
    ]
    return Figure("anonml-3", panels)
