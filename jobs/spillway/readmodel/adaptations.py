"""The history of adaptations: what was asked for, what became of it, and what it did.

Folded from journal entries, as everything in `spillway.readmodel.tally` is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel

from spillway_schemas.commands import SESSION_KINDS
from spillway_schemas.journal import CommandOutcome, EpochFacts, Move

MOST_DECISIONS = 400
"""Decisions that are remembered, the newest ones."""


class DecisionFacts(BaseModel):
    """One decision, by hand or by a policy: commands that were asked for together, what became of
    them, and what they did."""

    id: str
    policy: str
    """Empty: a person's."""
    by: str = ""
    """Who asked: a person's name, or that of the controller's user; empty where the journal does
    not say."""
    epoch: int
    """In which the first of them was answered."""
    at: str
    obeyed: dict[str, int] = {}
    """How many commands of each kind."""
    refused: dict[str, int] = {}
    """How many were refused, by the reason."""
    reason: str = ""
    """Why it was asked for."""
    bytes: int = 0
    """State that was to be moved or spilled."""
    waiting: int = 0
    """Moves that are still to be carried out."""
    moved: int = 0
    """Groups that have moved."""
    moved_bytes: int = 0
    done_epoch: int | None = None
    """In which its last move was carried out (what is no move is done at once)."""
    before: dict[int, int] = {}
    """Bytes in memory of each slot before it."""
    after: dict[int, int] = {}
    """The same at the end of `done_epoch`."""


class AnsweredDecision(DecisionFacts):
    """A decision as the stream has answered it so far."""

    results_at: int = 0
    """Results of the warehouse up to `epoch`, that epoch not included."""


class Adaptations(BaseModel):
    """All decisions that are remembered, and what waits."""

    decisions: list[AnsweredDecision] = []
    results: int = 0
    """Results of the warehouse at run time."""
    moved_at: str | None = None
    """When the last epoch ended that moved a group."""
    forced_at: str | None = None
    """When the last epoch ended in which a policy had a slot spill."""
    tuned_at: str | None = None
    """When the last epoch ended in which a policy had a group split or merged."""
    moved_s: float = 0.0
    """How long the epochs took that carried out the last decision's moves."""
    moved_for: str = ""
    """Which decision that was."""

    def add(
        self,
        entry: EpochFacts,
        before: dict[int, int],
        queue: Iterable[Move],
        took_s: float,
    ) -> None:
        """Fold an epoch. `before`: bytes of each slot before it; `queue`: moves that wait after."""
        for outcome in entry.commands:
            if outcome.kind not in SESSION_KINDS:
                self._answered(entry, outcome, before)
        after = {totals.slot: totals.state_bytes for totals in entry.slots}
        # Most decisions are done: an epoch must not look at all of them.
        open_ = {each.id: each for each in self.decisions if each.done_epoch is None}
        for move in entry.moved:
            if (found := open_.get(move.decision)) is not None:
                found.moved += 1
                found.moved_bytes += move.bytes
        waiting = Counter(move.decision for move in queue)
        for each in open_.values():
            each.waiting = waiting[each.id]
            if not each.waiting:
                each.done_epoch, each.after = entry.epoch, after
        if entry.moved:
            mover = entry.moved[-1].decision
            self.moved_s = took_s + (self.moved_s if mover == self.moved_for else 0.0)
            self.moved_at, self.moved_for = entry.written_at, mover
        self.results += sum(entry.results.values())
        del self.decisions[:-MOST_DECISIONS]

    def _answered(self, entry: EpochFacts, outcome: CommandOutcome, before: dict[int, int]) -> None:
        name = outcome.decision
        found = next((each for each in reversed(self.decisions) if each.id == name), None)
        if found is None:
            found = AnsweredDecision(
                id=name,
                policy=outcome.policy,
                by=outcome.by,
                epoch=entry.epoch,
                at=entry.written_at,
                before=before,
                results_at=self.results,
            )
            self.decisions.append(found)
        if outcome.obeyed:
            kind = outcome.kind
            if kind == "spill" and outcome.policy:
                self.forced_at = entry.written_at
            if kind in ("split", "merge") and outcome.policy:
                self.tuned_at = entry.written_at
            found.obeyed[kind] = found.obeyed.get(kind, 0) + 1
            found.reason = found.reason or outcome.reason
            found.bytes += 0 if kind == "budget" else outcome.bytes
            found.done_epoch = None
        else:
            why = outcome.reason
            found.refused[why] = found.refused.get(why, 0) + 1
