"""The start of a stream: its journal, its session, Spark, and what workers are told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spillway import calendar
from spillway.clock import Clock
from spillway.decode import compile_streams
from spillway.engine.join.tree import TreeSpec
from spillway.kafka.client import KafkaCluster, cluster
from spillway.policy.automatic import fraction_for, reactivation_for, victims_for
from spillway.protocol.losses import obey_losses
from spillway.protocol.queries import goes_on_by_another, told_changes
from spillway.protocol.state import JournalState, fold
from spillway.registry import with_schemas
from spillway.stream.genesis import check_carry, check_same, genesis_by
from spillway.stream.messages import MessageSource
from spillway.stream.run import SessionNotOpen, StreamFailed, Wanted
from spillway.stream.session import spark_session
from spillway.stream.tasks import JobSettings
from spillway.tables import JournalConflict, Warehouse
from spillway_schemas.journal import Genesis, Topic
from spillway_schemas.query import Query
from spillway_schemas.settings import Settings


def open_journal(
    warehouse: Warehouse,
    settings: Settings,
    query: Query,
    wanted: Wanted,
    clock: Clock,
) -> JournalState:
    """The journal's state, after its first entry when there is none.

    Raises `QueryChanged`, `StreamFailed`, and what `genesis_by` raises.
    """
    state = warehouse.journal.state()
    if state is None:
        session = wanted.session or wanted.until_sealed
        with cluster(settings.kafka.bootstrap_servers, settings.kafka.options) as view:
            genesis = genesis_by(settings, query, view, session=session, now_ms=clock())
        calendar.session_after(settings.session.days, genesis.session)
        try:
            warehouse.journal.append(genesis)
        except JournalConflict:
            warehouse.journal.refresh()  # another first start was faster
        state = warehouse.journal.state()
    if state is None:
        raise StreamFailed("the journal is empty after its first entry was written")
    if not goes_on_by_another(state, query):
        check_carry(settings, state)
        warehouse.table("results")  # made now that the journal is this query's
    return state


def topics_to_claim(
    warehouse: Warehouse, state: JournalState, query: Query, view: KafkaCluster
) -> list[Topic]:
    """The topics as they are now, where the journal's offsets still mean rows of theirs. What
    commands that wait accept as lost need not be there.

    Raises as `check_same` does.
    """
    lost_to = obey_losses(state, warehouse.commands.unseen(state)).lost_to
    return check_same(state, query, view, query.topics, lost_to)


def query_to_claim(
    settings: Settings,
    query: Query,
    state: JournalState,
    view: KafkaCluster,
    clock: Clock,
    tell: Callable[[str], None],
) -> Genesis | None:
    """What the claim has to say of the query: that it has changed, or its text, which the journal
    lacks; None: nothing. `tell` hears what has changed.

    Raises `QueryChanged`, and what `genesis_by` raises.
    """
    if goes_on_by_another(state, query):
        date, slots = state.session.date, len(state.slots)
        tell(f"{date} goes on by a changed query; the sessions before keep theirs")
        for each in told_changes(state.genesis, query):
            tell(each.text)
        return genesis_by(settings, query, view, session=date, now_ms=clock(), slots=slots)
    if state.genesis.text is None:
        return state.genesis.model_copy(update={"text": query.text})
    return None


def refreshed(warehouse: Warehouse, state: JournalState) -> JournalState:
    """The journal's state now: whoever is to be relieved goes on, and may seal a session."""
    warehouse.journal.refresh()
    for entry in warehouse.journal.read(state.n + 1):
        state = fold(state, entry)
    return state


def check_session(wanted: Wanted, state: JournalState) -> None:
    """Raise `SessionNotOpen` when a date that was asked for is not that of the open session."""
    for date in (wanted.session, wanted.until_sealed):
        if date is not None and date != state.session.date and date not in state.sealed:
            raise SessionNotOpen(
                f"{date} is not the open session: that is {state.session.date}. "
                f"Start with --session {state.session.date}, or without it."
            )
    if wanted.session in state.sealed:
        raise SessionNotOpen(
            f"{wanted.session} is sealed; the open session is {state.session.date}. "
            f"Start with --session {state.session.date}, or without it."
        )


def start_spark(settings: Settings) -> Any:
    """A session for streaming. Not on the main thread: there pyspark would replace our handler of
    Ctrl-C."""
    with ThreadPoolExecutor(1, "start") as pool:
        return pool.submit(
            spark_session,
            settings.spark.master,
            "spillway stream",
            streaming=True,
            options=_page(settings.spark.ui_port),
        ).result()


def job_settings(
    settings: Settings,
    query: Query,
    spec: TreeSpec,
    warehouse: Warehouse,
    state: JournalState,
) -> JobSettings:
    """What is the same for all epochs of this driver."""
    victims = victims_for(settings.spill.victims, len(spec.joins))
    reactivation = reactivation_for(settings.spill.reactivation, victims)
    return JobSettings(
        spec=spec,
        streams=with_schemas(compile_streams(query), settings.registry, warehouse.place),
        warehouse_id=state.genesis.warehouse_id,
        warehouse_root=settings.warehouse.root,
        state_root=settings.state.root,
        state_key=warehouse.state_key(),
        executor_may_override_state_root=not settings.spark.master.startswith("local"),
        budget_bytes=int(settings.state.budget_bytes),
        threshold=settings.spill.threshold,
        fraction=fraction_for(settings.spill.fraction, reactivation),
        inactive_ms=int(settings.spill.inactive_s * 1000),
        victims=victims,
        reactivation=reactivation,
        days=settings.session.days,
        grace_s=settings.session.grace_s,
        calendar=settings.session.days if settings.session.boundary == "calendar" else "",
        kafka=MessageSource(settings.kafka.bootstrap_servers, settings.kafka.options),
        warehouse_options=settings.warehouse.options,
        traced_rows=settings.spill.traced_rows,
    )


def _page(port: int) -> dict[str, str]:
    """Options that switch Spark's own page on; none for port 0."""
    return {"spark.ui.enabled": "true", "spark.ui.port": str(port)} if port else {}
