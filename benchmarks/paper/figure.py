"""Figures as plain numbers: panels of lines.

A figure can be printed without a drawing library; `benchmarks.paper.plots` draws it.
"""

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
"""Colours of Okabe and Ito, which almost everyone can distinguish."""
RAMP = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#c9b81a")
"""Colours of ordered series, from dark to light, so that they differ in greyscale too."""

EPSILON = "epsilon per person, replace one, plain sum"


@dataclass(frozen=True)
class Line:
    """One series.

    Parameters
    ----------
    name
        Text in the legend; lines with the same name share an entry.
    x, y
        The points. A constant uses y only.
    style
        In figures of accuracy, private methods are solid, others dashed, and guessing dotted.
        Points are not joined.
    colour
        HTML colour.
    spread
        Half width of the confidence interval of each point; if empty, none is drawn.
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
    names
        Names of the positions 0, 1, 2 ... on the x axis, for comparisons without an order; drawn as
        dots, sideways.
    top
        A second scale for x: its label, and the factor of x.
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
    """Panels under one name, with ``columns`` panels in a row."""

    name: str
    panels: Sequence[Panel]
    columns: int = 2

    def lines(self, *, as_json: bool) -> Iterator[str]:
        """Yield the numbers behind the figure, one text line for each drawn line."""
        for panel in self.panels:
            for line in panel.lines:
                x: list[str | float] = (
                    list(panel.names) if panel.names else [round(value, 6) for value in line.x]
                )
                y = [round(float(value), 6) for value in line.y]
                if as_json:
                    shown = {
                        "figure": self.name,
                        "panel": panel.title,
                        "line": line.name,
                        "style": line.style,
                        "x": x,
                        "y": y,
                    }
                    yield json.dumps(
                        {**shown, "spread": [round(float(one), 6) for one in line.spread]}
                        if line.spread
                        else shown
                    )
                else:
                    points = "  ".join(f"{at}: {value:.4g}" for at, value in zip(x, y, strict=True))
                    yield f"{panel.title}; {line.name} ({line.style})  {points}"
