import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offgen.stats.histogram import LogHistogram

values = st.lists(st.floats(min_value=0, max_value=1e12, allow_nan=False), min_size=1, max_size=200)


def filled(numbers):
    histogram = LogHistogram()
    for number in numbers:
        histogram.add(number)
    return histogram


@settings(max_examples=100, deadline=None)
@given(values, st.sampled_from([1, 10, 50, 90, 99, 100]))
def test_a_percentile_is_within_one_percent_of_the_nearest_rank(numbers, percent):
    true = sorted(numbers)[max(1, math.ceil(len(numbers) * percent / 100)) - 1]
    assert filled(numbers).percentile(percent) == pytest.approx(true, rel=0.0101, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(values, values)
def test_a_merge_is_the_histogram_of_both_streams(first, second):
    merged = filled(first)
    merged.merge(filled(second))
    both = filled(first + second)
    assert merged.summary() == pytest.approx(both.summary())
    assert (merged.count, merged.min, merged.max) == (both.count, both.min, both.max)


@settings(max_examples=50, deadline=None)
@given(values)
def test_json_gives_the_same_histogram_back(numbers):
    histogram = filled(numbers)
    back = LogHistogram.from_dict(json.loads(json.dumps(histogram.to_dict())))
    assert back.to_dict() == histogram.to_dict()
    assert back.summary() == histogram.summary()


def test_an_empty_histogram_has_no_percentile():
    assert LogHistogram().summary() == {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    assert LogHistogram.from_dict(LogHistogram().to_dict()).count == 0


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_senseless_value_is_refused(value):
    with pytest.raises(ValueError, match="histogram"):
        LogHistogram().add(value)
