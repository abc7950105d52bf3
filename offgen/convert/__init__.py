"""`offgen convert`: one dataset format into another, streaming, the target there whole or not at all."""

from offgen.convert.conversion import Converted, ConvertOptions, convert

__all__ = ["ConvertOptions", "Converted", "convert"]
