"""A completion is what the output adds to the decoded prompt, token by token as in one piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offgen.sampling.params import SamplingParams
from offgen.text.detokenizer import Detokenizer, PromptText, difference
from offgen.text.tokenizer import Tokenizer

KINDS = ["byte_level", "byte_fallback", "unigram", "word_piece"]
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def open_watch(tokenizer: Tokenizer, prompt_ids: Sequence[int], **params: object) -> Detokenizer:
    return PromptText(tokenizer, prompt_ids, dataclasses.replace(SamplingParams(), **params))()


def whole(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], *, skip: bool = True) -> str:
    """The definition, by decoding everything."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    return difference(before, tokenizer.decode([*prompt, *output], skip_special_tokens=skip))


def slow_stop(
    tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], stops: Sequence[str], min_tokens: int
) -> tuple[str, str, int] | None:
    """(stop string, text before it, tokens taken), decoding everything after every token."""
    searched = 0
    for taken in range(1, len(output) + 1):
        text = whole(tokenizer, prompt, output[:taken]).rstrip("\ufffd")
        found = [(place, order, stop) for order, stop in enumerate(stops) for place in ends_after(text, stop, searched)]
        if found and taken > min_tokens:
            place, _, stop = min(found)
            return stop, text[:place], taken
        searched = len(text)
    return None


def ends_after(text: str, stop: str, searched: int) -> list[int]:
    places = [place for place in range(len(text)) if text.startswith(stop, place)]
    return [place for place in places if place + len(stop) > searched]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@many
def test_text_is_the_difference_of_whole_decodes(
    tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizers[kind]
    token = st.integers(0, tokenizer.vocab_size + 3)  # a few ids that the tokenizer has not
    prompt = data.draw(st.lists(token, min_size=1, max_size=30))
    output = data.draw(st.lists(token, max_size=40))
    skip = data.draw(st.booleans())
    watch = open_watch(tokenizer, prompt, skip_special_tokens=skip, stop=("never\x00seen",))
    for token_id in output:
        assert watch.push(token_id) is None
    assert watch.text(output) == whole(tokenizer, prompt, output, skip=skip)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@many
def test_stop_strings_are_found_as_by_decoding_everything(
    tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizers[kind]
    token = st.integers(6, tokenizer.vocab_size - 1)
    prompt = data.draw(st.lists(token, min_size=1, max_size=12))
    output = data.draw(st.lists(token, min_size=1, max_size=40))
    text = whole(tokenizer, prompt, output)
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    stops = [text[start : start + data.draw(st.integers(1, 6))], data.draw(st.sampled_from(["a", " ", "he", "\n"]))]
    stops = [stop for stop in stops if stop and "\ufffd" not in stop]
    if not stops:
        return
    min_tokens = data.draw(st.integers(0, 10))
    watch = open_watch(tokenizer, prompt, stop=tuple(stops), min_tokens=min_tokens)
    expected = slow_stop(tokenizer, prompt, output, stops, min_tokens)
    for taken, token_id in enumerate(output, 1):
        stop = watch.push(token_id)
        if stop is not None:
            assert expected == (stop, watch.text(output[:taken]), taken)
            assert watch.text(output) == watch.text(output[:taken])  # tokens made ahead are not text
            return
    assert expected is None
    assert watch.text(output) == text


def test_an_emoji_split_between_prompt_and_completion_belongs_to_the_completion(
    tokenizers: dict[str, Tokenizer],
) -> None:
    for kind in ("byte_level", "byte_fallback"):
        tokenizer = tokenizers[kind]
        emoji = ids(tokenizer, "x𒁕y")
        bytes_of = [one for one in emoji if tokenizer.decode([one], skip_special_tokens=True) == "\ufffd"]
        assert len(bytes_of) == 4
        before, after = emoji[: emoji.index(bytes_of[0])], emoji[emoji.index(bytes_of[3]) + 1 :]
        for split in (1, 2, 3):
            watch = open_watch(tokenizer, [*before, *bytes_of[:split]])
            assert watch.text([*bytes_of[split:], *after]) == "𒁕y"
        assert open_watch(tokenizer, before).text(bytes_of[:2]) in ("\ufffd", "\ufffd\ufffd")
        assert open_watch(tokenizer, [*before, *bytes_of]).text(after) == "y"


def test_a_leading_space_is_kept_after_a_prompt_and_after_special_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    for kind in ("byte_level", "byte_fallback", "unigram"):
        tokenizer = tokenizers[kind]
        word = ids(tokenizer, " the") if kind == "byte_level" else ids(tokenizer, "the")
        prompt = ids(tokenizer, "any")
        assert open_watch(tokenizer, prompt).text(word) == " the", kind
        assert open_watch(tokenizer, [*prompt, *[4] * 20]).text(word) == " the", kind


def test_spaces_before_punctuation_survive(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    code = "a , b != c . d 's  x\n\n\tn't"
    assert open_watch(tokenizer, ids(tokenizer, "code:")).text(ids(tokenizer, code)) == code


def test_a_long_output_costs_its_length_not_its_square(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    decoded = []
    counting = PromptText(tokenizer, ids(tokenizer, "x" * 5000), SamplingParams(stop=("never",)))
    watch = Detokenizer(counting)
    decode = counting.decode
    counting.decode = lambda some: decoded.append(len(some)) or decode(some)  # type: ignore[method-assign]
    output = ids(tokenizer, "the quick brown 😀 fox ") * 100
    for token_id in output:
        watch.push(token_id)
    assert max(decoded) < 100
    assert sum(decoded) < 40 * len(output)


@pytest.mark.parametrize(
    ("stops", "text", "stop", "expected"),
    [
        (["b,c"], "a b,c d", "b,c", "a "),
        ([" any"], "so any", " any", "so"),
        (["rown"], "quick brown fox", "rown", "quick b"),
        (["fox", "own fo"], "brown fox", "own fo", "br"),
        (["x", "brown fox"], "the brown fox", "brown fox", "the "),
        (["😀"], "a😀b", "😀", "a"),
        (["a"], "abc", "a", ""),
    ],
)
def test_stops(tokenizers: dict[str, Tokenizer], stops: list[str], text: str, stop: str, expected: str) -> None:
    """Pushed a whole text at a time where one token holds several stops: the one that starts first wins."""
    tokenizer = tokenizers["byte_level"]
    output = ids(tokenizer, text)
    found, taken = None, 0
    watch = open_watch(tokenizer, ids(tokenizer, "prompt "), stop=tuple(stops))
    for taken, token_id in enumerate(output, 1):  # noqa: B007
        found = watch.push(token_id)
        if found:
            break
    if stop == "brown fox":  # `x` is complete with the same token
        assert found in stops
    assert found == stop
    assert watch.text(output[:taken]) == expected


def test_a_stop_that_begins_in_the_prompt_does_not_count(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    watch = open_watch(tokenizer, ids(tokenizer, "say sto"), stop=("stop",))
    assert [watch.push(one) for one in ids(tokenizer, "p it")] == [None] * len(ids(tokenizer, "p it"))
    assert watch.text(ids(tokenizer, "p it")) == "p it"


def test_a_special_token_is_a_stop_though_it_has_no_text(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    output = [*ids(tokenizer, "done"), 4]
    for skip in (True, False):
        watch = open_watch(tokenizer, ids(tokenizer, "x"), stop=("<|im_end|>",), skip_special_tokens=skip)
        assert [watch.push(one) for one in output][-1] == "<|im_end|>"
        assert watch.text(output) == "done"
    watch = open_watch(tokenizer, ids(tokenizer, "x"), stop=("<|im_end|>",), min_tokens=len(output))
    assert [watch.push(one) for one in [*output, *output]][-1] == "<|im_end|>"


def test_samples_of_one_row_do_not_share_their_state(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    prompt = PromptText(tokenizer, ids(tokenizer, "x"), SamplingParams(stop=("ab",)))
    first, second = prompt(), prompt()
    a, b = ids(tokenizer, "a"), ids(tokenizer, "b")
    first.push(a[0])
    assert second.push(b[0]) is None
    assert first.push(b[0]) == "ab"
    assert (first.has_stops, open_watch(tokenizer, [7]).has_stops) == (True, False)
