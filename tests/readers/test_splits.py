from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offgen.readers import Selection
from offgen.readers.splits import Wanted


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    num_shards = draw(st.integers(1, 7))
    return Selection(
        draw(st.integers(0, 20)),
        draw(st.none() | st.integers(0, 30)),
        draw(st.integers(0, num_shards - 1)),
        num_shards,
    )


def oracle(selection: Selection, num_rows: int) -> list[int]:
    """Skip, then limit, then shard, each as a list."""
    ids = list(range(num_rows))[selection.skip :]
    ids = ids if selection.limit is None else ids[: selection.limit]
    return [row_id for row_id in ids if row_id % selection.num_shards == selection.shard_index]


@given(selections(), st.integers(0, 60))
def test_the_closed_forms_agree_with_cutting_lists(selection: Selection, num_rows: int) -> None:
    chosen = oracle(selection, num_rows)
    assert [row_id for row_id in range(num_rows) if selection.contains(row_id)] == chosen
    assert selection.num_selected(num_rows) == len(chosen)
    assert [selection.position(row_id) for row_id in chosen] == list(range(len(chosen)))
    assert [selection.row_id(position) for position in range(len(chosen))] == chosen


@given(selections(), st.integers(0, 40), st.integers(0, 20), st.sets(st.integers(0, 60)))
def test_a_range_is_wanted_if_one_of_its_rows_is(selection: Selection, start: int, size: int, done: set[int]) -> None:
    wanted = Wanted(selection, done.__contains__)
    assert wanted.any_in(start, start + size) == any(wanted(row_id) for row_id in range(start, start + size))


@pytest.mark.parametrize("fields", [(-1,), (0, -1), (0, None, 3, 3), (0, None, -1, 3)])
def test_senseless_selections_are_refused(fields: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"negative|does not exist"):
        Selection(*fields)
