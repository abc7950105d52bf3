"""In which order waiting rows are served: one pure function per policy. Judged in the simulator first.

Each takes the waiting requests in the order they came, with `expected_tokens` and `block_hashes` filled in, and returns
them in the order they should run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from offgen.scheduling.request import Request

# below this share of prompt tokens that could be shared, order by length alone: grouping has nothing to win
MIN_SHARED = 0.02

Holds = Callable[[bytes], bool]  # is the block of this name in the pool now
Order = Callable[[Sequence[Request], Holds], list[Request]]


def input_order(requests: Sequence[Request], holds: Holds) -> list[Request]:
    """As they came."""
    return list(requests)


def longest_first(requests: Sequence[Request], holds: Holds) -> list[Request]:
    """Most expected output tokens first, so that no long row starts near the end of the job."""
    return sorted(requests, key=lambda request: -request.expected_tokens)


def prefix_order(requests: Sequence[Request], holds: Holds) -> list[Request]:
    """Rows with a common prefix run together, so that it is computed once: depth first over the tree of prefixes.

    Among branches, one whose blocks are in the pool comes first, then the one with the longest expected output.
    """
    ordered: list[Request] = []
    stack = [(list(requests), 0)]
    while stack:
        rows, depth = stack.pop()
        if len(rows) == 1:
            ordered += rows
            continue
        depth = _common_depth(rows, depth)
        branches: dict[bytes, list[Request]] = {}
        ends_here: list[Request] = []
        for request in rows:
            if len(request.block_hashes) > depth:
                branches.setdefault(request.block_hashes[depth], []).append(request)
            else:
                ends_here.append(request)
        first_first = sorted(
            branches.items(), key=lambda item: (not holds(item[0]), -max(row.expected_tokens for row in item[1]))
        )
        stack += [(branch, depth + 1) for _, branch in reversed(first_first)]
        ordered += longest_first(ends_here, holds)
    return ordered


def auto_order(requests: Sequence[Request], holds: Holds) -> list[Request]:
    """By prefix if the rows share enough, else the longest first."""
    num_blocks = sum(len(request.block_hashes) for request in requests)
    if num_blocks:
        num_distinct = len({name for request in requests for name in request.block_hashes})
        if num_blocks - num_distinct >= MIN_SHARED * num_blocks:
            return prefix_order(requests, holds)
    return longest_first(requests, holds)


ORDERS: dict[str, Order] = {
    "auto": auto_order,
    "input": input_order,
    "longest-first": longest_first,
    "prefix": prefix_order,
}


def _common_depth(rows: list[Request], depth: int) -> int:
    """How many leading blocks all rows share, if they share `depth`: a name stands for its whole prefix, so search."""
    low, high = depth, min(len(request.block_hashes) for request in rows)
    first = rows[0].block_hashes
    while low < high:
        middle = (low + high + 1) // 2
        name = first[middle - 1]
        if all(request.block_hashes[middle - 1] == name for request in rows):
            low = middle
        else:
            high = middle - 1
    return low
