"""Rows in: every input format as one stream of records.Row, in order, in bounded memory."""

from offgen.readers.input import Input
from offgen.readers.opening import open_input
from offgen.readers.splits import Selection

__all__ = ["Input", "Selection", "open_input"]
