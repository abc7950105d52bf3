"""Rows become prompts, or errors that say why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from offgen.errors import UsageError
from offgen.records import Prompt, Row, RowError
from offgen.sampling.params import SamplingParams
from offgen.text import PromptOptions, Renderer, Tokenizer, load_tokenizer

Render = Callable[..., list[Prompt]]


def texts(tokenizer: Tokenizer, prompts: list[Prompt]) -> list[str]:
    assert [prompt.error for prompt in prompts] == [None] * len(prompts)
    return [tokenizer.decode(prompt.token_ids, skip_special_tokens=False) for prompt in prompts]


def types(prompts: list[Prompt]) -> list[str | None]:
    return [prompt.error and prompt.error.type for prompt in prompts]


def test_text_goes_through_the_chat_template_if_there_is_one(render: Render, chat_tokenizer: Tokenizer) -> None:
    expected = "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert texts(chat_tokenizer, render(chat_tokenizer, [{"prompt": "hi"}])) == [expected]
    assert texts(chat_tokenizer, render(chat_tokenizer, [{"prompt": "hi"}], chat=False)) == ["hi"]
    assert texts(chat_tokenizer, render(chat_tokenizer, [{"prompt": "hi"}], system="S")) == [
        "<s><|im_start|>system\nS<|im_end|>\n" + expected[3:]
    ]


def test_messages_give_the_ids_that_transformers_gives(render: Render, bos_folder: Path) -> None:
    tokenizer, oracle = load_tokenizer(bos_folder), AutoTokenizer.from_pretrained(bos_folder)
    chats: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": "hi"}],
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "é 😀 <|im_end|>"},
            {"role": "user", "content": ""},
        ],
        [{"role": "user", "content": [{"type": "text", "text": "<b>"}], "name": "N"}],
    ]
    prompts = render(tokenizer, [{"messages": chat} for chat in chats])
    for prompt, chat in zip(prompts, chats, strict=True):
        assert list(prompt.token_ids) == oracle.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


def test_parquet_and_jsonl_of_the_same_chat_give_the_same_prompt(render: Render, chat_tokenizer: Tokenizer) -> None:
    plain = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]
    filled = [
        {"role": "user", "content": "hi", "name": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "args": None}}]},
    ]
    forms = [plain, filled, json.dumps(filled), tuple(filled)]
    prompts = render(chat_tokenizer, [{"messages": form} for form in forms])
    assert len({tuple(prompt.token_ids) for prompt in prompts}) == 1
    assert prompts[0].error is None


@pytest.mark.parametrize(
    "value",
    [None, 5, "hi", "{}", '{"role": "user"}', {"role": "user"}, ["hi"], [None], [{"content": "x"}], [{"role": 1}],
     [{"role": "user", "content": 5}]],
)  # fmt: skip
def test_messages_of_a_wrong_shape_are_bad_rows(render: Render, chat_tokenizer: Tokenizer, value: Any) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}]}
    assert types(render(chat_tokenizer, [good, {"messages": value}, good])) == [None, "bad_row", None]


def test_a_chat_template_that_raises_is_its_rows_error(render: Render, chat_tokenizer: Tokenizer) -> None:
    chats = [[{"role": role, "content": "x"}] for role in ("user", "tool", "user")]
    prompts = render(chat_tokenizer, [{"messages": chat} for chat in chats])
    assert types(prompts) == [None, "template_error", None]
    assert str(prompts[1].error) == "template_error: no tools here"
    assert types(render(chat_tokenizer, [{"messages": []}])) == ["empty_prompt"]


def test_a_system_message_of_the_row_wins(render: Render, chat_tokenizer: Tokenizer) -> None:
    chat = [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]
    [text] = texts(chat_tokenizer, render(chat_tokenizer, [{"messages": chat}], system="job"))
    assert "own" in text
    assert "job" not in text


def test_there_is_never_more_than_one_bos(render: Render, bos_tokenizer: Tokenizer) -> None:
    assert texts(bos_tokenizer, render(bos_tokenizer, [{"prompt": "hi"}, {"prompt": "<s>hi"}], chat=False)) == [
        "<s>hi",
        "<s>hi",
    ]
    chat = texts(bos_tokenizer, render(bos_tokenizer, [{"messages": [{"role": "user", "content": "hi"}]}]))
    assert chat[0].count("<s>") == 1
    templated = render(bos_tokenizer, [{"a": "hi"}], template="<s>{{ a }}", chat=False)
    assert texts(bos_tokenizer, templated) == ["<s>hi"]


def test_a_template_takes_columns(render: Render, chat_tokenizer: Tokenizer) -> None:
    rows = [{"a": "x", "b c": 1, "n": None}, {"a": "y", "b c": 2.5, "n": 3}]
    template = "{{ a }}:{{ row['b c'] }}{% if n %}!{% endif %}{{ gone | default('') }}"
    assert texts(chat_tokenizer, render(chat_tokenizer, rows, template=template, chat=False)) == ["x:1", "y:2.5!"]
    assert "user\nx<|im_end|>" in texts(chat_tokenizer, render(chat_tokenizer, rows, template="{{ a }}"))[0]
    prompts = render(chat_tokenizer, rows, template="{{ n }}")
    assert types(prompts) == ["template_error", None]


def open_renderer(tokenizer: Tokenizer, **options: Any) -> Renderer:
    defaults = options.pop("defaults", SamplingParams())
    return Renderer(
        tokenizer, prompt=PromptOptions(**options), defaults=defaults, max_model_len=64, vocab_size=tokenizer.vocab_size
    )


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({}, ["question"], "--prompt-column question"),
        ({"prompt_column": "promt"}, ["prompt", "b"], "--prompt-column prompt"),
        ({"messages_column": "x"}, ["messages"], "`x` is not in the input"),
        ({"token_ids_column": "x"}, ["prompt"], "`x` is not in the input"),
        ({"template": "{{ a }}{{ q }}"}, ["a"], "uses `q`"),
        ({"template": "{% if %}"}, ["a"], "not valid"),
        ({"params_column": "p"}, ["prompt"], "--params-column"),
        ({"chat": True}, ["prompt"], "no chat template"),
        ({"system": "S"}, ["prompt"], "no chat template"),
        ({}, ["messages"], "no chat template"),
    ],
)
def test_what_no_row_can_mend_is_refused_up_front(
    tokenizers: dict[str, Tokenizer], options: dict[str, Any], columns: list[str], words: str
) -> None:
    renderer = open_renderer(tokenizers["byte_level"], **options)
    with pytest.raises(UsageError, match=re.escape(words)):
        renderer.needed_columns(columns)
    renderer.close()


def test_columns_are_chosen_in_the_documented_order(chat_tokenizer: Tokenizer) -> None:
    for columns, chosen in [
        (["text", "prompt", "messages"], "prompt"),
        (["messages", "text"], "text"),
        (["messages", "x"], "messages"),
    ]:
        renderer = open_renderer(chat_tokenizer)
        assert renderer.needed_columns(columns) == {chosen}
        renderer.close()
    renderer = open_renderer(chat_tokenizer, template="{{ a }}{{ row['z'] }}", params_column="p")
    assert renderer.needed_columns(["a", "b", "p"]) == {"a", "b", "p"}
    renderer.close()


@pytest.mark.parametrize("value", [None, 5, 2.5, True, ["a"], {"a": 1}, b"a", "\ud800"])
def test_a_prompt_that_is_no_text_is_a_bad_row(render: Render, bos_tokenizer: Tokenizer, value: Any) -> None:
    for options in ({}, {"chat": False}):
        prompts = render(bos_tokenizer, [{"prompt": "2024-01-01"}, {"prompt": value}, {"prompt": "b"}], **options)
        assert types(prompts) == [None, "bad_row", None]


def test_an_empty_prompt_is_an_error_unless_bos_stands_for_it(
    render: Render, tokenizers: dict[str, Tokenizer], bos_tokenizer: Tokenizer, chat_tokenizer: Tokenizer
) -> None:
    rows = [{"prompt": ""}, {"prompt": " "}]
    assert types(render(tokenizers["byte_level"], rows)) == ["empty_prompt", None]
    assert texts(bos_tokenizer, render(bos_tokenizer, rows, chat=False)) == ["<s>", "<s> "]
    assert types(render(chat_tokenizer, rows)) == ["empty_prompt", None]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([0, 9], None),
        ((0, 9), None),
        ([], "empty_prompt"),
        (None, "bad_row"),
        ("12", "bad_row"),
        (7, "bad_row"),
        ([1, None], "bad_row"),
        ([1.0], "bad_row"),
        ([True], "bad_row"),
        (["1"], "bad_row"),
        ([0, -1], "token_out_of_range"),
        ([10], "token_out_of_range"),
        ([0, 2**63], "token_out_of_range"),
    ],
)
def test_token_ids_are_checked_against_the_model(
    render: Render, chat_tokenizer: Tokenizer, value: Any, error: str | None
) -> None:
    rows = [{"ids": [3]}, {"ids": value}, {"ids": [4]}]
    prompts = render(chat_tokenizer, rows, token_ids_column="ids", vocab_size=10)
    assert types(prompts) == [None, error, None]
    if error is None:
        assert list(prompts[1].token_ids) == list(value)
    if error == "token_out_of_range":
        assert str(value[-1]) in str(prompts[1].error)


def test_text_whose_tokens_the_model_has_not_is_refused(render: Render, chat_tokenizer: Tokenizer) -> None:
    [first], [second] = chat_tokenizer.encode_batch(["a", " the"], add_special_tokens=False)
    assert first < second
    prompts = render(chat_tokenizer, [{"prompt": "a"}, {"prompt": " the"}], chat=False, vocab_size=second)
    assert types(prompts) == [None, "token_out_of_range"]


def test_a_prompt_leaves_room_for_one_token(render: Render, chat_tokenizer: Tokenizer) -> None:
    rows = [{"ids": [7] * count} for count in (63, 64, 65)]
    prompts = render(chat_tokenizer, rows, token_ids_column="ids", max_model_len=64)
    assert types(prompts) == [None, "prompt_too_long", "prompt_too_long"]


def test_truncation_cuts_the_named_side_and_says_so(render: Render, chat_tokenizer: Tokenizer) -> None:
    rows = [{"ids": list(range(6, 16))}, {"ids": [6, 7, 8]}]
    for side, kept in (("left", [13, 14, 15]), ("right", [6, 7, 8])):
        prompts = render(
            chat_tokenizer, rows, token_ids_column="ids", truncate_prompt=3, truncate_side=side, max_model_len=4
        )
        assert [list(prompt.token_ids) for prompt in prompts] == [kept, [6, 7, 8]]
        assert [prompt.truncated for prompt in prompts] == [True, False]


def test_a_rows_own_parameters_go_over_the_jobs(render: Render, chat_tokenizer: Tokenizer) -> None:
    values: list[Any] = [
        None,
        {},
        {"temperature": 0.5, "stop": None},
        '{"temperature": 0.5}',
        "null",
        [("top_k", 3)],
        {"temperature": -1},
        "{",
        7,
        [1],
        {"nonsense": 1},
        {"logit_bias": {"5": 1.0, "900": 1.0}},
        {"stop_token_ids": [900]},
        {"n": 3},
        {"n": 1},
    ]
    defaults = SamplingParams(temperature=0.2, stop=("x",), n=2)
    rows = [{"prompt": "hi", "p": value} for value in values]
    prompts = render(chat_tokenizer, rows, params_column="p", defaults=defaults)
    assert types(prompts) == [None] * 6 + ["bad_params"] * 8 + [None]
    assert [prompt.params.temperature for prompt in prompts[:6]] == [0.2, 0.2, 0.5, 0.5, 0.2, 0.2]
    assert prompts[2].params.stop == ("x",)
    assert prompts[5].params.top_k == 3
    assert prompts[14].params.n == 1


def test_ids_that_the_model_has_not_in_the_jobs_own_parameters_stop_the_job(chat_tokenizer: Tokenizer) -> None:
    for params in (SamplingParams(logit_bias=((9999, 1.0),)), SamplingParams(stop_token_ids=(9999,))):
        with pytest.raises(UsageError, match="9999"):
            open_renderer(chat_tokenizer, defaults=params)


def test_bad_words_are_banned_at_the_start_and_after_a_space(render: Render, chat_tokenizer: Tokenizer) -> None:
    params = SamplingParams(bad_words=("the",))
    [prompt, own] = render(
        chat_tokenizer, [{"prompt": "hi", "p": None}, {"prompt": "hi", "p": {"bad_words": ["any"]}}],
        defaults=params, params_column="p",
    )  # fmt: skip
    for words, word in ((prompt.params.bad_words_token_ids, "the"), (own.params.bad_words_token_ids, "any")):
        found = {chat_tokenizer.decode(ids, skip_special_tokens=False) for ids in words}
        assert found == {word, " " + word}


def test_a_readers_error_passes_through(chat_tokenizer: Tokenizer) -> None:
    renderer = open_renderer(chat_tokenizer)
    renderer.needed_columns(["prompt"])
    error = RowError("bad_row", "in.jsonl:3: not JSON")
    rows = [Row(0, None, 0, {}, "in.jsonl:3", error), Row(1, None, 0, {}, "in.jsonl:4")]
    prompts = list(renderer.render(rows))
    assert prompts[0].error is error
    assert types(prompts) == ["bad_row", "bad_row"]
    renderer.close()


def test_prompts_are_made_as_they_are_pulled(chat_tokenizer: Tokenizer) -> None:
    renderer = open_renderer(chat_tokenizer)
    renderer.needed_columns(["prompt"])
    pulled: list[int] = []

    def rows() -> Any:
        for row_id in range(1000):
            pulled.append(row_id)
            yield Row(row_id, None, 0, {"prompt": f"number {row_id}"}, "")

    prompts = renderer.render(rows())
    next(prompts)
    assert len(pulled) == 1
    assert [prompt.row.row_id for prompt in prompts] == list(range(1, 1000))
    renderer.close()


def test_describe_shows_the_first_prompt_as_the_model_reads_it(chat_tokenizer: Tokenizer) -> None:
    renderer = open_renderer(chat_tokenizer)
    renderer.needed_columns(["prompt"])
    row = Row(0, None, 0, {"prompt": "hi"}, "")
    assert renderer.describe(row) == "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.describe(Row(0, None, 0, {"prompt": None}, "")).startswith("bad_row: ")
    renderer.close()


def test_a_prompts_watch_adds_to_the_prompt(render: Render, chat_tokenizer: Tokenizer) -> None:
    [prompt] = render(chat_tokenizer, [{"prompt": "hi"}], defaults=SamplingParams(stop=("own",)))
    assert prompt.make_watch is not None
    watch = prompt.make_watch()
    ids = chat_tokenizer.encode("brown fox", add_special_tokens=False)
    stops = [watch.push(token_id) for token_id in ids]
    assert "own" in stops
    assert watch.text(ids[: stops.index("own") + 1]) == "br"
