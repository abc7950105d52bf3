"""What a report says, as text, as a page, and for shards together."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from offgen.errors import UsageError
from offgen.job.accounting import RunFigures, make_report
from offgen.report import load_report, report_page, summary_text
from offgen.stats.engine import EngineStats
from offgen.stats.histogram import LogHistogram
from offgen.stats.timeline import Reading, Timeline


class Totals:
    def __init__(self, rows=10, errors=None, seconds=(0.1, 0.2, 0.4)):
        self.rows, self.errors = rows, errors or {}
        self.prompt_tokens, self.completion_tokens, self.cached_tokens = 100 * rows, 50 * rows, 5 * rows
        self.latencies = {name: LogHistogram() for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s")}
        for histogram in self.latencies.values():
            for value in seconds:
                histogram.add(value)


def figures(run_s=10.0, **stats):
    timeline = Timeline()
    for tick in range(1, 11):
        timeline.add(Reading(run_s * tick / 10, 4, 2, 0.5, tick * 100, tick * 50))
    counted = {"steps": 100, "sampling_steps": 100, "sampled_tokens": 300, "max_running": 4, "kv_blocks": 64, **stats}
    return RunFigures(load_s=1.0, run_s=run_s, wall_s=run_s + 2, stats=EngineStats(**counted), timeline=timeline)


def made(earlier=None, **totals):
    return make_report(Totals(**totals), figures(), earlier, {"model": "m", "status": "finished"})


def test_a_resumed_job_reports_sums():
    first = made()
    second = make_report(Totals(), figures(run_s=5.0, kv_blocks_peak=9), json.loads(json.dumps(first)), {})
    assert (first["runs"], second["runs"]) == (1, 2)
    assert second["run_s"] == 15.0
    assert second["load_s"] == 2.0
    assert second["completion_tokens_per_s"] == pytest.approx(500 / 15)
    assert second["steps"] == 200
    assert second["bubble_ratio"] == pytest.approx(1 - 600 / 800)
    assert second["timeline"][-1]["t_s"] == 15.0
    assert [point["t_s"] for point in second["timeline"]] == sorted(point["t_s"] for point in second["timeline"])


def test_a_job_without_rows_divides_by_nothing():
    report = make_report(Totals(rows=0, seconds=()), RunFigures(0, 0, 0, EngineStats(), Timeline()), None, {})
    assert report["completion_tokens_per_s"] is None
    assert report["ttft_s"]["p50"] is None
    assert "0 rows" in summary_text(report)
    assert "<svg" in report_page(report, title="t")


def test_the_text_names_what_counts():
    text = summary_text(made(errors={"bad_row": 2, "prompt_too_long": 1}))
    assert "10 rows, 3 of them failed" in text
    assert "50.0 generated tokens/s" in text
    assert "bubble ratio 25.0%" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("queue", "TTFT", "TPOT", "e2e"))] == [
        "queue", "TTFT", "TPOT", "e2e",
    ]  # fmt: skip
    assert "bad_row" in text


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "line", "polyline"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_outside_and_is_well_formed():
    page = Page()
    text = report_page(made(errors={"<script>": 1}), title="a & b <script>")
    page.feed(text)
    assert page.open == []
    assert page.links == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 6
    assert "http" not in text
    assert "nan" not in text.lower().replace("finance", "")


def test_a_report_is_found_beside_a_file_in_a_folder_and_by_name(tmp_path):
    text = json.dumps(made())
    for state in (tmp_path / "out.parquet.offgen", tmp_path / "folder" / "_offgen"):
        state.mkdir(parents=True)
        (state / "report.json").write_text(text)
    for name in ("out.parquet", "folder", "folder/", "out.parquet.offgen", "out.parquet.offgen/report.json"):
        assert load_report(str(tmp_path / name))["rows"] == 10
    with pytest.raises(UsageError, match="no such output"):
        load_report(str(tmp_path / "nope"))
    with pytest.raises(UsageError, match="no report there"):
        load_report(str(tmp_path))


def test_shards_are_added_up_and_missing_ones_named(tmp_path):
    for index, seconds in ((0, (0.1,) * 9), (2, (9.0,))):
        state = tmp_path / f"shard-{index}-of-3" / "_offgen"
        state.mkdir(parents=True)
        (state / "report.json").write_text(json.dumps(made(errors={"bad_row": 1}, seconds=seconds)))
    (tmp_path / "shard-1-of-3").mkdir()
    report = load_report(str(tmp_path))
    assert (report["rows"], report["errors"], report["runs"]) == (20, {"bad_row": 2}, 2)
    assert report["shards"] == {"count": 3, "missing": [1]}
    assert report["status"] == "unfinished"
    assert report["ttft_s"]["p50"] == pytest.approx(0.1, rel=0.02)
    assert report["ttft_s"]["max"] == 9.0
    assert report["completion_tokens_per_s"] == pytest.approx(1000 / 20)
    assert report["timeline"][0]["running"] == 8
    summary_text(report)
    report_page(report, title="shards")
