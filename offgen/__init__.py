"""offgen: offline batch generation with language models."""

__version__ = "0.1.0"
