"""Charts as SVG text, written without a library, a font or a script.

Sections of the report and ``shoal compare`` draw with these functions. Each chart is complete in a
file or in a page; a page may restyle it by its CSS classes. Each caller shows a table of the same
numbers with the chart. Ref: decision 10.
"""

from shoal.report.charts.axes import Axis, LegendKey
from shoal.report.charts.bars import Bar, BarRow, IntervalRow, draw_bars, draw_intervals
from shoal.report.charts.lines import (
    AxisMark,
    Curve,
    Overlays,
    ReferenceLine,
    UnboundedRegion,
    draw_curves,
)

__all__ = [
    "Axis",
    "AxisMark",
    "Bar",
    "BarRow",
    "Curve",
    "IntervalRow",
    "LegendKey",
    "Overlays",
    "ReferenceLine",
    "UnboundedRegion",
    "draw_bars",
    "draw_curves",
    "draw_intervals",
]
