"""The report of a comparison: one HTML page that opens offline, the same as Markdown, and a summary for the terminal."""

from partwise.comparison.report.page import printable, summary, write_report

__all__ = ["printable", "summary", "write_report"]
