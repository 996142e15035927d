"""A web server for tests, which answers everything alike and notes what it was asked."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from email.message import Message


@contextlib.contextmanager
def answering(
    *, status: int = 200, said: str = "", seconds: float = 0.0
) -> Iterator[tuple[str, list[tuple[Message, bytes]]]]:
    """Its address, and the headers and body of each request; it answers after `seconds`, or when it ends."""
    requests: list[tuple[Message, bytes]] = []
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.headers, self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            over.wait(seconds)
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(said.encode())))
                self.end_headers()
                self.wfile.write(said.encode())

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        over.set()
        server.shutdown()
        server.server_close()
