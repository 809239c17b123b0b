"""Draw figures as SVG with matplotlib.

``python -m benchmarks figure`` calls `draw`. Text stays text, so files are small and can be
searched, and the same numbers give the same bytes. matplotlib is used because `shoal.report.charts`
has no panels, second x axes, markers or stand-alone style sheets.
"""

from __future__ import annotations

import io
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.paper.figure import Figure, Panel

MARKERS = "osD^vP"
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "shoal",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "xtick.bottom": False,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_WIDTH, _LEGEND, _HEIGHT = 4.2, 1.6, 3.3
_FEW = 12
_LONG_NUMBER = re.compile(r"\d+\.\d{3,}(?![^<>]*</text>)")
"""Numbers of positions, not of text: 0.325 on an axis stays."""
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^)]*\)"')
_UNUSED_NAME = re.compile(r' id="[a-zA-Z0-9.]+_\d+"')
_INDENT = re.compile(r"\n\s*")


def load_pyplot() -> Any:
    """Return matplotlib.pyplot with the SVG backend, which needs no window."""
    try:
        import_module("matplotlib").use("svg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        sys.exit("matplotlib is not installed. Run: pip install matplotlib")


def draw(figure: Figure, path: Path) -> Path:
    """Write the figure to a file; make its folder if it is missing."""
    plt = load_pyplot()
    rows = -(-len(figure.panels) // figure.columns)
    size = (_WIDTH * figure.columns + _LEGEND, _HEIGHT * rows)
    with plt.rc_context(SETTINGS):
        canvas, axes = plt.subplots(
            rows, figure.columns, figsize=size, squeeze=False, layout="constrained"
        )
        for place, (panel, ax) in enumerate(zip(figure.panels, axes.flat, strict=True)):
            _fill(ax, panel)
            if place % figure.columns == figure.columns - 1:
                _draw_legend(ax)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None})
        plt.close(canvas)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_shorten_svg(written.getvalue()), encoding="utf-8")
    return path


def _shorten_svg(svg: str) -> str:
    """Return the same picture in half of the bytes: hundredths of a point are enough."""
    shorter = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", _NO_TURN.sub("", svg))
    return _INDENT.sub("\n", _UNUSED_NAME.sub("", shorter))


def _fill(ax: Any, panel: Panel) -> None:
    ax.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    if panel.names:
        _draw_dots(ax, panel)
    else:
        _draw_curves(ax, panel)


def _draw_legend(ax: Any) -> None:
    """Draw one legend for a row of panels.

    Lines with the same name (a series and its limit without noise) share the entry of the first.
    """
    entries = {line.get_label(): line for line in reversed(ax.get_lines())}
    ax.legend(
        list(entries.values())[::-1],
        list(entries)[::-1],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )


def _draw_curves(ax: Any, panel: Panel) -> None:
    solid = [line.name for line in panel.lines if line.style == "solid"]
    if panel.has_log_x:
        ax.set_xscale("log", base=2)
    if panel.has_log_y:
        ax.set_yscale("log")
    for line in panel.lines:
        if line.style == "points":
            ax.plot(line.x, line.y, "o", color=line.colour, label=line.name, markersize=4)
        elif len(line.x) > 1:
            marker = (
                MARKERS[solid.index(line.name) % len(MARKERS)]
                if line.style == "solid" and len(line.x) < _FEW
                else None
            )
            ax.plot(
                line.x,
                line.y,
                linestyle=line.style,
                color=line.colour,
                label=line.name,
                marker=marker,
                markersize=4,
                linewidth=1.4,
            )
        else:
            ax.axhline(
                line.y[0], linestyle=line.style, color=line.colour, label=line.name, linewidth=1.2
            )
        if line.spread:
            low, high = zip(
                *((y - one, y + one) for y, one in zip(line.y, line.spread, strict=True)),
                strict=True,
            )
            ax.fill_between(line.x, low, high, color=line.colour, alpha=0.15, linewidth=0)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    x = panel.lines[0].x
    if len(x) < _FEW:
        ax.set_xticks(x)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.minorticks_off()
    if panel.top:
        label, factor = panel.top
        second = ax.secondary_xaxis(
            "top", functions=(lambda value: value * factor, lambda value: value / factor)
        )
        second.set_xlabel(label)
        second.set_xticks([value * factor for value in x])
        second.xaxis.set_major_formatter("{x:.2g}")
        second.xaxis.minorticks_off()


def _draw_dots(ax: Any, panel: Panel) -> None:
    positions = list(range(len(panel.names)))
    for line, marker in zip(panel.lines, MARKERS, strict=False):
        face = line.colour if line.style == "solid" else "none"
        ax.plot(
            line.y,
            positions,
            marker,
            color=line.colour,
            markerfacecolor=face,
            markersize=6,
            label=line.name,
            linestyle="none",
        )
    ax.set_yticks(positions, panel.names)
    ax.invert_yaxis()
    ax.set_xlabel(panel.y_label)
