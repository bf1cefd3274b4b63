"""The page's routes. Every one depends on the user, the files of the page too."""

from __future__ import annotations

import json
import mimetypes
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from spillway_airflow.connections import environment
from spillway_airflow.page import actions, door
from spillway_airflow.page.gate import Gate
from spillway_airflow.sections import SPILLWAY, named_query, page_name, sections, setting

if TYPE_CHECKING:
    from spillway.live.watch import PageLook, Watch

STATIC = Path(__file__).with_name("static")
ETAG, LOOKED, NOW = "ETag", "Spillway-Looked-Ms", "Spillway-Now-Ms"
MOST_SEARCH = 100

NO_SPILLWAY = (
    "Spillway is not installed in the environment of Airflow's API server: install it there, "
    "so that the page can read its tables."
)


def build(watch: Watch | None = None, section: str = SPILLWAY) -> Gate:
    """The app behind its gate. `watch`: what is looked at, by default what `config` of the section
    names."""
    rights = door.Rights(section)
    app = FastAPI(
        title="spillway",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(door.user), Depends(rights.see)],
    )
    looking = _Looking(watch, section)
    _views(app, looking, rights)
    actions.add_to(app, rights, section)
    _files(app)
    app.exception_handler(RequestValidationError)(_wrong)
    return Gate(app)


async def _wrong(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001
    """Say what is wrong. FastAPI's own answer repeats what was sent, which need not be text."""
    detail = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


class _Looking:
    """The watch, made when somebody asks: deltalake and pyarrow are heavy."""

    def __init__(self, watch: Watch | None, section: str) -> None:
        self._watch = watch
        self._section = section

    def __call__(self) -> Watch:
        if self._watch is None:
            try:
                from spillway.live.watch import Watch
                from spillway_schemas.settings import load_settings
            except ImportError as error:
                raise HTTPException(503, NO_SPILLWAY) from error
            config = setting("config", self._section)
            path = Path(config) if config else None
            query = named_query(self._section)
            flags = {} if query is None else {"query": query.name}
            self._watch = Watch(lambda: load_settings(path, flags, environment(self._section))[0])
        return self._watch


def _views(app: FastAPI, watch: Callable[[], Watch], rights: door.Rights) -> None:
    @app.get("/data/me")
    def me(request: Request, someone: door.User) -> dict[str, Any]:
        """Who looks, what they may do, and what forms offer."""
        from spillway.policy.registry import POLICIES

        seen = watch().seen()
        return {
            "name": someone.get_name(),
            "may": rights.allowed(request, someone),
            "dags": rights.dags,
            "pages": [
                {"section": each, "name": page_name(each), "here": each == rights.section}
                for each in sections()
                if each == rights.section or door.Rights(each).may_see(request, someone)
            ],
            "calendar": seen.calendar,
            "zone": seen.zone,
            "policies": list(POLICIES),
            "policy": seen.policy,
        }

    @app.get("/data/overview")
    def overview(request: Request) -> Response:
        """Today."""
        from spillway.live import views

        def make(seen: PageLook) -> Any:
            assert seen.status is not None
            return views.overview(
                seen.status,
                seen.points,
                seen.at,
                trigger_s=seen.trigger_s,
                cleaning=seen.cleaning,
                closes_ms=seen.closes_ms,
            )

        return _answer(request, *watch().answer("overview", make))

    @app.get("/data/sessions")
    def sessions(request: Request, most: int = Query(60, ge=1, le=1000)) -> Response:
        """Every day, the newest first."""
        from spillway.live import views

        def make(seen: PageLook) -> Any:
            assert seen.status is not None
            return views.sessions(seen.status, most)

        return _answer(request, *watch().answer(f"sessions/{most}", make))

    @app.get("/data/sessions/{date}")
    def session(request: Request, date: str) -> Response:
        """One day with its history."""
        from spillway.live import views

        _known(watch(), date)

        def make(seen: PageLook) -> Any:
            assert seen.status is not None
            found = seen.status.session_of(date)
            if found is None:
                raise HTTPException(404, "the journal does not know this session")
            cleaned = seen.cleaning.get(date, ())
            return views.day(seen.status, found, seen.points.get(date, ()), cleaned, seen.closes_ms)

        return _answer(request, *watch().answer(f"session/{date}", make))

    @app.get("/report/{date}")
    def report(date: str) -> Response:
        """One day's report, as `spillway status --report` writes it."""
        from spillway.tables import NothingYet, NoWarehouse
        from spillway_schemas.settings import SettingsError

        _known(watch(), date)
        try:
            return Response(watch().report(date), media_type="text/html")
        except (NoWarehouse, NothingYet, SettingsError) as error:
            raise HTTPException(503, str(error)) from error

    @app.get("/data/decisions")
    def decisions(request: Request, most: int = Query(100, ge=1, le=400)) -> Response:
        """What was asked for, what became of it, and what waits."""
        from spillway.live import views

        def make(seen: PageLook) -> Any:
            assert seen.status is not None
            return views.decisions(seen.status, most)

        return _answer(request, *watch().answer(f"decisions/{most}", make))

    @app.get("/data/groups")
    def groups(
        request: Request,
        order: str = "bytes",
        descending: bool = True,
        search: str = Query("", max_length=MOST_SEARCH),
        most: int = Query(50, ge=1, le=500),
        join: str = Query("", max_length=MOST_SEARCH),
    ) -> Response:
        """The map of all groups, or those of a join, and the first of them by an order."""
        from spillway.live.groups import ORDERS, groups_view
        from spillway_schemas.hash_space import UnknownJoin

        if order not in ORDERS:
            raise HTTPException(422, f"order by one of {', '.join(ORDERS)}")

        def make(seen: PageLook) -> Any:
            assert seen.groups is not None
            try:
                return groups_view(
                    seen.groups, order, descending=descending, search=search, most=most, join=join
                )
            except UnknownJoin as error:
                raise HTTPException(422, str(error)) from error

        name = f"groups/{order}/{descending}/{most}/{len(join)}/{join}/{search}"
        return _answer(request, *watch().answer(name, make, groups=True))


def _known(watch: Watch, date: str) -> None:
    """Refuse a session that the journal does not know, once that is known."""
    status = watch.seen().status
    if status is not None and status.session_of(date) is None:
        raise HTTPException(404, "the journal does not know this session")


def _answer(request: Request, seen: PageLook, made: tuple[bytes, str] | None) -> Response:
    """A view; nothing when the one who asks has it already; the problem when there is none."""
    headers = {LOOKED: str(seen.looked_ms), NOW: str(time.time_ns() // 1_000_000)}
    if seen.problem is not None:
        headers["Spillway-Problem"] = seen.problem.kind
    if made is None:
        kind, says = "looking", "The tables are being read."
        if seen.problem is not None:
            kind, says = seen.problem.kind, seen.problem.says
        return _json({"problem": kind, "says": says}, headers)
    text, tag = made
    headers[ETAG] = f'"{tag}"'
    if request.headers.get("if-none-match", "").removeprefix("W/") == headers[ETAG]:
        return Response(status_code=304, headers=headers)
    return Response(text, media_type="application/json", headers=headers)


def _json(value: dict[str, Any], headers: dict[str, str]) -> Response:
    from fastapi.responses import JSONResponse

    return JSONResponse(value, headers=headers)


def _files(app: FastAPI) -> None:
    """The page itself; a path of which there is nothing is refused like any other without login."""

    @app.get("/")
    def index(request: Request) -> Response:
        return _file(request, "index.html")

    @app.get("/static/{path:path}")
    def static(request: Request, path: str) -> Response:
        return _file(request, path)

    @app.api_route(
        "/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    )
    def nothing(path: str) -> Response:  # noqa: ARG001
        raise HTTPException(404, "there is nothing here")


NAMES = frozenset(str(f.relative_to(STATIC)) for f in STATIC.rglob("*") if f.is_file())
"""The files that there are: no other path is ever opened."""


@lru_cache(maxsize=64)
def _read(path: str, changed_ns: int) -> tuple[bytes, str, str]:  # noqa: ARG001
    """A file of the page: its bytes, type and tag; `changed_ns` makes a new version a new one."""
    found = (STATIC / path).read_bytes()
    kind = "text/javascript" if path.endswith(".js") else mimetypes.guess_type(path)[0]
    return found, kind or "text/plain", f'"{sha256(found).hexdigest()[:20]}"'


def _file(request: Request, path: str) -> Response:
    if path not in NAMES:
        raise HTTPException(404, "there is no such file")
    content, kind, tag = _read(path, (STATIC / path).stat().st_mtime_ns)
    # Asked for again each time (and answered with 304): also a script needs the login.
    headers = {ETAG: tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
