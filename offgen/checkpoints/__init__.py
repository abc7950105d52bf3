"""Checkpoints: what a user calls a model becomes a local folder in Hugging Face layout."""

from offgen.checkpoints.checkpoint import Checkpoint
from offgen.checkpoints.resolve import resolve

__all__ = ["Checkpoint", "resolve"]
