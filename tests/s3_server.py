"""An S3 server on loopback, of moto's, with faults that a test asks for: `with s3_server() as s3`.

It runs in a process of its own, since some calls of delta-rs hold Python's lock while they wait for
an answer. moto keeps to `If-None-Match: *`; it looks and then writes, so that puts are let in one
at a time.

A fault is a table: `kind`, and optionally `method`, `path` (a regular expression that is searched
for in the path), `skip` (requests that pass before) and `times` (how many it hits; 1). Kinds:

| kind | what happens |
|---|---|
| `error` | the answer is the `status` (500) with the code `code`; the request is not done |
| `failed` | the request is done, and then answered with a status of 500 |
| `reset` | the connection is reset before the request is done |
| `lost` | the request is done, and then the connection is reset |
| `late` | the connection is reset, and the request is done `seconds` later |
| `stuck` | the request is not done, and no answer comes for `seconds`; then `error` |
| `tardy` | `seconds` pass before the request is done and answered |
| `slow` | the request is done, and its answer comes `seconds` later |
| `unconditional` | `If-None-Match` is passed over, as some stores do |
"""

from __future__ import annotations

import io
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spillway.storage import folder

KEY, SECRET = "spillway-key", "spillway-S3cret-Pa55"
BUCKET = "lake"
_CONTROL = "/_control/"


class S3Server:
    """The server as a test sees it."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.endpoint = f"http://{host}:{port}"

    @property
    def options(self) -> dict[str, str]:
        """`warehouse.options`: short times, so that a fault does not hold a test up."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "allow_http": "true",
            "timeout": "2s",
            "retry_timeout": "5s",
        }

    def root(self, name: str) -> str:
        """A place of its own in the bucket."""
        return f"s3://{BUCKET}/{name}"

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
def s3_server(host: str = "127.0.0.1") -> Iterator[S3Server]:
    """A server that runs as long as the block, with an empty bucket, at an address of this host."""
    command = [sys.executable, "-m", "tests.s3_server", host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield S3Server(int(process.stdout.readline()), host)
        finally:
            process.terminate()


class _Faulty:
    """The application around moto's."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._faults: list[dict[str, Any]] = []
        self._hits = 0
        self._requests: list[str] = []
        self._lock = threading.Lock()
        self._puts = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if path.startswith(_CONTROL):
            start("200 OK", [])
            return [self._controlled(path.removeprefix(_CONTROL), body)]
        with self._lock:
            self._requests.append(f"{method} {path}?{environ['QUERY_STRING']}")
            fault = self._next(method, path)
        return self._answered(fault, environ, start)

    def _controlled(self, what: str, body: bytes) -> bytes:
        with self._lock:
            if what == "faults":
                self._faults, self._hits = [dict(each) for each in json.loads(body)], 0
                return b""
            if what == "hits":
                return str(self._hits).encode()
            found, self._requests = self._requests, []
            return json.dumps(found).encode()

    def _next(self, method: str, path: str) -> dict[str, Any]:
        for fault in self._faults:
            if method != fault.get("method", method) or not re.search(fault.get("path", ""), path):
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
            case "unconditional":
                environ.pop("HTTP_IF_NONE_MATCH", None)
        status, headers, answer = self._done(environ)
        if fault["kind"] == "slow":
            time.sleep(fault["seconds"])
        start(status, headers)
        return [answer]

    def _done(self, environ: dict[str, Any]) -> tuple[str, list[Any], bytes]:
        told: list[Any] = []
        lock = self._puts if environ["REQUEST_METHOD"] == "PUT" else threading.Lock()
        with lock:
            parts = self._application(environ, lambda *given: told.extend(given[:2]))
            answer = b"".join(parts)
        return told[0], told[1], answer


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


def _serve(host: str) -> None:
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").disabled = True
    sys.stderr = io.StringIO()  # tracebacks of connections that were reset
    application = _Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server(host, 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    bucket = f"http://{host}:{server.server_port}/{BUCKET}"
    with urllib.request.urlopen(urllib.request.Request(bucket, method="PUT")):
        print(server.server_port, flush=True)
    sys.stdin.read()  # until the test's process has gone


if __name__ == "__main__":
    _serve(sys.argv[1])
