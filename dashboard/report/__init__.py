"""A report on a pair: what the pages show of it, in a file that opens offline.

``sections`` holds what the pages show, made by their own functions, ``html`` and ``markdown`` write them down. The same
runs and the same question give the same bytes.
"""

from dashboard.report.contents import Part, Report, Section
from dashboard.report.gather import gather
from dashboard.report.html import as_html
from dashboard.report.markdown import as_markdown

__all__ = ["Part", "Report", "Section", "as_html", "as_markdown", "gather"]
