"""The HTTP side: one path, `/metrics`, in Prometheus' text form or OpenMetrics.

The threaded server and the text are prometheus_client's. Its `start_http_server` would answer from
the moment it listens, at every path, and wait for ever for a client that says nothing: a thread of
the stream's driver each. So here connections have a deadline and a bound.

Known limitation: no password and no encryption. What is served names topics and volumes, nothing
of any message; who may see it is decided by the address it listens on.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from spillway.kafka.broker import listener_of
from spillway_schemas.exits import FAILED

PATH = "/metrics"
WHOLE_S = 10.0
"""How long a client may take to ask and to read the answer, however it spreads that."""
MOST_AT_ONCE = 32
"""Clients, each with a thread; one more is turned away."""
PROBE_S = 2.0
"""How long it may take to say whose server it is."""


class CannotListen(RuntimeError):
    """The address cannot be listened on: why, and what to do."""

    exit_code = FAILED

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}: {mend}")
        self.what = what
        self.mend = mend


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing: a scrape every few seconds is no news."""


class _Server(ThreadingWSGIServer):
    def __init__(self, *given: Any) -> None:
        self._until: dict[Any, float] = {}
        """Open connections, and when each has to be done."""
        super().__init__(*given)

    def verify_request(self, request: Any, _: Any) -> bool:
        """Whether there is a thread for it."""
        if len(self._until) >= MOST_AT_ONCE:
            return False
        self._until[request] = time.monotonic() + WHOLE_S
        return True

    def service_actions(self) -> None:
        """Called twice a second at least. A thread whose socket is shut down ends by itself."""
        now = time.monotonic()
        for request, until in list(self._until.items()):
            if until < now:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """The connection is over."""
        self._until.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind, without HTTPServer's question to the name service, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class MetricsServer:
    """Listens from its making on, answers between `start` and `close`. Threads of its own."""

    def __init__(self, listen: str, collector: Collector) -> None:
        """Take the address `host:port`. Raises CannotListen."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self._http = _bound(listen)
        self._http.set_app(_only_metrics(make_wsgi_app(registry)))
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="metrics-http", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._http.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}{PATH}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more and give the address back."""
        if self._thread.is_alive():
            self._http.shutdown()
        self._http.server_close()


def can_listen(listen: str) -> None:
    """Raise CannotListen when a server could not take the address now."""
    _bound(listen).server_close()


def serves_spillway(listen: str) -> bool:
    """Whether a stream's own `/metrics` is what answers there."""
    host, port = _parts(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    place = f"[{host}]" if ":" in host else host
    try:
        with urllib.request.urlopen(f"http://{place}:{port}{PATH}", timeout=PROBE_S) as answer:
            return b"\nspillway_up " in answer.read()
    except (OSError, ValueError):
        return False


def _bound(listen: str) -> _Server:
    host, port = _parts(listen)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_Listener", (_Server,), {"address_family": family})
        server: _Server = kind((host, port), _Handler)
    except OSError as error:
        raise _refusal(listen, port, error) from error
    return server


def _refusal(listen: str, port: int, error: OSError) -> CannotListen:
    what = f"/metrics cannot be served at {listen}"
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"{what}, the port is taken{listener_of(port)}",
            "end that program, or set metrics.listen to another port",
        )
    if error.errno == errno.EACCES:
        return CannotListen(
            f"{what}, this user may not listen there", "set metrics.listen to a port above 1023"
        )
    return CannotListen(
        f"{what} ({error.strerror})", "set metrics.listen to an address of this host"
    )


def _parts(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


_App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def _only_metrics(metrics: _App) -> _App:
    """prometheus_client's application gives figures at every path; here one path has them."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == PATH:
            return metrics(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"figures for Prometheus are at {PATH}\n".encode()]

    return app
