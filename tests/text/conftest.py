"""Small tokenizers of each kind, saved as model folders have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from offgen.records import Prompt, Row
from offgen.sampling.params import SamplingParams
from offgen.text import PromptOptions, Renderer, load_tokenizer
from offgen.text import Tokenizer as OurTokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog , and then sleeps .",
    "def add(a , b): return a + b  # it's 2024, isn't it?",
    "naïve café — “quoted” … 你好世界 😀👍🏽 é ü ß Ω привет",
    "  two spaces\n\tand a tab, any reason? a,b,c stop here",
] * 30
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|tool|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{{ message.content | tojson }}{% endif %}"
    "{% if 'name' in message %}({{ message.name }}){% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """As GPT-2's: every byte is a token, spaces belong to the word that follows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's: pieces with ▁ for spaces, a leading space dropped, bytes for what the vocabulary has not."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz,.!'ABCé", "▁t", "he", "▁the", "an", "▁a", "▁any", "in", "st", "op"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "n"), ("▁", "a"), ("i", "n"), ("s", "t"), ("o", "p")]
    vocab = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    return tokenizer


def unigram() -> Tokenizer:
    """As T5's or Gemma's: a unigram model with Metaspace."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT's: a decoder that is not local."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "unigram": unigram, "word_piece": word_piece}


def save(tokenizer: Tokenizer, folder: Path, *, adds_bos: bool = False, **config: Any) -> Path:
    """A tokenizer as a folder. config: what else tokenizer_config.json says."""
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    known = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "clean_up_tokenization_spaces": True,  # must not matter
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, **config}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OurTokenizer]:
    """One of each kind, without chat template, adding no BOS."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: load_tokenizer(save(make(), root / name)) for name, make in KINDS.items()}


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(byte_level(), tmp_path_factory.mktemp("chat"), chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def bos_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that adds BOS, with a chat template that writes it too."""
    return save(byte_level(), tmp_path_factory.mktemp("bos"), adds_bos=True, chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def chat_tokenizer(chat_folder: Path) -> OurTokenizer:
    return load_tokenizer(chat_folder)


@pytest.fixture(scope="session")
def bos_tokenizer(bos_folder: Path) -> OurTokenizer:
    return load_tokenizer(bos_folder)


def rows_of(*values: dict[str, Any]) -> list[Row]:
    return [Row(place, None, 0, one, f"in.jsonl:{place + 1}") for place, one in enumerate(values)]


@pytest.fixture
def render() -> Any:
    """render(tokenizer, rows, **options) -> prompts. Beside PromptOptions: defaults, max_model_len, vocab_size."""
    opened: list[Renderer] = []

    def run(tokenizer: OurTokenizer, values: list[dict[str, Any]], **options: Any) -> list[Prompt]:
        renderer = Renderer(
            tokenizer,
            defaults=options.pop("defaults", SamplingParams()),
            max_model_len=options.pop("max_model_len", 4096),
            vocab_size=options.pop("vocab_size", tokenizer.vocab_size),
            prompt=PromptOptions(**options),
        )
        opened.append(renderer)
        renderer.needed_columns(list(dict.fromkeys(name for one in values for name in one)))
        return list(renderer.render(rows_of(*values)))

    yield run
    for renderer in opened:
        renderer.close()


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """make_folder(kind, **config) -> a folder of its own."""

    def build(kind: str = "byte_level", **config: Any) -> Path:
        return save(KINDS[kind](), tmp_path / "model", **config)

    return build
