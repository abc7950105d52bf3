"""The KV pool: which request holds which blocks. Knows block ids and reference counts; knows no policy.

A block is *live* (held by one request or more), *cached* (held by nobody, content kept) or *free*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from offgen.scheduling.prefix_cache import PrefixCache, extend_hashes
from offgen.scheduling.request import Request


class BlockManager:
    """Writer of Request.block_ids, block_hashes, num_shared_blocks and num_published."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.cache = PrefixCache(num_blocks) if prefix_caching else None
        self._num_holders = [0] * num_blocks
        # last in, first out, low ids first: a small job touches little of a lazily committed pool
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self.cache.num_resting if self.cache is not None else 0

    @property
    def num_available(self) -> int:
        """Blocks that can be had without taking one from a request."""
        return len(self._free) + (self.cache.num_resting if self.cache is not None else 0)

    @property
    def num_live(self) -> int:
        return self.num_blocks - self.num_available

    def name_blocks(self, request: Request, num_tokens: int) -> None:
        """Hash the request's full blocks among its first `num_tokens` known tokens, those not hashed yet."""
        if self.cache is None:
            return
        size = self.block_size
        start = len(request.block_hashes) * size
        stop = num_tokens // size * size
        if stop > start:
            extend_hashes(request.block_hashes, request.token_ids(start, stop), size, request.cache_salt)

    def find_cached(self, request: Request) -> list[int]:
        """Live or cached blocks that hold the request's first tokens; its last known token is never among them."""
        if self.cache is None or not request.reads_cache:
            return []
        return self.cache.lookup(request.block_hashes, (request.num_tokens - 1) // self.block_size)

    def num_missing(self, cached: list[int], num_total: int) -> int:
        """Blocks that leave the available ones if a request with these hits is given `num_total` blocks."""
        holders = self._num_holders
        return num_total - len(cached) + sum(not holders[block_id] for block_id in cached)

    def admit(self, request: Request, cached: list[int], num_total: int) -> None:
        """Give a request its first blocks: `cached` shared, the rest its own. They must be available."""
        cache = self.cache
        for block_id in cached:
            assert cache is not None
            if not self._num_holders[block_id]:
                cache.wake(block_id)
            self._num_holders[block_id] += 1
        request.block_ids = [*cached, *(self._take() for _ in range(num_total - len(cached)))]
        request.num_published = request.num_shared_blocks = len(cached)

    def grow(self, request: Request) -> int | None:
        """One more block at the end, or None if none is available."""
        if not self._free and not (self.cache is not None and self.cache.num_resting):
            return None
        block_id = self._take()
        request.block_ids.append(block_id)
        return block_id

    def publish(self, request: Request, num_tokens: int) -> None:
        """The KV of the first `num_tokens` will be there by the end of the step being planned: others may share it."""
        if self.cache is None:
            return
        num_full = num_tokens // self.block_size
        self.name_blocks(request, num_tokens)
        for index in range(request.num_published, num_full):
            self.cache.publish(request.block_ids[index], request.block_hashes[index])
        request.num_published = max(request.num_published, num_full)

    def release(self, request: Request) -> None:
        """Take all blocks back, the tail first, so that it is evicted before the head."""
        cache, holders, free = self.cache, self._num_holders, self._free
        for block_id in reversed(request.block_ids):
            holders[block_id] -= 1
            if holders[block_id]:
                continue
            if cache is not None and cache.has_content(block_id):
                cache.rest(block_id)
            else:
                free.append(block_id)
        request.block_ids = []
        request.num_published = 0

    def discard(self, request: Request) -> None:
        """As release, but content that only this request holds is not to be read again."""
        if self.cache is not None:
            for block_id in request.block_ids:
                if self._num_holders[block_id] == 1:
                    self.cache.forget(block_id)
        self.release(request)

    def forget_all(self) -> None:
        """No content is read again. Nobody may hold a block."""
        if self.cache is not None:
            for block_id in range(self.num_blocks):
                if self.cache.is_resting(block_id):
                    self.cache.forget(block_id)
                    self._free.append(block_id)

    def check(self, holders: Iterable[Request]) -> None:
        """live + cached + free = total, and each block's count is the number of requests that hold it."""
        expected = Counter(block_id for request in holders for block_id in request.block_ids)
        for block_id, count in enumerate(self._num_holders):
            assert count == expected[block_id], f"block {block_id}: count {count}, held by {expected[block_id]}"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert not any(self._num_holders[block_id] for block_id in free), "a free block is held"
        if self.cache is not None:
            self.cache.check()
            assert not any(self.cache.has_content(block_id) for block_id in free), "a free block has content"
            for block_id in range(self.num_blocks):
                if self.cache.is_resting(block_id):
                    assert not self._num_holders[block_id], "a resting block is held"
        assert len(expected) + self.num_cached + self.num_free == self.num_blocks, "blocks were lost"

    def _take(self) -> int:
        if self._free:
            block_id = self._free.pop()
        else:
            assert self.cache is not None
            block_id = self.cache.evict()
        self._num_holders[block_id] = 1
        return block_id
