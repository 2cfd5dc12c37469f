"""Reports: a verdict as one HTML file, Markdown and SVG figures. No torch; altair, vl-convert and jinja2 only when a report is written."""

from .render import ReportFiles, render

__all__ = ["ReportFiles", "render"]
