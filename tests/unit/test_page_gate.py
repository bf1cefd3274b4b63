"""The page's gate: what is refused before anything of a body is read, and what gets through."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.core_api import security
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from spillway_airflow.page import door, gate
from spillway_airflow.page.gate import MOST_BYTES, Gate

JSON = (b"content-type", b"application/json")
CHUNKED = (b"transfer-encoding", b"chunked")
MIB = 1 << 20


def length(size: int | str) -> tuple[bytes, bytes]:
    return (b"content-length", str(size).encode())


class Asked(BaseModel):
    """A body that FastAPI parses before a route's own checks."""

    reason: str


class Client:
    """Speaks ASGI to the gate; knows what was read of a body, and what came of it."""

    def __init__(self, behind: Gate) -> None:
        self.behind = behind
        self.read = 0
        self.sent: list[Any] = []

    def ask(
        self, headers: Iterable[tuple[bytes, bytes]], body: Iterator[Any], method: str = "POST"
    ) -> int | None:
        """The status of the answer; None when there is none."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": "/spillway/act",
            "raw_path": b"/spillway/act",
            "root_path": "/spillway",
            "query_string": b"",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
            "state": {},
        }
        self.sent = []

        async def receive() -> Any:
            self.read += 1
            assert self.read < 10_000, "a body without an end is read without an end"
            message = next(body)
            if message is None:
                await asyncio.sleep(3600)
            return message

        async def send(message: Any) -> None:
            self.sent.append(message)

        asyncio.run(self.behind(scope, receive, send))
        return self.sent[0]["status"] if self.sent else None

    @property
    def hung_up(self) -> bool:
        """Whether the server was told to close the connection, and not to read on."""
        return (b"connection", b"close") in self.sent[0]["headers"]

    @property
    def says(self) -> Any:
        """The answer's JSON."""
        return json.loads(b"".join(m.get("body", b"") for m in self.sent[1:]))


@pytest.fixture
def taken() -> list[Any]:
    """Bodies that got through."""
    return []


@pytest.fixture
def stranger(taken: list[Any], monkeypatch: pytest.MonkeyPatch) -> Client:
    """Nobody is logged in: Airflow's own function says so."""
    manager = SimpleAuthManager()
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    app = FastAPI()

    @app.post("/act")
    def act(asked: Asked) -> Response:
        taken.append(asked.reason)
        return Response(status_code=200)

    @app.get("/act")
    async def look(request: Request) -> Response:
        taken.append(await request.body())
        return Response(status_code=200)

    return Client(Gate(app))


@pytest.fixture
def user(stranger: Client) -> Client:
    """Somebody is logged in."""
    stranger.behind.login.dependency_overrides[door.user] = lambda: "alice"
    return stranger


def parts(*chunks: bytes) -> Iterator[Any]:
    """A body in parts, and the end of the connection."""
    for at, chunk in enumerate(chunks, 1):
        yield {"type": "http.request", "body": chunk, "more_body": at < len(chunks)}
    while True:
        yield {"type": "http.disconnect"}


def untouched() -> Iterator[Any]:
    """A body of which nothing may be read."""
    yield from ()


def endless(chunk: bytes) -> Iterator[Any]:
    while True:
        yield {"type": "http.request", "body": chunk, "more_body": True}


SHAPES = {
    "no body": [],
    "small": [JSON, length(30)],
    "huge": [JSON, length(16 * MIB)],
    "beyond any number": [JSON, length("9" * 5000)],
    "chunked": [JSON, CHUNKED],
    "both": [JSON, CHUNKED, length(5)],
    "no length": [JSON],
    "text": [(b"content-type", b"text/plain"), length(30)],
    "no type": [length(30)],
    "form": [(b"content-type", b"multipart/form-data; boundary=x"), length(16 * MIB)],
    "bytes for a type": [(b"content-type", b"\xff\xfe"), length(30)],
    "no number": [JSON, length("ten")],
    "negative": [JSON, length(-1)],
    "two lengths": [JSON, length(5), length(6)],
    "a cookie of another": [JSON, length(30), (b"cookie", b"_token=")],
    "another scheme": [JSON, length(30), (b"authorization", b"Basic YTpi")],
}


LONG = ("huge", "beyond any number", "chunked", "both", "form", "no number", "negative")
SHORT = [headers for name, headers in SHAPES.items() if name not in LONG]


@pytest.mark.parametrize("headers", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "PROPFIND", ""])
def test_of_a_stranger_s_request_nothing_is_read(
    stranger: Client, taken: list[Any], headers: list[tuple[bytes, bytes]], method: str
) -> None:
    assert stranger.ask(headers, untouched(), method) == 401
    assert stranger.says == {"detail": "Not authenticated"}
    assert stranger.hung_up == (headers not in SHORT)
    assert (stranger.read, taken) == (0, [])


@pytest.mark.parametrize(
    ("shape", "status"),
    [
        ("huge", 413),
        ("beyond any number", 413),
        ("no number", 400),
        ("negative", 400),
        ("two lengths", 400),
        ("text", 415),
        ("no type", 415),
        ("form", 413),
        ("bytes for a type", 415),
    ],
)
def test_a_user_s_body_is_refused_unread_by_what_it_declares(
    user: Client, taken: list[Any], shape: str, status: int
) -> None:
    assert user.ask(SHAPES[shape], untouched()) == status
    assert user.says["detail"]
    assert user.hung_up == (shape in LONG)
    assert (user.read, taken) == (0, [])


@pytest.mark.parametrize("headers", [[JSON, CHUNKED], [JSON], [JSON, length(5)]])
def test_a_body_that_does_not_end_is_read_up_to_the_limit(
    user: Client, taken: list[Any], headers: list[tuple[bytes, bytes]]
) -> None:
    assert user.ask(headers, endless(b"x" * 4096)) == 413
    assert user.says == {"detail": f"a body may have {MOST_BYTES} bytes"}
    assert user.read == MOST_BYTES // 4096 + 1
    assert taken == []


def test_a_body_of_no_declared_type_is_refused_when_it_comes(user: Client) -> None:
    """HTTP/2 has bodies without a length, and no chunks."""
    assert user.ask([], endless(b"x")) == 415
    assert user.read == 1
    assert user.ask([CHUNKED], untouched()) == 415


def test_a_body_gets_through_whole_in_however_many_parts(user: Client, taken: list[Any]) -> None:
    text = json.dumps({"reason": "why"}).encode()
    whole = text + b" " * (MOST_BYTES - len(text))
    for chunks in ([whole], [text, b"", whole[len(text) :]], [bytes([each]) for each in text]):
        size = sum(map(len, chunks))
        assert user.ask([JSON, length(size)], parts(*chunks)) == 200
        assert (
            user.ask(
                [(b"Content-Type".lower(), b"application/JSON; charset=utf-8"), CHUNKED],
                parts(*chunks),
            )
            == 200
        )
    assert taken == ["why"] * 6
    assert user.ask([JSON, length(MOST_BYTES + 1)], untouched()) == 413
    assert user.ask([], parts(b""), "GET") == 200
    assert taken[-1] == b""


def test_a_client_that_leaves_or_waits_holds_nothing(
    user: Client, taken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )
    assert user.ask([JSON, length(30)], gone) is None
    monkeypatch.setattr(gate, "BODY_S", 0.01)
    silent = iter([{"type": "http.request", "body": b"{", "more_body": True}, None])
    assert user.ask([JSON, length(30)], silent) == 408
    assert user.hung_up
    assert taken == []


def test_refusals_take_no_memory(stranger: Client) -> None:
    stranger.ask(SHAPES["huge"], untouched())
    tracemalloc.start()
    try:
        for _ in range(20):
            stranger.ask(SHAPES["huge"], untouched())
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_websocket_is_closed_whoever_asks(
    stranger: Client, user: Client, taken: list[Any]
) -> None:
    async def receive() -> Any:
        return {"type": "websocket.connect"}

    for client in (stranger, user):
        client.sent = []

        async def send(message: Any, client: Client = client) -> None:
            client.sent.append(message)

        scope = {"type": "websocket", "path": "/spillway/act", "root_path": "", "headers": []}
        asyncio.run(client.behind(scope, receive, send))
        assert [message["type"] for message in client.sent] == ["websocket.close"]
    assert taken == []


def test_a_body_that_does_not_come_is_waited_for_a_short_time(
    user: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def timeout(seconds: float) -> Any:
        waited.append(seconds)
        return asyncio.timeouts.timeout(0)

    monkeypatch.setattr(gate, "asyncio", SimpleNamespace(timeout=timeout))
    assert user.ask([JSON, CHUNKED], iter([None])) == 408
    assert waited == [20]
