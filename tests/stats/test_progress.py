import pytest

from offgen.stats.engine import EngineStats
from offgen.stats.progress import Progress
from offgen.stats.prometheus import prometheus_text
from offgen.stats.timeline import MAX_POINTS, Reading, Timeline, thinned


def test_rates_are_over_the_last_seconds_and_eta_over_the_run():
    stats = EngineStats(kv_blocks=100)
    progress = Progress(stats, started_s=100.0, rows_before=10, rows_total=110)
    for second in range(1, 21):
        stats.sampled_tokens += 50 if second <= 10 else 100
        stats.kv_blocks_used = 25
        progress.count(second, 1, failed=second == 3)
        snapshot = progress.snapshot(100.0 + second)
    assert snapshot.decode_tokens_per_s == pytest.approx(100, rel=0.01)
    assert (snapshot.rows_done, snapshot.rows_total, snapshot.errors) == (30, 110, 1)
    assert snapshot.eta_s == pytest.approx(80.0)
    assert snapshot.kv_used == 0.25


def test_a_row_is_done_with_its_last_sample_and_failed_with_any():
    progress = Progress(EngineStats(), started_s=0.0)
    progress.count(7, 3, failed=True)
    progress.count(8, 3, failed=False)
    progress.count(7, 3, failed=False)
    assert progress.rows == 0
    progress.count(7, 3, failed=False)
    assert (progress.rows, progress.errors) == (1, 1)


def test_a_long_job_has_about_200_points_and_the_same_tokens():
    timeline = Timeline()
    for tick in range(1, 10_001):
        timeline.add(Reading(tick * 0.5, 8, 3, 0.5, tick * 10, tick * 4))
    points = timeline.points(offset_s=100.0)
    assert 100 <= len(points) <= MAX_POINTS
    assert points[-1]["t_s"] <= 5100
    assert all(point["decode_tokens_per_s"] == pytest.approx(8, rel=0.01) for point in points)


def test_thinning_keeps_the_end_and_the_mean_rate():
    points = [
        {"t_s": float(i + 1), "running": i, "waiting": 0, "kv_used": 0.0, "prefill_tokens_per_s": 0.0,
         "decode_tokens_per_s": float(i)}
        for i in range(801)
    ]  # fmt: skip
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS + 1
    assert kept[-1]["t_s"] == 801.0
    total, before = 0.0, 0.0
    for point in kept:
        total += point["decode_tokens_per_s"] * (point["t_s"] - before)
        before = point["t_s"]
    assert total == pytest.approx(sum(range(801)), rel=0.001)


def test_metrics_have_help_type_and_value():
    progress = Progress(EngineStats(sampled_tokens=12), started_s=0.0)
    text = prometheus_text(progress.snapshot(2.0))
    assert "# TYPE offgen_generated_tokens_total counter\noffgen_generated_tokens_total 12\n" in text
    assert "offgen_eta_seconds" not in text
    assert text.endswith("\n")
