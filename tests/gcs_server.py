"""A server that speaks Google Cloud Storage's XML protocol: `with gcs_server() as gcs`.

It is the S3 server of the tests (`tests.s3_server`): the two protocols differ in names of headers,
and only these are translated here, as Google documents them; and what is not there cannot be
deleted. Emulators for Google's client libraries speak its JSON protocol, and lack what is written
through here: `fake-gcs-server` does not take an upload by XML, `gcp-storage-emulator` gives no
ETag.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.s3_server import Moto, make_bucket
from tests.store_server import StoreServer, serve, started

SECRET = "spillway-G00gle-Pa55"
_CREATE_ONLY = "HTTP_X_GOOG_IF_GENERATION_MATCH"
_SIGNED = (
    "AWS4-HMAC-SHA256 Credential=any/20260105/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0"
)
"""moto shows nobody's objects to who does not sign, and looks no closer."""
_META = {"google": "x-goog-meta-", "amazon": "x-amz-meta-"}


class GcsServer(StoreServer):
    """The server as a test sees it."""

    scheme = "gs"
    secret = SECRET

    @property
    def options(self) -> dict[str, str]:
        """`warehouse.options`: a service account that leads to this server."""
        account = {
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": SECRET,
            "private_key_id": "",
        }
        return super().options | {"google_service_account_key": json.dumps(account)}


@contextmanager
def gcs_server(host: str = "127.0.0.1") -> Iterator[GcsServer]:
    """A server that runs as long as the block, with an empty bucket, at an address of this host."""
    with started("tests.gcs_server", host) as port:
        yield GcsServer(port, host)


class _Translated:
    """An application that speaks S3, for who speaks Google's XML."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        asked = {_asked(name): value for name, value in environ.items()}
        if (generation := asked.pop(_CREATE_ONLY, None)) is not None:
            assert generation == "0", "no generation but 'none' is known here"
            asked["HTTP_IF_NONE_MATCH"] = "*"
        asked["HTTP_AUTHORIZATION"] = _SIGNED

        if asked["REQUEST_METHOD"] == "DELETE" and not asked["QUERY_STRING"] and self._lacks(asked):
            start("404 Not Found", [("Content-Type", "application/xml")])
            return [b"<Error><Code>NoSuchKey</Code></Error>"]  # S3 says that it is deleted

        def told(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [(_told(name), value) for name, value in headers], *rest)

        return self._application(asked, told)

    def _lacks(self, asked: dict[str, Any]) -> bool:
        told: list[str] = []
        head = {**asked, "REQUEST_METHOD": "HEAD", "wsgi.input": io.BytesIO()}
        list(self._application(head, lambda status, *_: told.append(status)))
        return told[0].startswith("404")


def _asked(name: str) -> str:
    ours, theirs = (f"HTTP_{_META[whose].upper().replace('-', '_')}" for whose in _META)
    return name.replace(ours, theirs) if name.startswith(ours) else name


def _told(name: str) -> str:
    return name.lower().replace(_META["amazon"], _META["google"])


def main(host: str) -> None:
    """Serve at an address of this host."""
    serve(_Translated(Moto()), host, lambda port: make_bucket(host, port))


if __name__ == "__main__":
    main(sys.argv[1])
