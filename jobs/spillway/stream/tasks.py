"""From the plan of an epoch to the tasks of its job: pure, so that tests and the protocol's model
run exactly what the job runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from pydantic import SecretBytes

from spillway.calendar import CalendarError, day_ms, open_ms
from spillway.decode import StreamPlan
from spillway.engine.groups import GroupMap, ranges_mask, relocations
from spillway.engine.join.tree import TreeSpec
from spillway.engine.replay import SessionReplay
from spillway.engine.task import StepTask
from spillway.policy.forecast import Profile
from spillway.policy.sampling import SlotFigures
from spillway.policy.victims import TRACING
from spillway.protocol.offsets import padded
from spillway.protocol.plan import Plan
from spillway.protocol.recovery import Restore
from spillway.readmodel.clocks import ahead_ms
from spillway.stream.boundary import left_ms
from spillway.stream.decoding import DecodeTask
from spillway.stream.messages import MessageSource
from spillway_schemas.journal import Offsets, Prefix, SlotReport, TracedGroup
from spillway_schemas.secret import Options


@dataclass(frozen=True)
class JobSettings:
    """What every epoch of a stream has in common."""

    spec: TreeSpec
    streams: tuple[StreamPlan, ...]
    warehouse_id: str
    warehouse_root: str
    state_root: str
    state_key: SecretBytes
    """For the digests of state files: see `spillway.tables.statekey`."""
    executor_may_override_state_root: bool
    budget_bytes: int
    """Of a slot for which no command has set another."""
    threshold: float
    fraction: float
    inactive_ms: int
    victims: str
    reactivation: str
    calendar: str
    """By which it is known how long a session goes on; empty: a command ends it, nobody knows
    when."""
    kafka: MessageSource
    warehouse_options: Options = field(default_factory=dict)
    """Of the object store where `warehouse_root` is, when it is in one."""
    days: str = ""
    """The calendar whose days rows' times are held against; empty: they are not."""
    grace_s: float = 0.0
    """How long after a close rows still belong to the session."""
    traced_rows: int = 0
    """Of a batch of results so many are traced, where the policy asks for it; 0: all."""


def partitions(slots: int) -> int:
    """Partitions of an epoch's job, at least 2: Spark does not align a union of single ones."""
    return max(slots, 2)


def decode_task(
    settings: JobSettings,
    plan: Plan,
    groups: GroupMap,
    salts: tuple[int, ...],
    restore: Restore | None = None,
    *,
    carries: bool = False,
) -> DecodeTask:
    """The decoders' task. `groups` are the plan's; `restore`: rows are read again, for lost slots
    or to be carried (`carries`)."""
    bound: Offsets | None = None
    next_session = ""
    if plan.seal is not None:
        bound, next_session = padded(plan.seal.end, plan.end), plan.seal.next_session
    return DecodeTask(
        spec=settings.spec,
        streams=settings.streams,
        groups=groups,
        salts=salts,
        session=plan.session,
        next_session=next_session,
        bound=bound,
        restore=restore,
        carries=carries,
        event_time=plan.event_time,
        watermarks=plan.watermarks,
        days_us=_days_us(settings, [plan.session, next_session]) if settings.days else {},
    )


def _days_us(settings: JobSettings, dates: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The days of those sessions that are trading days, us since 1970."""
    found = {}
    for date in filter(None, dates):
        with suppress(CalendarError):
            begin, end = day_ms(settings.days, date, settings.grace_s)
            found[date] = (begin * 1000, end * 1000)
    return found


def step_tasks(
    settings: JobSettings,
    plan: Plan,
    groups: GroupMap,
    *,
    now_ms: int,
    statistics: bool = False,
    recent: Sequence[SlotFigures] = (),
    traced: Mapping[str, Sequence[TracedGroup]] = MappingProxyType({}),
    before: Profile | None = None,
) -> dict[int, StepTask]:
    """Each slot's task, without its attempt. `groups` are the plan's.

    `traced`: what slots have counted in the epoch before for groups of others. `now_ms`: the
    stream's clock. `recent`: what each slot did since statistics were last written. `before`: how
    the rows of the session before came, by the plan's groups.
    """
    moves = relocations(GroupMap(plan.before), groups)
    forced = dict(plan.forced)
    dates = [plan.session] if plan.seal is None else [plan.session, plan.seal.next_session]
    left = left_ms(settings.calendar, dates, now_ms) if settings.calendar else {}
    forecasts = {}
    if before is not None and plan.session in left:
        since_ms = now_ms - open_ms(settings.calendar, plan.session)
        forecasts[plan.session] = before.at(since_ms, left[plan.session])
    return {
        slot: StepTask(
            slot=slot,
            epoch=plan.epoch,
            attempt="",
            warehouse_id=settings.warehouse_id,
            session=plan.session,
            manifest=manifest,
            groups=groups,
            key=settings.state_key,
            leaving=tuple(r for (a, _), ranges in moves.items() if a == slot for r in ranges),
            arriving=tuple(a for a, b in moves if b == slot),
            replays=_replays(plan.restore),
            forced_bytes=forced.get(slot, 0),
            flush={plan.session: plan.flush} if plan.sealing else {},
            expired_by=plan.expired_by,
            reach=plan.reach,
            budget_bytes=plan.budgets.get(slot, settings.budget_bytes),
            threshold=settings.threshold,
            fraction=settings.fraction,
            inactive_ms=settings.inactive_ms,
            victims=settings.victims,
            reactivation=settings.reactivation,
            may_return=plan.may_return,
            left_ms=left,
            forecasts=forecasts,
            now_ms=now_ms,
            statistics=statistics,
            recent=recent[slot] if recent else None,
            seed=plan.epoch,
            traces=len(settings.spec.joins) > 1 and settings.victims in TRACING,
            trace_most=settings.traced_rows,
            traced=traced,
        )
        for slot, manifest in plan.manifests
    }


def _replays(restore: Restore | None) -> dict[str, SessionReplay]:
    """What the probes make again, by session."""
    if restore is None:
        return {}
    return {
        each.session: SessionReplay(
            each.replay.joins,
            restore.slots,
            each.replay.cuts,
            len(each.replay.marks),
            each.expired_by_us,
        )
        for each in restore.sessions
        if each.replay is not None
    }


def all_traced(reports: Iterable[SlotReport]) -> dict[str, list[TracedGroup]]:
    """What all slots have counted for groups of others, by session.

    Not for what was spilled in the same epoch: a count of a generation that has left is none of the
    next one's.
    """
    found: dict[str, list[TracedGroup]] = {}
    gone: dict[str, list[Prefix]] = {}
    for report in reports:
        for session, counts in report.traced.items():
            found.setdefault(session, []).extend(counts)
        for cut in report.cuts:
            gone.setdefault(cut.session, []).append(cut.range)
    for session in found.keys() & gone.keys():
        starts = np.array([Prefix(g.depth, g.value).lo for g in found[session]], dtype=np.uint64)
        cut_too = ranges_mask(starts, gone[session])
        found[session] = [g for g, cut in zip(found[session], cut_too, strict=True) if not cut]
    return found


def hosted(
    report: SlotReport, hosts: Mapping[int, str], began_ms: int, ended_ms: int
) -> SlotReport:
    """The report with the host that the slot was pinned to (a worker does not know its name), and
    with how far its clock is ahead.

    `began_ms`, `ended_ms`: of the job, by the driver's clock.
    """
    if report.totals is None:
        return report
    shown = report.clock_ms
    ahead = 0 if shown is None else ahead_ms(shown, began_ms, ended_ms)
    found = {"host": hosts[report.slot], "clock_ahead_ms": ahead}
    return report.model_copy(update={"totals": report.totals.model_copy(update=found)})
