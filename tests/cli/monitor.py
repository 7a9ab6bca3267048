"""A monitor of the outside, as --ping asks one."""

from __future__ import annotations

import http.server
import threading


class Monitor:
    """Notes what is asked of it. `elsewhere`: where it redirects to; `slow`: answers once it is set."""

    elsewhere = ""
    slow: threading.Event | None = None

    def __init__(self, status: int = 200) -> None:
        monitor = self
        self.asked: list[tuple[str, str | None]] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append((self.path, self.headers["Authorization"]))
                if monitor.slow is not None:
                    monitor.slow.wait(20)
                self.send_response(302 if monitor.elsewhere else status)
                if monitor.elsewhere:
                    self.send_header("Location", monitor.elsewhere)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name there

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/ping/abc"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
