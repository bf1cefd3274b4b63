"""Strangers who send large bodies to the page at once: `python -m tests.browser.strangers URL`.

A program of its own, so that whoever measures meanwhile does not share an interpreter with them. It
prints the status of each answer, as a JSON list.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import sys
import threading
from urllib.parse import urlsplit

STRANGERS, SENT_BYTES = 50, 16 << 20

BODY = b'{"session": [' + b"[0]," * ((SENT_BYTES - 16) // 4) + b"0]}"
LENGTH = str(len(BODY))
SHAPES = (
    {"Content-Type": "application/json", "Content-Length": LENGTH},
    {"Content-Type": "application/json", "Transfer-Encoding": "chunked"},
    {"Content-Type": "text/plain", "Content-Length": LENGTH},
    {"Content-Length": LENGTH},
    {"Content-Type": "multipart/form-data; boundary=x", "Transfer-Encoding": "chunked"},
)
PATHS = ("act/seal", "act/spill", "act/rebalance", "nothing")
AT_ONCE = threading.Barrier(STRANGERS)


def send(url: str, number: int) -> int:
    """One request of one stranger; the status of the answer."""
    headers = SHAPES[number % len(SHAPES)]
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    try:
        connection.connect()
        chunks = (BODY[at : at + (1 << 20)] for at in range(0, len(BODY), 1 << 20))
        AT_ONCE.wait(60)
        path = f"/spillway/{PATHS[number % len(PATHS)]}"
        chunked = "Transfer-Encoding" in headers
        # Who is refused is not listened to until the end.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, chunks, headers, encode_chunked=chunked)
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(STRANGERS) as pool:
        sent = [pool.submit(send, sys.argv[1], number) for number in range(STRANGERS)]
    print(json.dumps([each.result() for each in sent]))
