"""Reports: a verdict or a study as one HTML file, Markdown and SVG figures. No torch; altair, vl-convert and jinja2 only when a report is
written.
"""

from .losses import render_losses
from .placement import render_study
from .record_links import beside
from .render import ReportFiles, render

__all__ = ["ReportFiles", "beside", "render", "render_losses", "render_study"]
