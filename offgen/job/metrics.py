"""Shows a running job to Prometheus: a file for the node exporter's textfile collector, or a small HTTP server."""

from __future__ import annotations

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from offgen.config import DisplayConfig
from offgen.errors import UsageError
from offgen.job.files import check_place, write_atomically
from offgen.stats.engine import EngineStats
from offgen.stats.progress import Progress, Snapshot
from offgen.stats.prometheus import CONTENT_TYPE, prometheus_text

MIN_INTERVAL_S = 2.0  # collectors read every few seconds at most


class MetricsFile:
    """Replaces a file with the newest metrics, never half-written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_s: float | None = None

    def show(self, snapshot: Snapshot) -> None:
        now_s = time.monotonic()
        is_last = snapshot.rows_done == snapshot.rows_total
        if not is_last and self._written_s is not None and now_s - self._written_s < MIN_INTERVAL_S:
            return
        write_atomically(self._path, prometheus_text(snapshot))
        self._written_s = now_s


class MetricsServer:
    """Answers GET /metrics on a thread of its own, on all interfaces. Port 0 takes a free one."""

    def __init__(self, port: int) -> None:
        now_s = time.monotonic()
        self._text = prometheus_text(Progress(EngineStats(), now_s).snapshot(now_s))  # while the model loads
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] not in {"/metrics", "/"}:
                    self.send_error(404)
                    return
                body = server._text.encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are no news."""

        try:
            self._http = ThreadingHTTPServer(("", port), Handler)
        except OSError as problem:
            raise UsageError(f"--metrics-port {port}: {problem.strerror}", hint="choose a free port") from problem
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, name="offgen-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def show(self, snapshot: Snapshot) -> None:
        self._text = prometheus_text(snapshot)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._http.shutdown()
            self._http.server_close()


class Metrics:
    """Where a job's metrics go: nowhere, a file, a port, or both."""

    def __init__(self, file: MetricsFile | None, server: MetricsServer | None) -> None:
        self._server = server
        self.listeners = [one.show for one in (file, server) if one is not None]

    @property
    def port(self) -> int | None:
        return None if self._server is None else self._server.port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def open_metrics(config: DisplayConfig) -> Metrics:
    """As the options ask. Raises UsageError for a port that is taken and a file that cannot be."""
    path = config.metrics_file
    check_place("--metrics-file", path)
    return Metrics(
        None if path is None else MetricsFile(path),
        None if config.metrics_port is None else MetricsServer(config.metrics_port),
    )
