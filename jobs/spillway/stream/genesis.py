"""The first entry of a warehouse's journal, and what must still be true on every later start."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from spillway import calendar
from spillway.clock import rfc3339
from spillway.decode import tree_spec
from spillway.engine.groups import GroupMap
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.kafka.client import KafkaCluster
from spillway.policy.distribution import Places, Tree, distribution, told_rows
from spillway.protocol.offsets import greater, padded, partitions
from spillway.protocol.queries import goes_on_by_another
from spillway.protocol.state import JournalState, carries, changed_topics
from spillway.tables import Warehouse
from spillway_schemas.exits import USAGE
from spillway_schemas.hash_space import ROOT, spaces
from spillway_schemas.journal import (
    Carried,
    EventTime,
    Genesis,
    Offsets,
    Prefix,
    QueryText,
    Topic,
)
from spillway_schemas.query import SINGLE, Query
from spillway_schemas.session_date import session_date
from spillway_schemas.settings import Settings

ONE = {SINGLE: ROOT}
"""The joins of a query of one join."""


class StartRefused(Exception):
    """`stream` cannot start as asked (exit code 2): the message says why and what to do."""

    exit_code = USAGE


def genesis_by(
    settings: Settings,
    query: Query,
    cluster: KafkaCluster,
    *,
    session: str | None,
    now_ms: int,
    slots: int | None = None,
) -> Genesis:
    """The genesis of a warehouse by a query. `slots`: so many, instead of the settings'.

    Raises as `first_entry` does, and `carrying`.
    """
    return first_entry(
        settings,
        query.fingerprint,
        query.topics,
        cluster,
        session=session,
        now_ms=now_ms,
        joins=query.tree.parents,
        streams=query.tree.own_leaves,
        event_time=query.event_time,
        carry=carrying(settings, query),
        outer=bool(query.optional),
        text=query.text,
        slots=slots,
    )


def first_entry(
    settings: Settings,
    fingerprint: str,
    topics: Sequence[str],
    cluster: KafkaCluster,
    *,
    session: str | None,
    now_ms: int,
    joins: Mapping[str, int] = ONE,
    streams: Sequence[int] = (1,),
    event_time: EventTime | None = None,
    carry: bool = False,
    outer: bool = False,
    text: QueryText | None = None,
    slots: int | None = None,
) -> Genesis:
    """The genesis of a new warehouse, by `stream.start` and the calendar or `session`.

    `joins`: the query's, children first, each with the number of the one that reads it. `streams`:
    how many streams each of them reads itself. `event_time`: of a query with windows. `carry`: see
    `carrying`. `outer`: results may lack rows of some input. `text`: the query's. `slots`: so many,
    instead of the settings'.

    Raises `SessionDateError` for a session that is not written `YYYY-MM-DD`, `StartRefused` for
    one that would never end.
    """
    name = settings.session.days
    date = session_date(session) if session else calendar.open_or_next(name, now_ms)
    if settings.session.boundary == "calendar" and not calendar.is_trading_day(name, date):
        raise StartRefused(
            f"{date} is not a trading day of {name}, and session.boundary = 'calendar' ends "
            f"trading days only. Begin with --session {calendar.session_after(name, date)}, the "
            "next one, or set session.boundary to 'command'"
        )
    start, rule = _start(settings, sorted(set(topics)), cluster, date, now_ms)
    return Genesis(
        warehouse_id=uuid.uuid4().hex[:12],
        cluster_id=cluster.cluster_id(),
        topics=cluster.topics(sorted(set(topics))),
        query=fingerprint,
        text=text,
        session=date,
        start=start,
        start_rule=rule,
        inputs=len(topics),
        groups=_groups(settings, joins, streams, slots or settings.state.slots),
        parents=list(joins.values()),
        joins=list(joins),
        event_time=event_time,
        carry=carry,
        outer=outer,
        written_at=rfc3339(now_ms),
    )


def carrying(settings: Settings, query: Query) -> bool:
    """Whether sessions carry rows over (`session.carry`).

    Raises `StartRefused` where rows of some join may never expire.
    """
    if settings.session.carry and None in query.spans:
        joins = [
            join.name
            for join, span in zip(query.tree.joins, query.spans, strict=True)
            if span is None
        ]
        which = f"{', '.join(joins)} {'has' if len(joins) == 1 else 'have'} none"
        raise StartRefused(
            "session.carry = true needs a window on every join, and "
            f"{'the query has none' if len(query.spans) == 1 else which}: rows that never expire "
            "would all be carried into the next session. Give it a `window` or `within` in the "
            "query file, or set session.carry to false"
        )
    times = query.event_time
    if settings.session.carry and (times is None or times.idle_after_ms is None):
        raise StartRefused(
            "session.carry = true needs `idle_after` in the query: without it one silent partition "
            "holds the watermark, nothing expires, and each session would carry all of the ones "
            "before. Say in the query file after how long a partition is not waited for, or set "
            "session.carry to false"
        )
    return settings.session.carry


def check_carry(settings: Settings, state: JournalState) -> None:
    """Raise `StartRefused` where the warehouse began with another `session.carry`."""
    if carries(state) == settings.session.carry:
        return
    begun, now = (str(each).lower() for each in (carries(state), settings.session.carry))
    raise StartRefused(
        f"this warehouse's sessions began with session.carry = {begun}, and it is {now} now. "
        f"Which results belong to a session would change: set it to {begun}, or name a new "
        "warehouse.root"
    )


def _groups(
    settings: Settings, joins: Mapping[str, int], streams: Sequence[int], slots: int
) -> list[tuple[Prefix, int]]:
    """The first assignment: `state.groups` groups of each join, shared out over its slots."""
    shares, plan = settings.state.shares, settings.plan
    groups = settings.state.groups
    weights = () if shares == "even" else tuple(map(float, shares.split(",")))
    try:
        each = GroupMap.initial(groups, slots, weights)
    except ValueError as error:
        raise StartRefused(f"state.shares = {shares!r}: {error}") from None
    told = told_rows(plan.rows)
    if unknown := [name for name in told if name not in joins]:
        raise StartRefused(
            f"plan.rows: the query has no join {unknown[0]!r}; it has {', '.join(joins)}"
        )
    if plan.distribution == "all":
        return shared_out(each, len(joins))
    numbers = {name: number for number, name in enumerate(joins)}
    tree = Tree(
        tuple(joins.values()),
        tuple(streams),
        {numbers[name]: rows for name, rows in told.items()},
    )
    places = distribution(plan.distribution, tree, slots, plan.seed, plan.most_load)
    return placed_out(groups, places, weights)


def shared_out(each: GroupMap, joins: int) -> list[tuple[Prefix, int]]:
    """The same groups, with the same slots, in the space of every join."""
    return [
        (space.part(group), slot) for space in spaces(joins) for group, slot in each.assignment()
    ]


def placed_out(
    groups: int, places: Places, weights: Sequence[float] = ()
) -> list[tuple[Prefix, int]]:
    """So many groups of every join, shared out over its slots: evenly, or by the weights of all
    slots. A join has no more slots than groups."""
    return [
        (space.part(group), mine[at])
        for space, mine in zip(spaces(len(places)), places, strict=True)
        for group, at in GroupMap.initial(
            groups, len(mine), [weights[slot] for slot in mine] if weights else ()
        ).assignment()
    ]


def _start(
    settings: Settings, topics: list[str], cluster: KafkaCluster, date: str, now_ms: int
) -> tuple[Offsets, str]:
    rule = settings.stream.start
    if rule == "earliest":
        return cluster.beginning_offsets(topics), rule
    if rule == "latest":
        return cluster.end_offsets(topics), rule
    if rule == "previous-close":
        # The day before ends at its close plus grace; so this one begins there.
        at_ms = calendar.previous_close_ms(settings.session.days, date)
        at_ms += int(settings.session.grace_s * 1000)
        if at_ms > now_ms:
            return cluster.beginning_offsets(topics), f"earliest ({rfc3339(at_ms)} is to come)"
    else:
        at_ms = int(datetime.fromisoformat(rule).timestamp() * 1000)
    return cluster.offsets_for_time(topics, at_ms), f"{rule} {rfc3339(at_ms)}"


def state_of_query(warehouse: Warehouse, query: Query) -> JournalState | None:
    """What a stream would find; None for an empty journal. Makes nothing.

    Raises `QueryChanged` when the warehouse is another query's, or its open session has begun by
    another one, and `WrongTable` when the tables do not fit.
    """
    state = warehouse.journal.state()
    spec = tree_spec(query)
    warehouse.compare_columns(
        result_schema(spec),
        spill_schema(spec),
        changes=state is not None and (goes_on_by_another(state, query) or bool(state.before)),
    )
    return state


def check_same(
    state: JournalState,
    query: Query,
    cluster: KafkaCluster,
    topics: Sequence[str],
    lost_to: Offsets | None = None,
) -> list[Topic]:
    """The topics as they are now. `lost_to`: what is accepted as lost, by commands that wait, too.

    Raises `QueryChanged`, and `StartRefused` when the journal is of another cluster or topics.
    """
    changes = goes_on_by_another(state, query)
    genesis = state.genesis
    found = cluster.cluster_id()
    if found != genesis.cluster_id:
        raise StartRefused(
            f"Kafka cluster {found} is not the one that the journal's offsets belong to "
            f"({genesis.cluster_id}). Check kafka.bootstrap_servers, or name a new warehouse.root."
        )
    known = [topic for topic in state.topics if not changes or topic.name in topics]
    now = cluster.topics(sorted(set(topics)))
    if problem := changed_topics(known, now):
        raise StartRefused(
            f"The topics no longer match the journal: {problem}. Its offsets mean other rows "
            "now. Nothing was written. Name a new warehouse.root to begin again."
        )
    beginning = cluster.beginning_offsets(sorted(set(topics)))
    lost_to = state.lost_to if lost_to is None else lost_to
    ends = padded(greater(state.end, lost_to), beginning)
    for name, partition, first in partitions(beginning):
        if changes and name not in state.end:
            continue  # it begins where the changed query says
        end = ends[name][partition]
        if first > end:
            raise StartRefused(
                f"Kafka no longer holds {name}/{partition} from offset {end}, where the "
                f"journal ends: the first offset is {first}. {first - end} offsets are gone "
                "(retention too short, or the stream was down too long). Rows that were "
                f"never read cannot be joined. {ACCEPT.format(state.session.date)}"
            )
    if not changes and state.session.carried is not None and state.session.waits_for_rows:
        _check_carried(state, state.session.carried, beginning, lost_to)
    return now


ACCEPT = (
    "Raise the topic's retention. Where nobody has these rows any more, go on without them: "
    "`spillway accept-loss --session {} --reason ...`, and start again"
)


def _check_carried(
    state: JournalState, carried: Carried, beginning: Offsets, lost_to: Offsets
) -> None:
    """Raise `StartRefused` where Kafka has lost rows that the next epoch is to carry over."""
    since = padded(state.marks[carried.since].end, state.session.start)
    since = padded(greater(since, lost_to), state.session.start)
    for name, partition, begins in partitions(since):
        first = beginning[name][partition]
        if begins < min(first, state.session.start[name][partition]):
            raise StartRefused(
                f"Kafka no longer holds {name}/{partition} from offset {begins}: the first offset "
                f"is {first}. Rows from there on had not expired when {state.session.date} began, "
                "and are to be carried into it (session.carry). Keep input for a window longer "
                f"than a session (retention.ms). {ACCEPT.format(state.session.date)}"
            )
