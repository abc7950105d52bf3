"""Models: a Hugging Face folder to a forward pass over paged rows."""

from offgen.models.base import Model
from offgen.models.config import ModelConfig, checkpoint_dtype
from offgen.models.load import load_config, load_model

__all__ = ["Model", "ModelConfig", "checkpoint_dtype", "load_config", "load_model"]
