"""Rows out: a journal that loses nothing, shards that appear whole, resume on the rows that are done."""

from offgen.writers.opening import open_output
from offgen.writers.options import OutputOptions
from offgen.writers.output import Output
from offgen.writers.progress import ResumeState
from offgen.writers.stream import ReaderGone
from offgen.writers.summary import Totals

__all__ = ["Output", "OutputOptions", "ReaderGone", "ResumeState", "Totals", "open_output"]
