"""The report of a comparison: one HTML page that opens offline, the same as Markdown, and a summary for the terminal."""

from partwise.comparison.report.rendering import printable, show_report, summary, write_report

__all__ = ["printable", "show_report", "summary", "write_report"]
