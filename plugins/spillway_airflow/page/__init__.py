"""The page in Airflow's navigation: an ASGI app that Airflow's API server mounts at `/<section>`.

It is built on the first request, so the plugin stays light in the scheduler and in workers. It is
closed by construction: who may see it is asked of Airflow's own functions, and when those cannot be
imported (another Airflow has moved them) there is no page, and every request is answered with 503.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from spillway_airflow.page.headers import guarded
from spillway_airflow.sections import SPILLWAY

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Send], Awaitable[None]]

CLOSED = b'{"detail": "Spillway\'s page cannot be opened: see the log of the API server."}'


def _build(section: str) -> App:
    from spillway_airflow.page.app import build

    return build(section=section)


class Page:
    """The app, or a closed door."""

    def __init__(self, section: str = SPILLWAY, build: Callable[[str], App] = _build) -> None:
        """`section`: whose warehouse it shows.

        `build`: makes the app of a section; whatever it raises closes the page until it no longer
        does.
        """
        self._section = section
        self._build = build
        self._app: App | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Answer a request; refuse everything else."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return
        if self._app is None:
            try:
                self._app = guarded(self._build(self._section))
            except Exception:  # whatever it is, nothing may be served
                log.exception("spillway's page is closed")
                await guarded(_closed)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _closed(scope: Scope, receive: Any, send: Send) -> None:  # noqa: ARG001
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": CLOSED})
