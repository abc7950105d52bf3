"""The prefix cache against an oracle that compares whole prefixes, and the order in which content is given up."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offgen.scheduling import Request
from offgen.scheduling.block_manager import BlockManager
from offgen.scheduling.prefix_cache import extend_hashes

SIZE = 4


class OracleCache:
    """Blocks as a list of contents (whole prefixes); what rests, oldest first; what waiting rows want."""

    def __init__(self, num_blocks):
        self.content = [None] * num_blocks
        self.holders = [0] * num_blocks
        self.resting = []
        self.wanted = Counter()

    def find(self, tokens):
        """Longest run of leading blocks that are there; the last token is never among them."""
        found = 0
        while (found + 1) * SIZE < len(tokens) and tuple(tokens[: (found + 1) * SIZE]) in self.content:
            found += 1
        return found

    def may_evict(self, looks_ahead):
        """The least recently used; with a window, whatever no row in it will read."""
        if not looks_ahead:
            return self.resting[:1]
        return [block_id for block_id in self.resting if not self.wanted[self.content[block_id]]] or self.resting


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(4, 30), looks_ahead=st.booleans())
def test_hits_and_evictions_are_the_oracles(seed, num_blocks, looks_ahead):
    rng = random.Random(seed)
    blocks = BlockManager(num_blocks, SIZE, prefix_caching=True)
    oracle = OracleCache(num_blocks)
    trunks = [[rng.randrange(9) for _ in range(40)] for _ in range(3)]
    held, waiting = [], []
    for number in range(80):
        if looks_ahead and rng.random() < 0.3:
            request = make_request(rng, number, trunks, blocks)
            waiting.append(request)
            blocks.cache.want(request.block_hashes)
            oracle.wanted.update(prefixes(request.prompt_ids))
        elif waiting and rng.random() < 0.3:
            request = waiting.pop(rng.randrange(len(waiting)))
            blocks.cache.unwant(request.block_hashes)
            oracle.wanted.subtract(prefixes(request.prompt_ids))
        elif held and rng.random() < 0.5:
            release(held.pop(rng.randrange(len(held))), blocks, oracle)
        else:
            admit(make_request(rng, number, trunks, blocks), blocks, oracle, held, looks_ahead)
        blocks.check(held)
        assert blocks.num_cached == len(oracle.resting)
        assert blocks.num_live == sum(count > 0 for count in oracle.holders)
    for request in held:
        release(request, blocks, oracle)
    assert blocks.num_live == 0 and blocks.num_free + blocks.num_cached == num_blocks


def prefixes(tokens):
    return [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]


def make_request(rng, number, trunks, blocks):
    prompt = rng.choice(trunks)[: rng.randint(0, 30)] + [rng.randrange(9) for _ in range(rng.randint(1, 6))]
    request = Request(number, prompt, max_tokens=1)
    blocks.name_blocks(request, len(prompt))
    return request


def admit(request, blocks, oracle, held, looks_ahead):
    tokens = request.prompt_ids
    cached = blocks.find_cached(request)
    assert len(cached) == oracle.find(tokens)
    assert [oracle.content[block_id] for block_id in cached] == prefixes(tokens)[: len(cached)]
    num_total = -(-len(tokens) // SIZE)
    if blocks.num_missing(cached, num_total) > blocks.num_available:
        return
    for block_id in cached:
        if block_id in oracle.resting:
            oracle.resting.remove(block_id)
    num_free = blocks.num_free
    blocks.admit(request, cached, num_total)
    for block_id in request.block_ids[len(cached) :]:
        if num_free:
            num_free -= 1
            assert oracle.content[block_id] is None, "content was given up while a block was free"
        else:
            assert block_id in oracle.may_evict(looks_ahead)
            oracle.resting.remove(block_id)
        oracle.content[block_id] = None
    for block_id in request.block_ids:
        oracle.holders[block_id] += 1
    blocks.publish(request, len(tokens))
    for block_id, prefix in zip(request.block_ids, prefixes(tokens), strict=False):
        if prefix not in oracle.content:
            oracle.content[block_id] = prefix
    held.append(request)


def release(request, blocks, oracle):
    block_ids = request.block_ids
    blocks.release(request)
    for block_id in reversed(block_ids):
        oracle.holders[block_id] -= 1
        if not oracle.holders[block_id] and oracle.content[block_id] is not None:
            oracle.resting.append(block_id)


def test_a_name_stands_for_parent_tokens_and_salt():
    def names(tokens, salt=b""):
        hashes = []
        extend_hashes(hashes, tokens, SIZE, salt)
        return hashes

    one = names([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert len(one) == 2 and all(len(name) == 16 for name in one)
    assert names([1, 2, 3, 4, 5, 6, 7, 8]) == one
    assert names([1, 2, 3, 4, 5, 6, 7, 0])[0] == one[0]
    assert names([0, 2, 3, 4, 5, 6, 7, 8])[1] != one[1]  # same tokens under another parent
    assert not set(names([1, 2, 3, 4, 5, 6, 7, 8], salt=b"adapter")) & set(one)
    grown = names([1, 2, 3, 4])
    extend_hashes(grown, [5, 6, 7, 8], SIZE, b"")
    assert grown == one
    with pytest.raises(OverflowError):
        names([2**40] * SIZE)


def filled(blocks, number, tokens):
    request = Request(number, tokens, max_tokens=1)
    blocks.name_blocks(request, len(tokens))
    blocks.admit(request, blocks.find_cached(request), -(-len(tokens) // SIZE))
    blocks.publish(request, len(tokens))
    return request


def test_a_rows_tail_is_given_up_before_its_head():
    blocks = BlockManager(4, SIZE, prefix_caching=True)
    first = filled(blocks, 0, list(range(12)))
    blocks.release(first)
    filled(blocks, 1, [50] * 8)  # takes the free block and one of the first row's
    again = Request(2, list(range(13)), max_tokens=1)
    blocks.name_blocks(again, 13)
    assert len(blocks.find_cached(again)) == 2


def test_content_that_a_waiting_row_needs_outlives_newer_content():
    blocks = BlockManager(4, SIZE, prefix_caching=True)
    old, new = filled(blocks, 0, [1] * 8), filled(blocks, 1, [2] * 8)
    blocks.release(old)
    blocks.release(new)
    coming = Request(2, [1] * 9, max_tokens=1)
    blocks.name_blocks(coming, 9)
    blocks.cache.want(coming.block_hashes)
    filled(blocks, 3, [3] * 8)
    assert len(blocks.find_cached(coming)) == 2
    blocks.cache.unwant(coming.block_hashes)
    blocks.cache.check()


def test_discarded_content_is_not_found_again():
    blocks = BlockManager(8, SIZE, prefix_caching=True)
    bad, good = filled(blocks, 0, [1] * 12), filled(blocks, 1, [1] * 5)
    blocks.discard(bad)
    again = Request(2, [1] * 13, max_tokens=1)
    blocks.name_blocks(again, 13)
    assert len(blocks.find_cached(again)) == 1  # what another row holds too
    blocks.release(good)
    blocks.check([])
