"""Charts as SVG text, written by hand: no library, no font, no script, and nothing that a stranger's words could break.

Each stands by itself in a file or in a page, which may restyle it by its classes. Beside each belongs a table of the same numbers.
Ref: decision 10.
"""

from shoal.report.charts.bars import Bar, Row, bars
from shoal.report.charts.frame import Key
from shoal.report.charts.intervals import Interval, intervals
from shoal.report.charts.lines import Beyond, Level, Line, Place, lines
from shoal.report.charts.scales import Axis

__all__ = ["Axis", "Bar", "Beyond", "Interval", "Key", "Level", "Line", "Place", "Row", "bars", "intervals", "lines"]
