"""Text in and out: rows to prompts, token ids to completions."""

from offgen.text.defaults import eos_ids, generation_defaults
from offgen.text.options import PromptOptions
from offgen.text.renderer import Renderer
from offgen.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["PromptOptions", "Renderer", "Tokenizer", "eos_ids", "generation_defaults", "load_tokenizer"]
