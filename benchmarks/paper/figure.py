"""A figure as plain numbers: panels of lines. It can be printed without a drawing library, and drawn by `benchmarks.paper.plots`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

PALETTE = {
    "black": "#000000",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "grey": "#777777",
}
"""Okabe and Ito's colours, which almost everybody can tell apart."""
RAMP = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#c9b81a")
"""For series that have an order: dark to light, so that they differ without colour too."""

EPSILON = "epsilon per person, replace one, plain sum"


@dataclass(frozen=True)
class Line:
    """One series.

    Parameters
    ----------
    name
        What the legend says; lines of one name share an entry.
    x, y
        The points. Of a constant, y alone counts.
    style
        In figures of accuracy, what is private is solid, what is not is dashed, and guessing is dotted. Points are not joined.
    colour
        As HTML writes it.
    spread
        Of each point, how far its confidence interval reaches up and down; empty: none is drawn.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["solid", "dashed", "dotted", "points"] = "solid"
    colour: str = PALETTE["blue"]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Lines on a pair of axes.

    Parameters
    ----------
    title, x_label, y_label
        Words on it.
    lines
        What is drawn.
    names
        Names of the positions 0, 1, 2 ... on the x axis, for comparisons of things that have no order; drawn as dots, sideways.
    has_log_x, has_log_y
        Whether an axis is logarithmic.
    top
        A second scale for x: its label, and by how much x is to be multiplied.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    names: Sequence[str] = ()
    has_log_x: bool = False
    has_log_y: bool = False
    top: tuple[str, float] | None = None


@dataclass(frozen=True)
class Figure:
    """Panels under one name, ``columns`` beside each other."""

    name: str
    panels: Sequence[Panel]
    columns: int = 2

    def lines(self, *, as_json: bool) -> Iterator[str]:
        """The numbers behind the figure, one line of text for each line that is drawn."""
        for panel in self.panels:
            for line in panel.lines:
                x: list[str | float] = list(panel.names) if panel.names else [round(value, 6) for value in line.x]
                y = [round(float(value), 6) for value in line.y]
                if as_json:
                    shown = {"figure": self.name, "panel": panel.title, "line": line.name, "style": line.style, "x": x, "y": y}
                    yield json.dumps({**shown, "spread": [round(float(one), 6) for one in line.spread]} if line.spread else shown)
                else:
                    points = "  ".join(f"{at}: {value:.4g}" for at, value in zip(x, y, strict=True))
                    yield f"{panel.title}; {line.name} ({line.style})  {points}"
