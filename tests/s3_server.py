"""An S3 server on loopback, of moto's: `with s3_server() as s3`. Faults: `tests.store_server`."""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.store_server import BUCKET, StoreServer, serve, started

KEY, SECRET = "spillway-key", "spillway-S3cret-Pa55"


class S3Server(StoreServer):
    """The server as a test sees it."""

    scheme = "s3"
    secret = SECRET

    @property
    def options(self) -> dict[str, str]:
        """`warehouse.options`."""
        return super().options | {
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
        }


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[S3Server]:
    """A server that runs as long as the block, with an empty bucket, at an address of this host."""
    with started("tests.s3_server", host) as port:
        yield S3Server(port, host)


class Moto:
    """moto's application. It keeps to `If-None-Match: *`; it looks and then writes, so that puts
    are let in one at a time."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self._puts = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        lock = self._puts if environ["REQUEST_METHOD"] == "PUT" else threading.Lock()
        with lock:
            return [b"".join(self._application(environ, start))]


def make_bucket(host: str, port: int) -> None:
    """Make the bucket of a server that speaks S3."""
    bucket = urllib.request.Request(f"http://{host}:{port}/{BUCKET}", method="PUT")
    with urllib.request.urlopen(bucket):
        pass


def main(host: str) -> None:
    """Serve at an address of this host."""
    serve(Moto(), host, lambda port: make_bucket(host, port))


if __name__ == "__main__":
    main(sys.argv[1])
