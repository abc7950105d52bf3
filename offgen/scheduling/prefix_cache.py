"""Which block holds which content, and which content to give up first. Knows neither requests' lives nor free blocks.

A block's name is a hash over its parent's name and its tokens, so that equal names mean equal prefixes. A block whose
content nobody holds *rests* here until it is evicted: first what no waiting row will read, the least recently used
first, the tail of a row before its head.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

HASH_BYTES = 16


def extend_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int, salt: bytes) -> None:
    """Append the names of the full blocks of `token_ids`, which follow the blocks already named in `hashes`.

    Raises OverflowError for an id that is no 32-bit integer.
    """
    parent = hashes[-1] if hashes else blake2b(salt, digest_size=HASH_BYTES).digest()
    data = array("i", token_ids).tobytes()
    width = 4 * block_size
    for end in range(width, len(data) + 1, width):
        parent = blake2b(parent + data[end - width : end], digest_size=HASH_BYTES).digest()
        hashes.append(parent)


class PrefixCache:
    """Content of blocks by name. The block manager is its only writer (and the queue, through want and unwant)."""

    def __init__(self, num_blocks: int) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: list[bytes | None] = [None] * num_blocks
        # oldest first; ordered dicts, because a plain one takes ever longer to find its first key as keys are deleted
        self._resting: OrderedDict[int, None] = OrderedDict()
        self._resting_wanted: OrderedDict[int, None] = OrderedDict()  # met on the way to an eviction and spared
        self._num_wanting: dict[bytes, int] = {}

    @property
    def num_resting(self) -> int:
        return len(self._resting) + len(self._resting_wanted)

    def lookup(self, hashes: Sequence[bytes], limit: int) -> list[int]:
        """Blocks that hold the longest known prefix, at most `limit` of them."""
        block_of = self._block_of
        found: list[int] = []
        for name in hashes[:limit]:
            block_id = block_of.get(name)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def publish(self, block_id: int, name: bytes) -> None:
        """`block_id` holds `name` by the end of the step being planned. Of equal blocks the first one counts."""
        if self._hash_of[block_id] is None and self._block_of.setdefault(name, block_id) == block_id:
            self._hash_of[block_id] = name

    def forget(self, block_id: int) -> None:
        """Its content is not to be read again."""
        name = self._hash_of[block_id]
        if name is not None:
            del self._block_of[name]
            self._hash_of[block_id] = None
            self._resting.pop(block_id, None)
            self._resting_wanted.pop(block_id, None)

    def holds(self, name: bytes) -> bool:
        """Is there a block, live or resting, of this name."""
        return name in self._block_of

    def has_content(self, block_id: int) -> bool:
        return self._hash_of[block_id] is not None

    def is_resting(self, block_id: int) -> bool:
        return block_id in self._resting or block_id in self._resting_wanted

    def rest(self, block_id: int) -> None:
        """Nobody holds the block now; it keeps its content."""
        self._resting[block_id] = None

    def wake(self, block_id: int) -> None:
        """A resting block is held again."""
        if block_id in self._resting:
            del self._resting[block_id]
        else:
            del self._resting_wanted[block_id]

    def evict(self) -> int:
        """Give up the content of the resting block that is worth least; returns the block. There must be one."""
        resting = self._resting
        while resting:
            block_id = next(iter(resting))
            name = self._hash_of[block_id]
            assert name is not None
            if name not in self._num_wanting:
                self.forget(block_id)
                return block_id
            del resting[block_id]
            self._resting_wanted[block_id] = None
        block_id = next(iter(self._resting_wanted))
        self.forget(block_id)
        return block_id

    def want(self, hashes: Iterable[bytes]) -> None:
        """A row that will read these entered the window."""
        num_wanting = self._num_wanting
        for name in hashes:
            num_wanting[name] = num_wanting.get(name, 0) + 1

    def unwant(self, hashes: Iterable[bytes]) -> None:
        """That row left the window. What nobody else waits for is given up before what somebody does."""
        num_wanting = self._num_wanting
        for name in hashes:
            count = num_wanting[name] - 1
            if count:
                num_wanting[name] = count
                continue
            del num_wanting[name]
            block_id = self._block_of.get(name)
            if block_id is not None and block_id in self._resting_wanted:
                del self._resting_wanted[block_id]
                self._resting[block_id] = None

    def check(self) -> None:
        """Names and blocks map one to one; only named blocks rest, each once."""
        for name, block_id in self._block_of.items():
            assert self._hash_of[block_id] == name, f"block {block_id} is listed under another name"
        assert sum(name is not None for name in self._hash_of) == len(self._block_of), "a named block is not listed"
        assert not self._resting.keys() & self._resting_wanted.keys(), "a block rests twice"
        for block_id in (*self._resting, *self._resting_wanted):
            assert self._hash_of[block_id] is not None, f"block {block_id} rests without content"
        assert all(count > 0 for count in self._num_wanting.values()), "a name is wanted by nobody"
