from __future__ import annotations

from urllib.request import ProxyHandler, build_opener

from offgen.job.metrics import MetricsServer


def test_a_scraper_is_answered_while_the_model_loads() -> None:
    server = MetricsServer(0)
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            assert "offgen_rows_done_total 0\n" in answer.read().decode()
    finally:
        server.close()
