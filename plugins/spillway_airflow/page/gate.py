"""What stands before the app: nothing of a body is read before its sender and its size are known.

FastAPI parses a body before it runs a route's dependencies, the login among them: an anonymous
POST of 28 MiB once held Airflow's API server for eight seconds. So this comes first, in order:

    login (401) -> declared length (400, 413) and type (415) -> read up to a limit (413, 408)

A refused body is not waited for. Where it may be long the connection is closed: a server that threw
away what still comes would be busy with fifty strangers' 16 MiB for seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Response
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from spillway_airflow.page import door

MOST_BYTES = 16 << 10
"""Of a body. The longest that the page sends is a reason of 500 characters, 6 kB when escaped."""
MOST_DIGITS = 18
"""Of a length; Python refuses to read numbers of thousands."""
BODY_S = 20.0
"""How long a body may take to come."""


class Gate:
    """An ASGI app that lets requests through to another one."""

    def __init__(self, app: FastAPI) -> None:
        """`app`: gets requests of users, with bodies that are whole."""
        self.app = app
        self.login = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        """Answers whether somebody is logged in: with 204, or as Airflow refuses."""

        @self.login.get("/", dependencies=[Depends(door.user)])
        async def enter() -> Response:
            return Response(status_code=204)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let an HTTP request through, or answer it."""
        if scope["type"] == "websocket":
            # The page has none. Closed before it is open, it is answered with 403.
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        headers = Headers(scope=scope)
        refuse = send if _is_short(headers) else _hanging_up(send)
        refusal = await self._refusal(scope)
        if refusal:
            for message in refusal:
                await refuse(message)
            return
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(headers, receive)
        except TimeoutError:
            late = f"the body did not come within {BODY_S:g} s"
            await _answer(408, late, scope, receive, _hanging_up(send))
        except HTTPException as error:
            await _answer(error.status_code, error.detail, scope, receive, refuse)
        else:
            if body is not None:
                await self.app(scope, _again(body, receive), send)

    async def _refusal(self, scope: Any) -> list[Any]:
        """Airflow's answer to who is not logged in; empty for users.

        It is asked with the request's headers and without its body, by a route of its own, so that
        FastAPI finds what Airflow's function needs, whatever that is in this version.
        """
        asked = {**scope, "method": "GET", "path": "/", "raw_path": b"/", "root_path": ""}
        answer: list[Any] = []

        async def nothing() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Any) -> None:
            answer.append(message)

        await self.login(asked, nothing, keep)
        return [] if answer[0]["status"] == 204 else answer


def _is_short(headers: Headers) -> bool:
    """Whether a body is known to be within the limit before it comes."""
    if "transfer-encoding" in headers:
        return False
    lengths = headers.getlist("content-length") or ["0"]
    numbers = [int(each) for each in lengths if each.isdecimal() and len(each) <= MOST_DIGITS]
    return len(numbers) == len(lengths) and max(numbers) <= MOST_BYTES


def _hanging_up(send: Any) -> Any:
    """A `send` after whose answer the server closes the connection."""

    async def last(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return last


async def _body(headers: Headers, receive: Any) -> bytes | None:
    """A request's body; None when its client has gone. Raises `HTTPException`."""
    lengths = headers.getlist("content-length")
    if len(lengths) > 1 or not all(each.isascii() and each.isdigit() for each in lengths):
        raise HTTPException(400, "a length is one number")
    if any(len(each) > MOST_DIGITS or int(each) > MOST_BYTES for each in lengths):
        raise _too_long()
    comes = "transfer-encoding" in headers or any(int(each) for each in lengths)
    if comes:
        door.must_be_json(headers)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            raise _too_long()
        if body:  # which also comes undeclared, from HTTP/2
            door.must_be_json(headers)
        if not message.get("more_body", False):
            return bytes(body)


def _too_long() -> HTTPException:
    return HTTPException(413, f"a body may have {MOST_BYTES} bytes")


def _again(body: bytes, receive: Any) -> Any:
    """A `receive` that gives the body that was read, and then what comes after it."""
    whole = [{"type": "http.request", "body": body, "more_body": False}]

    async def from_the_start() -> Any:
        return whole.pop() if whole else await receive()

    return from_the_start


async def _answer(status: int, detail: str, scope: Any, receive: Any, send: Any) -> None:
    await JSONResponse({"detail": detail}, status)(scope, receive, send)
