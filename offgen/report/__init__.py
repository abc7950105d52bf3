"""What a finished job says: as JSON, as a few lines of text, as one HTML page."""

from offgen.report.loading import load_report
from offgen.report.page import report_page
from offgen.report.terminal import summary_text

__all__ = ["load_report", "report_page", "summary_text"]
