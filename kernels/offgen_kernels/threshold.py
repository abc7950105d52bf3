"""The value down to which a row's columns are kept, by count (top-k) or by weight (top-p), without a sort.

    the smallest t such that the columns strictly above t are fewer than k, or weigh less than p of the total

A search over values: each pass over the row weighs what lies above four pivots at once, three evenly between the
bounds and one halfway between them as bit patterns, so that an outlier cannot stall it (32 passes at the very worst,
1 to 5 as a rule). As soon as few enough columns lie between the bounds they are gathered, and the search ends on them
alone, exactly. All sums run in one order, so a row's threshold does not depend on its neighbours.
Source: after RadiK (2024) and Qrita (arXiv 2602.01518). Bytes: one read of the row per pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAX_CANDIDATES = 2048


@triton.jit
def to_key(x):
    """float32 to int64, in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def from_key(key):
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(x, weight, key, weights, counts):
    is_above = x > from_key(key)
    return weights + tl.where(is_above, weight, 0.0), counts + is_above.to(tl.int32)


@triton.jit
def _narrowed(key, weight, count, limit, low, high, count_low, weight_high, count_high):
    """The bounds once it is known how much lies above `key`."""
    if weight < limit:
        if key < high:
            high = key
            weight_high = weight
            count_high = count
    elif key > low:
        low = key
        count_low = count
    return low, high, count_low, weight_high, count_high


@triton.jit
def _narrowed_by_a_pass(
    row_ptr,
    size,
    smallest,
    peak,
    rate,
    limit,
    share,
    low,
    high,
    count_low,
    weight_high,
    count_high,
    BY_COUNT: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One read of the row: what lies above four pivots, and the bounds that follow."""
    i = tl.arange(0, TILE)
    first = from_key(low + 1)
    step = (from_key(high) - first) * 0.25
    key_a = tl.minimum(tl.maximum(to_key(first + step), low + 1), high - 1)
    key_b = tl.minimum(tl.maximum(to_key(first + step * 2.0), low + 1), high - 1)
    key_c = tl.minimum(tl.maximum(to_key(first + step * 3.0), low + 1), high - 1)
    key_d = low + (high - low) // 2
    total = tl.zeros([TILE], tl.float32)
    weight_a = tl.zeros([TILE], tl.float32)
    weight_b = tl.zeros([TILE], tl.float32)
    weight_c = tl.zeros([TILE], tl.float32)
    weight_d = tl.zeros([TILE], tl.float32)
    count_a = tl.zeros([TILE], tl.int32)
    count_b = tl.zeros([TILE], tl.int32)
    count_c = tl.zeros([TILE], tl.int32)
    count_d = tl.zeros([TILE], tl.int32)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        x = tl.load(row_ptr + start + i, mask=start + i < size, other=float("-inf")).to(tl.float32)
        if BY_COUNT:
            weight = tl.full([TILE], 1.0, tl.float32)
        else:
            weight = tl.exp2((x - peak) * rate)
            total += tl.where(x >= smallest, weight, 0.0)
        weight_a, count_a = _above(x, weight, key_a, weight_a, count_a)
        weight_b, count_b = _above(x, weight, key_b, weight_b, count_b)
        weight_c, count_c = _above(x, weight, key_c, weight_c, count_c)
        weight_d, count_d = _above(x, weight, key_d, weight_d, count_d)
    if not BY_COUNT:
        limit = tl.sum(total, 0) * share
    low, high, count_low, weight_high, count_high = _narrowed(
        key_a, tl.sum(weight_a, 0), tl.sum(count_a, 0), limit, low, high, count_low, weight_high, count_high
    )
    low, high, count_low, weight_high, count_high = _narrowed(
        key_b, tl.sum(weight_b, 0), tl.sum(count_b, 0), limit, low, high, count_low, weight_high, count_high
    )
    low, high, count_low, weight_high, count_high = _narrowed(
        key_c, tl.sum(weight_c, 0), tl.sum(count_c, 0), limit, low, high, count_low, weight_high, count_high
    )
    low, high, count_low, weight_high, count_high = _narrowed(
        key_d, tl.sum(weight_d, 0), tl.sum(count_d, 0), limit, low, high, count_low, weight_high, count_high
    )
    return low, high, count_low, weight_high, count_high


@triton.jit
def _end_on_candidates(
    row_ptr,
    scratch_ptr,
    size,
    smallest,
    peak,
    rate,
    limit,
    share,
    low,
    high,
    weight_high,
    BY_COUNT: tl.constexpr,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gather what lies between the bounds, at most CANDIDATES columns, and halve the bounds on it alone."""
    i = tl.arange(0, TILE)
    low_value = from_key(low)
    high_value = from_key(high)
    num_gathered = size * 0
    total = tl.zeros([TILE], tl.float32)
    for start in tl.range(0, size, TILE, num_stages=STAGES):
        x = tl.load(row_ptr + start + i, mask=start + i < size, other=float("-inf")).to(tl.float32)
        if not BY_COUNT:
            total += tl.where(x >= smallest, tl.exp2((x - peak) * rate), 0.0)
        is_between = ((x > low_value) & (x <= high_value)).to(tl.int32)
        place = num_gathered + tl.cumsum(is_between, 0) - 1
        tl.store(scratch_ptr + place, x, mask=(is_between > 0) & (place < CANDIDATES))
        num_gathered += tl.sum(is_between, 0)
    if not BY_COUNT:
        limit = tl.sum(total, 0) * share
    tl.debug_barrier()  # the candidates were stored by other threads than those that read them
    j = tl.arange(0, CANDIDATES)
    x = tl.load(scratch_ptr + j, mask=j < num_gathered, other=float("-inf"))
    if BY_COUNT:
        weight = tl.full([CANDIDATES], 1.0, tl.float32)
    else:
        weight = tl.exp2((x - peak) * rate)
    while high - low > 1:
        middle = low + (high - low) // 2
        above = weight_high + tl.sum(tl.where(x > from_key(middle), weight, 0.0), 0)
        if above < limit:
            high = middle
        else:
            low = middle
    tl.debug_barrier()  # before somebody gathers again
    return high


@triton.jit
def threshold(
    row_ptr,
    scratch_ptr,
    size,
    smallest,
    largest,
    peak,
    rate,
    count_limit,
    share,
    BY_COUNT: tl.constexpr,
    TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Columns below `smallest` do not take part; weights are 2^((x - peak) * rate). Returns the threshold."""
    low = to_key(smallest) - 1  # what lies above it is too much, or all is kept
    high = to_key(largest)  # nothing lies above it
    count_low = size
    count_high = size * 0
    weight_high = peak * 0.0
    limit = count_limit.to(tl.float32)
    while (high - low > 1) & (count_low - count_high > CANDIDATES):
        low, high, count_low, weight_high, count_high = _narrowed_by_a_pass(
            row_ptr, size, smallest, peak, rate, limit, share, low, high, count_low, weight_high, count_high,
            BY_COUNT, TILE, STAGES,
        )  # fmt: skip
    if high - low > 1:
        high = _end_on_candidates(
            row_ptr, scratch_ptr, size, smallest, peak, rate, limit, share, low, high, weight_high, BY_COUNT, TILE,
            CANDIDATES, STAGES,
        )  # fmt: skip
    return from_key(high)
