"""Azure's blobs on loopback, by Microsoft's emulator: `with azure_server() as azure`. Its faults:
`tests.store_server`.

Azurite is a program for Node.js. `azurite/package-lock.json` names it and all that it needs, with
digests; npm installs exactly that below the variable folder, once. What comes is handed on to it
by the server that has the faults. To lock another version: `npm install azurite@VERSION` in
`tests/azurite`.

Azurite does not know `startFrom`, by which Azure lists from a name on: here its answers are cut to
that.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spillway.places import var_folder
from tests.missing import without
from tests.store_server import BUCKET, UNCONDITIONAL, StoreServer, serve, started

ACCOUNT = "spillway"
KEY = base64.b64encode(b"spillway-Azur3-Pa55").decode()
PACKAGE = Path(__file__).with_name("azurite")
VERSION = str(json.loads((PACKAGE / "package.json").read_text())["dependencies"]["azurite"])
_PORT = re.compile(r"successfully listens on http://[^:]+:(\d+)")
_BLOB = re.compile(rb"<Blob><Name>([^<]*)</Name>.*?</Blob>", re.DOTALL)
_OF_ONE_CONNECTION = {"connection", "keep-alive", "transfer-encoding"}


class AzureServer(StoreServer):
    """The server as a test sees it."""

    scheme = "abfss"
    secret = KEY
    completes: Mapping[str, str] = {"method": "PUT", "query": "comp=blocklist"}

    @property
    def options(self) -> dict[str, str]:
        """`warehouse.options`."""
        return super().options | {
            "azure_endpoint": f"{self.endpoint}/{ACCOUNT}",
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
        }

    @property
    def bucket(self) -> str:
        """The container and its account."""
        return f"{BUCKET}@{ACCOUNT}.dfs.core.windows.net"


@contextmanager
def azure_server(host: str = "127.0.0.1") -> Iterator[AzureServer]:
    """A server that runs as long as the block, with an empty container, at an address of this host.

    Where there is no Node.js, the test is skipped.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            without(program, "Azurite runs on Node.js, 20 or newer")
    with started("tests.azure_server", host, str(installed())) as port:
        yield AzureServer(port, host)


def installed() -> Path:
    """The folder of the locked Azurite, installed unless it is there."""
    lock = PACKAGE / "package-lock.json"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    place = var_folder() / "azurite"
    place.mkdir(parents=True, exist_ok=True)
    stamp = place / ".locked"
    with (place / ".lock").open("w") as other_workers:
        fcntl.flock(other_workers, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == digest):
            stamp.unlink(missing_ok=True)
            for file in ("package.json", "package-lock.json"):
                shutil.copy(PACKAGE / file, place)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            subprocess.run(command, cwd=place, check=True)
            stamp.write_text(digest)
    return place


@contextmanager
def _azurite(place: Path) -> Iterator[int]:
    """The port of a fresh Azurite that keeps everything in memory."""
    program = place / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"]
    # Clients speak newer versions of the protocol than it knows.
    options += ["--disableTelemetry", "--silent", "--skipApiVersionCheck"]
    with subprocess.Popen(
        ["node", str(program), *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
    ) as process:
        try:
            assert process.stdout is not None
            yield next(int(found[1]) for line in process.stdout if (found := _PORT.search(line)))
        finally:
            process.kill()  # it has nothing to keep


class _HandedOn:
    """An application that asks another server of this host."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        method, body = environ["REQUEST_METHOD"], environ["wsgi.input"].read()
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        }
        if environ.get(UNCONDITIONAL):
            # Conditions are signed, too, so they cannot be left out: let this one hold.
            headers["IF-NONE-MATCH"] = "*"
            with suppress(urllib.error.HTTPError):  # there is none
                _ask(self._port, "DELETE", urllib.parse.quote(environ["PATH_INFO"]))
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, environ["REQUEST_URI"], body, headers)
            answer = connection.getresponse()
            told = [h for h in answer.getheaders() if h[0].lower() not in _OF_ONE_CONNECTION]
            content = answer.read()
        finally:
            connection.close()
        asked = dict(urllib.parse.parse_qsl(environ["QUERY_STRING"]))
        if asked.get("comp") == "list" and (first := asked.get("startFrom")):
            content = _BLOB.sub(
                lambda found: found[0] if found[1].decode() >= first else b"", content
            )
            told = [(name, value) for name, value in told if name.lower() != "content-length"]
            told.append(("Content-Length", str(len(content))))
        start(f"{answer.status} {answer.reason}", told)
        return [content]


def _ask(port: int, method: str, path: str, **query: str) -> None:
    """A request of our own, with a token made of the account's key (a SAS)."""
    said = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": "2100-01-01", "spr": "https,http"}
    said["sv"] = "2019-12-12"
    order = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    signed = "\n".join([ACCOUNT, *(said.get(name, "") for name in order), ""])
    digest = hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")
    words = urllib.parse.urlencode({**query, **said, "sig": base64.b64encode(digest).decode()})
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}?{words}", b"", method=method)
    with urllib.request.urlopen(request):
        pass


def main(host: str, place: str) -> None:
    """Serve at an address of this host."""
    with _azurite(Path(place)) as port:
        _ask(port, "PUT", f"/{ACCOUNT}/{BUCKET}", restype="container")
        serve(_HandedOn(port), host, lambda _: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
