"""Who may see and who may act: asked of Airflow's auth manager, through its own dependencies.

Whoever may see the runs of the DAG `rebalance` may see the page; whoever may start a run of the DAG
that stands for an action may do that action. So roles, teams and other auth managers need no
setting of ours. Requests that change something must come from the page itself: with JSON, and from
the origin that they go to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request

from spillway_airflow.sections import SPILLWAY, dag_id

NAMED = ("market_open", "rebalance", "market_close")
"""DAGs that the page names."""

user = get_user
"""The one who is logged in, by cookie or token; 401 when nobody is."""
User = Annotated[Any, Depends(user)]


class Rights:
    """Who may do what with a section's warehouse: the rights to the runs of its DAGs."""

    def __init__(self, section: str = SPILLWAY) -> None:
        self.section = section
        self.dags = {name: dag_id(name, section) for name in NAMED}
        """Ids of the section's DAGs, for the page to name and start."""
        rebalance, close = self.dags["rebalance"], self.dags["market_close"]
        self.see = requires_access_dag("GET", DagAccessEntity.RUN, rebalance)
        self.rebalance = requires_access_dag("POST", DagAccessEntity.RUN, rebalance)
        self.close = requires_access_dag("POST", DagAccessEntity.RUN, close)

    def may_see(self, request: Request, someone: Any) -> bool:
        """Whether a user may see the section's page."""
        try:
            self.see(request, someone)
        except HTTPException:
            return False
        return True

    def allowed(self, request: Request, someone: Any) -> dict[str, bool]:
        """What a user may do, for the page to show; each action asks again."""
        found = {}
        for name, check in (("rebalance", self.rebalance), ("market_close", self.close)):
            try:
                check(request, someone)
            except HTTPException:
                found[name] = False
            else:
                found[name] = True
        return found


def must_be_json(headers: Mapping[str, str]) -> None:
    """Refuse a body of another type."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "send application/json")


def from_the_page(request: Request) -> None:
    """Refuse what another site, a form or a link may have sent in the user's name."""
    must_be_json(request.headers)
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HTTPException(403, "this request comes from another site")
    origin = urlsplit(request.headers.get("origin", ""))
    if origin.scheme not in ("http", "https") or origin.netloc.lower() not in _own(request):
        raise HTTPException(403, "this request does not say that it comes from this server's page")


def _own(request: Request) -> set[str]:
    """Names that this server goes by: as it was asked, and as it is configured (behind a proxy)."""
    configured = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    named = {request.headers.get("host", ""), configured}
    return {name.lower() for name in named if name}
