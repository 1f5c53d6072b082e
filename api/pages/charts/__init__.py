"""Charts as SVG, made on the server: results in, markup out.

A chart is ``<div class="chart chart-NAME">`` with its SVG and its legend. No element carries a
style of its own, every text is escaped, and ids of elements start with ``prefix``, which must be
unique in a page.
"""

from api.pages.charts.knobs import small_multiples
from api.pages.charts.memory import memory_bar
from api.pages.charts.speeds import progress, scatter

__all__ = ["memory_bar", "progress", "scatter", "small_multiples"]
