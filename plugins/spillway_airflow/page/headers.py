"""What every response of the page carries, also the refusals."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "frame-ancestors 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""No inline script, no inline style, nothing of another host, framed by Airflow alone."""

REPORT, REPORT_POLICY = "/report/", "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""A day's report has its styles inside, and no script: none would run."""

HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


def guarded(app: Any) -> Any:
    """The same ASGI app with `HEADERS`; nothing of it is stored where another user might get it."""

    async def with_headers(scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        carried = dict(HEADERS)
        if path.startswith(REPORT):
            carried[b"content-security-policy"] = REPORT_POLICY.encode()

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(n, v) for n, v in message.get("headers", ()) if n.lower() not in HEADERS]
                if not any(n.lower() == b"cache-control" for n, _ in kept):
                    kept.append((b"cache-control", b"no-store"))
                message["headers"] = [*kept, *carried.items()]
            await send(message)

        await app(scope, receive, sending)

    return with_headers
