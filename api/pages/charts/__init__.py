"""Charts as SVG, made on the server: results in, markup out.

A chart is ``<div class="chart chart-NAME">`` with its SVG and its legend. Widths are fluid:
positions across are percentages of the plot, and sizes of text and marks are pixels, so that one
SVG reads well at 360 px and at 2560 px. Margins and colours come from ``static/charts.css`` by
class; no element carries a style of its own. Every text is escaped. The ids of elements start
with ``prefix``, which must be unique in a page.
"""

from api.pages.charts.knobs import small_multiples
from api.pages.charts.memory import memory_bar
from api.pages.charts.progress import progress
from api.pages.charts.scatter import scatter

__all__ = ["memory_bar", "progress", "scatter", "small_multiples"]
