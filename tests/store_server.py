"""Object stores on loopback, with faults that a test asks for: what is common to all of them.

A store runs in a process of its own, since some calls of delta-rs hold Python's lock while they
wait for an answer. `serve` puts the faults in front of any WSGI application.

A fault is a table: `kind`, and optionally `method`, `path` and `query` (regular expressions that
are searched for in those), `skip` (requests that pass before) and `times` (how many it hits; 1).
Kinds:

| kind | what happens |
|---|---|
| `error` | the answer is the `status` (500) with the code `code`; the request is not done |
| `failed` | the request is done, and then answered with a status of 500 |
| `reset` | the connection is reset before the request is done |
| `lost` | the request is done, and then the connection is reset |
| `late` | the connection is reset, and the request is done `seconds` later |
| `held` | the connection is reset, and the request is done when `arrive` is called |
| `stuck` | the request is not done, and no answer comes for `seconds`; then `error` |
| `tardy` | `seconds` pass before the request is done and answered |
| `slow` | the request is done, and its answer comes `seconds` later |
| `listing` | a listing begins at the name `start`, whichever was asked for |
| `unconditional` | "only if there is none" is passed over, as some stores do |
"""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spillway.storage import folder

BUCKET = "lake"
_CONTROL = "/_control/"
UNCONDITIONAL = "spillway.unconditional"
"""In the surroundings of a request: it had such a header, and is to be done without it."""
_START = re.compile(r"\b(start-after|startFrom)=[^&]*")
"""How a listing from a name on is asked for."""
_CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_X_GOOG_IF_GENERATION_MATCH")
"""Headers by which a put says "only if there is none"."""


class StoreServer:
    """A store as a test sees it."""

    scheme = ""
    secret: str
    """Of its options, what no text may show."""
    completes: Mapping[str, str] = {"method": "POST", "query": "uploadId"}
    """How a fault names the last request of an upload in parts."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.endpoint = f"http://{host}:{port}"

    @property
    def options(self) -> dict[str, str]:
        """`warehouse.options`: short times, so that a fault does not hold a test up."""
        return {"allow_http": "true", "timeout": "2s", "retry_timeout": "5s"}

    @property
    def bucket(self) -> str:
        """What stands in a URI for the bucket."""
        return BUCKET

    def root(self, name: str) -> str:
        """A place of its own in the bucket."""
        return f"{self.scheme}://{self.bucket}/{name}"

    def copied(self, name: str, here: Path) -> None:
        """Make a local folder the same as a place in the bucket."""
        place = folder(self.root(name), self.options)
        there = {info.name for info in place.list()}
        for path in [each for each in here.rglob("*") if each.is_file()]:
            if str(path.relative_to(here)) not in there or path.name == "_last_checkpoint":
                path.unlink()
        for each in there:
            if not (path := here / each).exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(place.read(each))

    def keep(self, here: Path, name: str) -> None:
        """Copy a local folder to a place in the bucket."""
        place = folder(self.root(name), self.options)
        for path in [each for each in here.rglob("*") if each.is_file()]:
            place.write_new(str(path.relative_to(here)), path.read_bytes())

    def fail(self, *faults: Mapping[str, Any]) -> None:
        """Let these faults happen from now on, and no others."""
        self._call("faults", json.dumps(faults).encode())

    def arrive(self) -> None:
        """Do the requests that are `held`."""
        self._call("arrive")

    def hits(self) -> int:
        """How often a fault has happened since `fail`."""
        return int(self._call("hits"))

    def requests(self) -> list[str]:
        """`METHOD path?query` of what came since this was last asked."""
        return list(json.loads(self._call("requests")))

    def _call(self, what: str, data: bytes = b"") -> bytes:
        request = urllib.request.Request(self.endpoint + _CONTROL + what, data, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())


@contextmanager
def started(module: str, *words: str) -> Iterator[int]:
    """The port of a server that a module's program starts; it runs as long as the block."""
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends by itself then


def serve(application: Any, host: str, make_bucket: Callable[[int], None]) -> None:
    """Serve until the test's process has gone. `make_bucket`: called with the port."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").disabled = True
    sys.stderr = io.StringIO()  # tracebacks of connections that were reset
    server = make_server(host, 0, _Faulty(application), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    make_bucket(server.server_port)
    print(server.server_port, flush=True)
    sys.stdin.read()


class _Faulty:
    """An application with faults in front of it."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._faults: list[dict[str, Any]] = []
        self._hits = 0
        self._requests: list[str] = []
        self._held: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if path.startswith(_CONTROL):
            start("200 OK", [])
            return [self._controlled(path.removeprefix(_CONTROL), body)]
        with self._lock:
            self._requests.append(f"{method} {path}?{environ['QUERY_STRING']}")
            fault = self._next(method, path, environ["QUERY_STRING"])
        return self._answered(fault, environ, start)

    def _controlled(self, what: str, body: bytes) -> bytes:
        with self._lock:
            if what == "faults":
                self._faults, self._hits = [dict(each) for each in json.loads(body)], 0
                return b""
            if what == "hits":
                return str(self._hits).encode()
            if what == "arrive":
                while self._held:
                    self._done(self._held.pop(0))
                return b""
            found, self._requests = self._requests, []
            return json.dumps(found).encode()

    def _next(self, method: str, path: str, query: str) -> dict[str, Any]:
        for fault in self._faults:
            if (
                method != fault.get("method", method)
                or not re.search(fault.get("path", ""), path)
                or not re.search(fault.get("query", ""), query)
            ):
                continue
            if fault.get("skip", 0):
                fault["skip"] -= 1
            elif fault.setdefault("times", 1):
                fault["times"] -= 1
                self._hits += 1
                return fault
        return {"kind": ""}

    def _answered(self, fault: Mapping[str, Any], environ: dict[str, Any], start: Any) -> Any:
        match fault["kind"]:
            case "stuck":
                time.sleep(fault["seconds"])
                return _refused(fault, start)
            case "tardy":
                time.sleep(fault["seconds"])
            case "error":
                return _refused(fault, start)
            case "failed":
                self._done(environ)
                return _refused(fault, start)
            case "reset":
                return _reset(environ)
            case "lost":
                self._done(environ)
                return _reset(environ)
            case "late":
                threading.Timer(fault["seconds"], self._done, [dict(environ)]).start()
                return _reset(environ)
            case "held":
                with self._lock:
                    self._held.append(dict(environ))
                return _reset(environ)
            case "listing":
                begin = f"\\1={urllib.parse.quote(fault['start'], safe='')}"
                environ["QUERY_STRING"] = _START.sub(begin, environ["QUERY_STRING"])
            case "unconditional":
                had = [environ.pop(condition, None) for condition in _CONDITIONS]
                environ[UNCONDITIONAL] = any(had)
        status, headers, answer = self._done(environ)
        if fault["kind"] == "slow":
            time.sleep(fault["seconds"])
        start(status, headers)
        return [answer]

    def _done(self, environ: dict[str, Any]) -> tuple[str, list[Any], bytes]:
        told: list[Any] = []
        parts = self._application(environ, lambda *given: told.extend(given[:2]))
        return told[0], told[1], b"".join(parts)


def _refused(fault: Mapping[str, Any], start: Any) -> list[bytes]:
    status, code = fault.get("status", 500), fault.get("code", "InternalError")
    start(f"{status} {code}", [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>asked for by a test</Message></Error>".encode()]


def _reset(environ: Mapping[str, Any]) -> list[bytes]:
    connection: socket.socket = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    raise ConnectionAbortedError("asked for by a test")
