"""From the reports of an epoch's steps to the journal entry that makes them count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spillway.protocol.plan import Plan
from spillway.protocol.recovery import check_installed, check_restored
from spillway.protocol.seal import seal_session
from spillway.protocol.state import JournalState, lost_of, with_deferred, with_times
from spillway_schemas.journal import Epoch, SlotReport, added


class ReportsWrong(Exception):
    """The reports are not one for each slot: the epoch's work cannot be trusted."""


HEARD_OF = "a join below the root did not find it"
"""What is told of a lost slot when nobody who looked for its state is left to say more."""


def missing_slots(plan: Plan, reports: Sequence[SlotReport]) -> dict[int, str]:
    """Slots whose named state was not found, each with the reason: what the slot itself says, or
    else the first report that gives one. Raises `ReportsWrong` unless one report a slot."""
    expected = [slot for slot, _ in plan.manifests]
    if sorted(r.slot for r in reports) != expected or any(r.epoch != plan.epoch for r in reports):
        got = sorted((r.slot, r.epoch) for r in reports)
        raise ReportsWrong(
            f"Epoch {plan.epoch} needs one report from each of the slots {expected}, got "
            f"(slot, epoch) {got}. Nothing was journaled."
        )
    lost: dict[int, str] = {}
    for r in reports:
        for slot, what in r.unfound.items():
            own = what if slot == r.slot else ""
            lost[slot] = own or lost.get(slot) or what
    return {slot: lost[slot] or HEARD_OF for slot in sorted(lost)}


def entry_of(
    state: JournalState,
    plan: Plan,
    reports: Sequence[SlotReport],
    *,
    started_at: str,
    written_at: str,
    seconds: dict[str, float],
    limit_rows: int = 0,
) -> Epoch:
    """The entry of an epoch whose steps are all done.

    Raises `ReportsWrong` when a report is missing, doubled or not done, `InputChanged` when
    restored input or state differs from what the journal counted.
    """
    if missing_slots(plan, reports):
        raise ReportsWrong(f"Epoch {plan.epoch} has lost slots. Nothing was journaled.")
    if unnamed := sorted(r.slot for r in reports if r.manifest is None):
        raise ReportsWrong(f"Epoch {plan.epoch}: slots {unnamed} name no manifest of their state.")
    if plan.restore is not None:
        check_restored(plan.restore, [part for r in reports for part in r.restored])
        check_installed(state, plan.restore, {r.slot: r.installed_rows for r in reports})
    if plan.carry is not None:
        what = f"Rows of the session before cannot be carried into {plan.session}"
        check_restored(plan.carry, [part for r in reports for part in r.carried], what)
    reports = sorted(reports, key=lambda r: r.slot)
    owners = {slot for _, slot in plan.groups}
    cuts = [cut for r in reports for cut in r.cuts]
    results = _summed([r.results for r in reports])
    spilled = _summed([r.spilled_rows for r in reports])
    sealed = None
    if plan.sealing:
        if plan.seal is None:
            raise ReportsWrong(f"Epoch {plan.epoch} seals without a seal.")
        date = plan.session
        sealed = seal_session(
            with_deferred(state, plan.deferred).session,
            plan.seal,
            plan.epoch,
            cuts,
            results.get(date, 0),
            spilled.get(date, 0),
            state.genesis.parents,
            lost_of(state, plan.seal.end, plan.lost_to),
        )
    entry = Epoch(
        n=plan.n,
        term=plan.term,
        epoch=plan.epoch,
        session=plan.seal.next_session if sealed and plan.seal else plan.session,
        end=plan.end,
        manifests={r.slot: r.manifest for r in reports if r.slot in owners},
        assignment=list(plan.groups) if plan.groups != plan.before else None,
        moved=list(plan.moved),
        queued=list(plan.queue) if plan.queue != state.moves else None,
        budgets=dict(plan.budgets) if plan.budgets != state.budgets else None,
        files=[f for r in reports for f in r.files],
        cuts=cuts,
        voided=[cut for r in reports for cut in r.voided],
        read=added([part for r in reports for part in r.read]),
        commands=list(plan.outcomes),
        commands_n=plan.commands_n,
        seal=plan.accepted,
        withdrawn=plan.withdrawn,
        sealed=sealed,
        results=results,
        spilled_rows=spilled,
        restored_slots=sorted(plan.restore.slots) if plan.restore else [],
        deferred=list(plan.deferred),
        deferred_slots=list(plan.deferred_slots),
        carried_rows=sum(r.carried_rows for r in reports),
        lost_to=plan.lost_to if plan.lost_to != state.lost_to else {},
        slots=[r.totals for r in reports if r.totals is not None and r.slot in owners],
        recent_input_ms=max(r.recent_input_ms for r in reports),
        started_at=started_at,
        written_at=written_at,
        seconds=seconds,
        limit_rows=limit_rows,
    )
    return with_times(state, entry)


def _summed(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))
