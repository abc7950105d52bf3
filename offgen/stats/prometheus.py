"""A snapshot as Prometheus text (exposition format 0.0.4). Knows names and help lines; opens nothing."""

from __future__ import annotations

from offgen.stats.progress import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# name, kind, help, the snapshot's field
METRICS = (
    ("offgen_rows_done_total", "counter", "Rows finished, earlier runs of the job included.", "rows_done"),
    ("offgen_rows", "gauge", "Rows of the job, once they are known.", "rows_total"),
    ("offgen_row_errors_total", "counter", "Rows that ended with an error.", "errors"),
    ("offgen_prefill_tokens_total", "counter", "Prompt tokens computed.", "prefill_tokens"),
    ("offgen_generated_tokens_total", "counter", "Tokens generated.", "sampled_tokens"),
    ("offgen_cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache.", "cached_tokens"),
    ("offgen_preemptions_total", "counter", "Rows that gave up their KV blocks to others.", "num_preemptions"),
    ("offgen_prefill_tokens_per_second", "gauge", "Over the last seconds.", "prefill_tokens_per_s"),
    ("offgen_decode_tokens_per_second", "gauge", "Over the last seconds.", "decode_tokens_per_s"),
    ("offgen_rows_running", "gauge", "Rows in the batch.", "running"),
    ("offgen_rows_waiting", "gauge", "Rows in the scheduler's window.", "waiting"),
    ("offgen_kv_used_ratio", "gauge", "Share of KV blocks that rows hold.", "kv_used"),
    ("offgen_elapsed_seconds", "gauge", "Since the first step.", "elapsed_s"),
    ("offgen_eta_seconds", "gauge", "Estimated time to the last row.", "eta_s"),
)


def prometheus_text(snapshot: Snapshot) -> str:
    """All metrics that have a value."""
    lines = []
    for name, kind, help_line, field in METRICS:
        value = getattr(snapshot, field)
        if value is not None:
            lines += [f"# HELP {name} {help_line}", f"# TYPE {name} {kind}", f"{name} {value:.10g}"]
    return "\n".join(lines) + "\n"
