"""The driver's protocol, scene by scene: events in, the exact list of instructions out.

One scene for each line of the design's "One epoch", "Numbers and offsets", "One driver",
"Durability" and "Recovery". The random model (`tests/property/model`) shows that the rules together
are exact; here it is written down what each of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spillway.protocol.driver import (
    MAX_CLAIMS,
    Append,
    Appended,
    Applied,
    Conflict,
    Driver,
    End,
    Event,
    HistoryRead,
    Instruction,
    JournalRead,
    Look,
    Looked,
    Offered,
    ReadHistory,
    ReadJournal,
    Ready,
    Reported,
    RunJob,
    Sync,
    Unknown,
    start,
    step,
)
from spillway.protocol.entry import ReportsWrong, missing_slots
from spillway.protocol.failing import MAX_ATTEMPTS, SAME_ERRORS, JobFailed
from spillway.protocol.plan import Plan, waits
from spillway.protocol.recovery import Replay, Restore, SessionRestore, Since, carry_of
from spillway.protocol.redo import Apply, settled_epoch
from spillway.protocol.seal import not_sealable
from spillway.protocol.state import (
    JournalBroken,
    JournalState,
    Mark,
    OpenSession,
    begin,
    fold,
    replay,
)
from spillway_schemas.commands import Command
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import (
    Claim,
    CommandOutcome,
    Epoch,
    Genesis,
    Move,
    Prefix,
    SlotTotals,
    Topic,
)
from tests.carrying import Carrying
from tests.commands import command_of, outcome_of
from tests.protocol_entries import (
    DAY,
    GROUPS,
    NEXT,
    THIRD,
    TOPICS,
    claim,
    closing,
    count,
    cut,
    ends,
    epoch,
    file,
    genesis,
    lost,
    report,
    seal,
    sealed,
    withdrawing,
)

Entries = Sequence[Genesis | Claim | Epoch]
BEGUN: Entries = (genesis(), claim(1, 1))
READ_0 = [count("a", 0, 4, 7), count("a", 1, 4, 1), count("b", 0, 4, 2)]
ONE = epoch(2, 0, ends(4, 4, 4), read=READ_0)
"""Epoch 0 read four rows of each partition."""
EVERY = {"results": 0, "spill": 0, "quarantine": 0, "statistics": 0}
"""Every table has epoch 0."""


def told(driver: Driver, *events: Event) -> tuple[Driver, list[Instruction]]:
    """The driver after some events, and what it says to the last of them.

    Where it looks for another driver before it tries again, there is none.
    """
    instructions: list[Instruction] = []
    for event in events:
        driver, instructions = step(driver, event)
        if instructions == [Look()]:
            driver, instructions = step(driver, Looked([]))
    return driver, instructions


def reading(entries: Entries, applied: dict[str, int] | None = None, **more: Any) -> JournalRead:
    """What a starting driver reads; every table is up to date."""
    return JournalRead(entries, EVERY if applied is None else applied, TOPICS, **more)


def claimed(*entries: Genesis | Claim | Epoch) -> Driver:
    """A driver of the next term that has nothing to redo."""
    driver, instructions = told(begun(), reading([*BEGUN, *entries]), Appended())
    assert instructions == [Ready()]
    return driver


def begun() -> Driver:
    return start("host/2", "started")[0]


def offered(end: Any = None, *commands: Command, **more: Any) -> Offered:
    return Offered(end or ends(6, 6, 6), commands, NEXT, "2026-01-05T15:00:00Z", **more)


def reported(*reports: Any) -> Reported:
    return Reported(reports, "later", {"job": 0.5}, 100)


def plan(**more: Any) -> Plan:
    """Epoch 1 after `ONE`, in term 2, with no command."""
    facts: dict[str, Any] = {
        "epoch": 1,
        "term": 2,
        "n": 4,
        "session": DAY,
        "start": ends(4, 4, 4),
        "end": ends(6, 6, 6),
        "seal": None,
        "accepted": None,
        "withdrawn": "",
        "sealing": False,
        "flush": (),
        "before": GROUPS,
        "groups": GROUPS,
        "moved": (),
        "queue": (),
        "forced": (),
        "budgets": {},
        "manifests": ((0, "m-0-0"), (1, "m-0-1")),
        "outcomes": (),
        "restore": None,
    }
    return Plan(**(facts | more))


def second(**more: Any) -> Epoch:
    """The entry of epoch 1 as it is journaled in term 2."""
    facts: dict[str, Any] = {
        "term": 2,
        "started_at": "2026-01-05T15:00:00Z",
        "written_at": "later",
        "seconds": {"job": 0.5},
        "limit_rows": 100,
    }
    return epoch(4, 1, more.pop("end", ends(6, 6, 6)), **(facts | more))


# --- one driver


def test_a_driver_begins_with_the_journal() -> None:
    assert start("host/2", "started") == (
        Driver(name="host/2", started_at="started"),
        [ReadJournal()],
    )


def test_the_first_thing_that_it_writes_is_a_claim_of_the_next_term() -> None:
    _, instructions = told(begun(), reading([*BEGUN, ONE], cores=4))
    assert instructions == [
        Append(Claim(n=3, term=2, driver="host/2", cores=4, topics=[], written_at="started"))
    ]


def test_a_claim_takes_the_next_number_after_other_claims() -> None:
    _, instructions = told(begun(), reading([*BEGUN, claim(2, 5)]))
    assert instructions == [
        Append(Claim(n=3, term=6, driver="host/2", topics=[], written_at="started"))
    ]


def test_a_claim_says_that_topics_have_grown() -> None:
    wider = (Topic(name="a", id="id-a", partitions=3), TOPICS[1])
    _, instructions = told(begun(), JournalRead([*BEGUN, ONE], EVERY, wider))
    assert instructions == [
        Append(
            Claim(n=3, term=2, driver="host/2", topics=list(wider), written_at="started"),
        )
    ]


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        (TOPICS[:1], "topic b does not exist any more"),
        (
            (TOPICS[0], Topic(name="b", id="new", partitions=1)),
            "topic b was deleted and created again (its id was id-b, now new)",
        ),
        (
            (Topic(name="a", id="id-a", partitions=1), TOPICS[1]),
            "topic a had 2 partitions, has 1",
        ),
    ],
)
def test_other_topics_end_it_before_it_claims(topics: Sequence[Topic], why: str) -> None:
    _, instructions = told(begun(), JournalRead([*BEGUN, ONE], EVERY, topics))
    assert instructions == [End(f"the topics no longer match the journal: {why}", fenced=False)]


def test_a_conflict_of_the_claim_makes_it_read_what_is_new_and_claim_again() -> None:
    """The driver that it relieves has journaled an epoch meanwhile: the newest goes on."""
    file_1 = file("results", 1)
    newer = epoch(3, 1, ends(6, 6, 6), files=[file_1])
    driver, instructions = told(begun(), reading([*BEGUN, ONE]), Conflict([newer]))
    assert instructions == [ReadJournal(after=2)]
    assert driver.pending is None
    driver, instructions = told(driver, reading([newer]))
    assert instructions == [
        Append(claim(4, 2, driver="host/2", written_at="started")),
    ]
    assert driver.state is not None
    assert (driver.state.n, driver.state.epoch) == (3, 1)
    _, instructions = told(driver, Appended())
    assert instructions == [Apply("results", 1, (file_1,))]


def test_what_it_owed_before_a_conflict_of_the_claim_is_still_owed() -> None:
    file_0, file_1 = file("results", 0), file("results", 1)
    zero = epoch(2, 0, ends(4, 4, 4), read=READ_0, files=[file_0])
    one = epoch(3, 1, ends(6, 6, 6), files=[file_1])
    _, instructions = told(
        begun(), reading([*BEGUN, zero], {}), Conflict([one]), reading([one], {}), Appended()
    )
    assert instructions == [Apply("results", 0, (file_0,)), Apply("results", 1, (file_1,))]


def test_of_two_that_start_at_once_the_last_to_claim_goes_on() -> None:
    """The other one's claim is met like an epoch: it never claims again, so nobody takes turns."""
    other = claim(3, 2, driver="host/3")
    driver, _ = told(begun(), reading([*BEGUN, ONE]), Conflict([other]))
    _, instructions = told(driver, reading([other]))
    assert instructions == [Append(claim(4, 3, driver="host/2", written_at="started"))]


def test_a_claim_that_always_comes_behind_ends_it() -> None:
    driver, _ = told(begun(), reading([*BEGUN, ONE]))
    for _ in range(MAX_CLAIMS):
        driver, instructions = told(driver, Conflict())
        assert instructions == [ReadJournal(after=2)]
        driver, _ = told(driver, reading([]))
    _, (end,) = told(driver, Conflict())
    assert isinstance(end, End)
    assert not end.fenced
    assert end.reason == (
        f"the journal could not be claimed: {MAX_CLAIMS} times another driver wrote an entry "
        "first. Stop that one (`spillway status` names it) and start again"
    )


TAKEN_OVER = End(
    "another stream has taken over this warehouse: host/3, term 3. Nothing is lost, and that one "
    "goes on where this one ends. To switch back, stop that one and start this one again. "
    "Supervise only one of them: two would keep taking over from each other",
    fenced=True,
)
OTHER = (claim(4, 3, driver="host/3"), epoch(5, 1, ends(6, 6, 6), term=3))


def test_a_conflict_of_an_epoch_ends_it() -> None:
    _, instructions = told(
        claimed(ONE), offered(), reported(report(0, 1), report(1, 1)), Conflict(OTHER)
    )
    assert instructions == [TAKEN_OVER]


def test_a_conflict_with_a_journal_that_cannot_be_read_ends_it() -> None:
    _, (end,) = told(claimed(ONE), offered(), reported(report(0, 1), report(1, 1)), Conflict())
    assert isinstance(end, End)
    assert end.fenced
    assert end.reason.startswith("another stream has taken over this warehouse. Nothing is lost")


def test_one_that_waits_for_rows_ends_when_another_has_claimed() -> None:
    driver, instructions = told(claimed(ONE), Looked([]))
    assert instructions == []
    _, instructions = told(driver, Looked(OTHER))
    assert instructions == [TAKEN_OVER]


def test_no_attempt_is_repeated_once_another_has_claimed() -> None:
    """What it lacks may be what the other one's steps have tidied away."""
    driver, _ = told(claimed(ONE), offered())
    for event in (JobFailed("a file is gone"), reported(report(0, 1), lost(1, 1))):
        waiting, instructions = step(driver, event)
        assert instructions == [Look()]
        assert step(waiting, Looked(OTHER))[1] == [TAKEN_OVER]


def test_an_outcome_that_is_not_known_ends_it() -> None:
    _, instructions = told(
        claimed(ONE), offered(), reported(report(0, 1), report(1, 1)), Unknown("no answer")
    )
    assert instructions == [
        End("the outcome of a journal commit is unknown: no answer", fenced=False)
    ]


# --- redo, and what power loss may take


def test_it_redoes_in_order_every_entry_above_a_tables_last_transaction() -> None:
    entries = [
        *BEGUN,
        epoch(2, 0, ends(4, 4, 4), files=[file("results", 0)], results={DAY: 1}),
        epoch(
            3,
            1,
            ends(5, 5, 5),
            files=[file("results", 1), file("quarantine", 1), file("spill", 1)],
            results={DAY: 1},
        ),
        epoch(4, 2, ends(6, 6, 6), files=[file("results", 2), file("results", 2, 1)]),
    ]
    driver, instructions = told(
        begun(), reading(entries, {"results": 0, "quarantine": 1}), Appended()
    )
    owed: list[Instruction] = [
        Apply("spill", 1, (file("spill", 1),)),
        Apply("results", 1, (file("results", 1),)),
        Apply("results", 2, (file("results", 2), file("results", 2, 1))),
    ]
    assert instructions == owed
    driver, instructions = told(driver, Applied("spill", 1), Applied("results", 1))
    assert instructions == []
    with pytest.raises(ValueError, match="an epoch was offered while another one is pending"):
        step(driver, offered(ends(7, 7, 7)))
    _, instructions = told(driver, Applied("results", 2))
    assert instructions == [Ready()]


def test_a_table_that_no_entry_names_a_file_for_is_not_behind() -> None:
    entries = [
        *BEGUN,
        epoch(2, 0, ends(4, 4, 4), files=[file("results", 0)]),
        epoch(3, 1, ends(5, 5, 5)),
    ]
    _, instructions = told(begun(), reading(entries, {"results": 0}), Appended())
    assert instructions == [Ready()]


def test_an_epoch_is_settled_when_nothing_of_it_is_owed() -> None:
    """Files of abandoned attempts may go up to here: redo may still name the others."""
    entries = [
        *BEGUN,
        epoch(2, 0, ends(4, 4, 4), files=[file("spill", 0)]),
        epoch(3, 1, ends(5, 5, 5), files=[file("results", 1)]),
        epoch(4, 2, ends(6, 6, 6)),
    ]
    assert settled_epoch(BEGUN, {}) == -1
    assert settled_epoch(entries, {}) == -1
    assert settled_epoch(entries, {"spill": 0}) == 0
    assert settled_epoch(entries, {"spill": 0, "results": 1}) == 2


def test_nothing_is_redone_before_the_claim_is_in() -> None:
    entries = [*BEGUN, epoch(2, 0, ends(4, 4, 4), files=[file("results", 0)])]
    _, instructions = told(begun(), reading(entries, {}))
    assert [type(each) for each in instructions] == [Append]


def test_tables_ahead_of_the_journal_end_it_once_the_claim_is_in() -> None:
    """Before the claim another driver may have journaled what the tables have."""
    driver, instructions = told(begun(), reading([*BEGUN, ONE], {"results": 2, "spill": 1}))
    assert instructions == [Append(claim(3, 2, driver="host/2"))]
    _, instructions = told(driver, Appended())
    assert instructions == [
        End(
            "the journal ends at epoch 0, but results has epoch 2, spill has epoch 1: the journal "
            "has lost entries; see `spillway doctor`",
            fenced=False,
        )
    ]


# --- plan


def test_the_epoch_after_the_last_journaled_one_begins_at_the_journals_end() -> None:
    _, instructions = told(claimed(ONE), offered())
    assert instructions == [RunJob(plan(), 1)]


def test_an_epoch_without_rows_is_an_epoch() -> None:
    command = command_of("spill", "d/1", slot=1, bytes=9, reason="by hand", by="me")
    _, instructions = told(claimed(ONE), offered(ends(4, 4, 4), command))
    outcome = outcome_of(
        "d/1", kind="spill", obeyed=True, reason="by hand", by="me", slot=1, bytes=9
    )
    assert instructions == [
        RunJob(plan(end=ends(4, 4, 4), forced=((1, 9),), outcomes=(outcome,)), 1)
    ]


def test_a_move_changes_the_assignment_of_this_epoch() -> None:
    command = command_of("move", "d/1", move=Move(group=Prefix(2, 1), to=1, bytes=5))
    _, instructions = told(claimed(ONE), offered(None, command))
    groups = (GROUPS[0], (Prefix(2, 1), 1), *GROUPS[2:])
    moved = Move(group=Prefix(2, 1), to=1, bytes=5, decision="d")
    outcome = outcome_of("d/1", kind="move", obeyed=True, slot=1, bytes=5)
    assert instructions == [RunJob(plan(groups=groups, moved=(moved,), outcomes=(outcome,)), 1)]


def test_moves_beyond_an_epochs_bytes_wait() -> None:
    commands = [
        command_of("move", "d/0", move=Move(group=Prefix(2, 0), to=1, bytes=5)),
        command_of("move", "d/2", move=Move(group=Prefix(2, 2), to=0, bytes=5)),
    ]
    _, instructions = told(claimed(ONE), offered(None, *commands, most_moved_bytes=9))
    first, then = (
        Move(group=Prefix(2, 0), to=1, bytes=5, decision="d"),
        Move(group=Prefix(2, 2), to=0, bytes=5, decision="d"),
    )
    outcomes = (
        outcome_of("d/0", kind="move", obeyed=True, slot=1, bytes=5),
        outcome_of("d/2", kind="move", obeyed=True, slot=0, bytes=5),
    )
    groups = ((Prefix(2, 0), 1), *GROUPS[1:])
    assert instructions == [
        RunJob(plan(groups=groups, moved=(first,), queue=(then,), outcomes=outcomes), 1)
    ]


def test_a_command_is_obeyed_once_however_often_it_is_read() -> None:
    """Twice in one read, and again in the read after a restart: the journal remembers its id."""
    command = command_of("spill", "d/1", slot=1, bytes=9)
    outcome = outcome_of("d/1", kind="spill", obeyed=True, slot=1, bytes=9)
    _, instructions = told(claimed(ONE), offered(None, command, command))
    assert instructions == [RunJob(plan(forced=((1, 9),), outcomes=(outcome,)), 1)]
    seen = epoch(2, 0, ends(4, 4, 4), read=READ_0, commands=[outcome])
    _, instructions = told(claimed(seen), offered(None, command))
    assert instructions == [RunJob(plan(), 1)]
    later = epoch(3, 1, ends(5, 5, 5))
    _, instructions = told(claimed(seen, later), offered(None, command))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert (job.plan.forced, job.plan.outcomes) == ((), ())


def test_an_entry_says_up_to_which_number_commands_are_answered() -> None:
    """So that no later driver reads them again; an epoch that has read none takes nothing back."""
    for known, read, said in ((-1, 4, 4), (4, 7, 7), (4, -1, 4)):
        seen = epoch(2, 0, ends(4, 4, 4), read=READ_0, commands_n=known)
        driver, (job,) = told(claimed(seen), offered(commands_n=read))
        assert driver.state is not None
        assert driver.state.commands_n == known
        assert isinstance(job, RunJob)
        assert job.plan.commands_n == said
    later = epoch(3, 1, ends(5, 5, 5))
    state = claimed(epoch(2, 0, ends(4, 4, 4), read=READ_0, commands_n=4), later).state
    assert state is not None
    assert state.commands_n == 4


def test_a_seal_that_is_not_reached_divides_the_rows() -> None:
    _, instructions = told(
        claimed(ONE), offered(None, closing(ends(9, 9, 9), reason="now", by="me"))
    )
    end = seal(ends(9, 9, 9))
    outcome = outcome_of("close", kind="seal", obeyed=True, reason="now", by="me")
    assert instructions == [RunJob(plan(seal=end, accepted=end, outcomes=(outcome,)), 1)]


def test_a_seal_below_what_was_journaled_ends_the_session_there() -> None:
    _, instructions = told(claimed(ONE), offered(None, closing(ends(5, 1, 4))))
    end = seal(ends(5, 4, 4))
    outcome = outcome_of("close", kind="seal", obeyed=True)
    assert instructions == [
        RunJob(plan(seal=end, accepted=end, sealing=True, outcomes=(outcome,)), 1)
    ]


def test_the_epoch_that_reaches_the_seal_flushes_what_was_ever_cut() -> None:
    end = seal(ends(6, 6, 6))
    entry = epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=end, cuts=[cut(3, 0), cut(1, 0)])
    _, instructions = told(claimed(entry), offered(ends(6, 7, 6)))
    assert instructions == [
        RunJob(
            plan(
                end=ends(6, 7, 6),
                seal=end,
                sealing=True,
                flush=(Prefix(2, 1), Prefix(2, 3)),
            ),
            1,
        )
    ]


# --- withdrawing a seal


def answered(obeyed: bool, reason: str, id_: str = "back") -> CommandOutcome:
    return outcome_of(id_, kind="withdraw", obeyed=obeyed, reason=reason)


ACCEPTED = outcome_of("close", kind="seal", obeyed=True)
PENDING = epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=seal(ends(4, 9, 9)))
"""Epoch 0 has come to the seal's end on one partition, and passed it on none."""


def test_a_pending_seal_is_withdrawn_and_rows_beyond_its_end_are_the_days() -> None:
    _, instructions = told(
        claimed(PENDING), offered(ends(10, 10, 10), withdrawing(reason="too early"))
    )
    assert instructions == [
        RunJob(
            plan(end=ends(10, 10, 10), withdrawn="close", outcomes=(answered(True, "too early"),)),
            1,
        )
    ]


def test_a_loss_is_obeyed_and_what_is_read_again_begins_behind_it() -> None:
    """Of partition a/0 two rows are gone before they were read, of b/0 three that were."""
    lost_to = ends(6, 0, 3)
    gone = command_of("accept-loss", "gone", session=DAY, lost_to=lost_to, reason="late", by="ada")
    driver, instructions = told(claimed(ONE), offered(ends(4, 4, 4), gone))
    obeyed = outcome_of("gone", kind="accept-loss", obeyed=True, reason="late", by="ada")
    behind = plan(start=ends(6, 4, 4), end=ends(6, 4, 4), lost_to=lost_to, outcomes=(obeyed,))
    assert instructions == [RunJob(behind, 1)]
    driver, (job,) = told(driver, reported(lost(0, 1), report(1, 1)))
    assert isinstance(job, RunJob)
    assert job.plan.restore is not None
    assert (job.plan.start, job.plan.end) == (behind.start, behind.end)
    assert (job.plan.restore.read_from, job.plan.restore.read_to) == (ends(4, 0, 3), ends(4, 4, 4))
    assert job.plan.restore.lossy == {("a", 0), ("b", 0)}
    again = [count("a", 1, 4, READ_0[1].digest)]
    driver, instructions = told(driver, reported(report(0, 1, restored=again), report(1, 1)))
    entry = second(
        end=ends(6, 4, 4), lost_to=lost_to, commands=[obeyed], read=[], restored_slots=[0]
    )
    assert instructions == [Sync(()), Append(entry)]
    driver, _ = told(driver, Appended())
    assert driver.state is not None
    assert driver.state.lost_to == lost_to
    _, (job,) = told(driver, offered(ends(7, 7, 7)))
    assert isinstance(job, RunJob)
    assert (job.plan.start, job.plan.lost_to) == (ends(6, 4, 4), lost_to)


def test_a_withdrawal_comes_before_the_epoch_that_would_have_sealed() -> None:
    _, instructions = told(claimed(PENDING), offered(ends(4, 9, 9), withdrawing()))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert (job.plan.seal, job.plan.sealing, job.plan.withdrawn) == (None, False, "close")


def test_the_entry_says_what_was_withdrawn_and_the_next_session_is_gone() -> None:
    driver, instructions = told(
        claimed(PENDING), offered(None, withdrawing()), reported(report(0, 1), report(1, 1))
    )
    entry = second(withdrawn="close", commands=[answered(True, "")])
    assert instructions == [Sync(()), Append(entry)]
    driver, _ = told(driver, Appended())
    state = driver.state
    assert state is not None
    assert (state.seal, [s.date for s in state.sessions]) == (None, [DAY])
    assert not waits(state, [withdrawing()]), "it was answered"
    _, instructions = told(driver, offered(ends(9, 9, 9)))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert (job.plan.seal, job.plan.sealing, job.plan.withdrawn) == (None, False, "")


def test_a_seal_stays_once_a_row_beyond_its_end_was_read() -> None:
    passed = epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=seal(ends(4, 9, 3)))
    _, instructions = told(claimed(passed), offered(None, withdrawing()))
    why = (
        f"rows beyond its end are read and belong to {NEXT} (b/0 to 4). {DAY} is sealed once the "
        "rest has been read: a/1 from 4 to 9"
    )
    assert instructions == [
        RunJob(plan(seal=seal(ends(4, 9, 3)), outcomes=(answered(False, why),)), 1)
    ]


def test_every_partition_that_was_read_beyond_the_seal_is_named() -> None:
    passed = epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=seal(ends(3, 9, 2)))
    _, instructions = told(claimed(passed), offered(None, withdrawing()))
    (job,) = instructions
    assert isinstance(job, RunJob)
    (outcome,) = job.plan.outcomes
    assert f"belong to {NEXT} (a/0 to 4, b/0 to 4). {DAY}" in outcome.reason


def test_a_seal_of_a_partition_that_no_epoch_knows_stays_in_the_same_way() -> None:
    wider = {"a": [4, 9, 7], "b": [3]}
    passed = epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=seal(wider))
    _, instructions = told(claimed(passed), offered(None, withdrawing()))
    (job,) = instructions
    assert isinstance(job, RunJob)
    (outcome,) = job.plan.outcomes
    assert not outcome.obeyed
    assert outcome.reason.endswith("a/1 from 4 to 9, a/2 from 0 to 7")


def test_a_seal_and_its_withdrawal_read_together_leave_nothing() -> None:
    commands = (closing(ends(9, 9, 9)), withdrawing(), closing(ends(9, 9, 9)))
    _, instructions = told(claimed(ONE), offered(None, *commands))
    # The third is the first, read twice: it must not come after its own withdrawal.
    assert instructions == [RunJob(plan(outcomes=(ACCEPTED, answered(True, ""))), 1)]


def test_a_session_can_be_sealed_anew_in_the_epoch_of_the_withdrawal() -> None:
    again = closing(ends(7, 7, 7), "again")
    _, instructions = told(claimed(PENDING), offered(None, withdrawing(), again))
    end = seal(ends(7, 7, 7), command="again")
    outcomes = (answered(True, ""), outcome_of("again", kind="seal", obeyed=True))
    assert instructions == [
        RunJob(plan(seal=end, accepted=end, withdrawn="close", outcomes=outcomes), 1)
    ]


def test_the_seal_that_was_accepted_anew_is_withdrawn_in_the_same_epoch_too() -> None:
    commands = (withdrawing(), closing(ends(7, 7, 7), "again"), withdrawing("again", "back too"))
    _, instructions = told(claimed(PENDING), offered(None, *commands))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert [outcome.obeyed for outcome in job.plan.outcomes] == [True, True, True]
    assert (job.plan.seal, job.plan.accepted, job.plan.withdrawn) == (None, None, "close")


@pytest.mark.parametrize(
    ("entry", "command", "why"),
    [
        (ONE, withdrawing(), f"no seal of {DAY} is pending"),
        (PENDING, withdrawing(session=NEXT), f"no seal of {NEXT} is pending"),
        (PENDING, withdrawing("another"), f"another seal of {DAY} is pending: close"),
    ],
)
def test_a_withdrawal_of_another_seal_is_refused(entry: Epoch, command: Command, why: str) -> None:
    _, instructions = told(claimed(entry), offered(None, command))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.plan.outcomes == (answered(False, why),)
    assert job.plan.seal == entry.seal


def test_a_sealed_session_stays_sealed() -> None:
    end = ends(4, 4, 4)
    done = epoch(2, 0, end, session=NEXT, read=READ_0, seal=seal(end), sealed=sealed(end, 0))
    _, instructions = told(claimed(done), offered(None, withdrawing()))
    why = f"{DAY} is sealed since epoch 0: that is final"
    assert instructions == [RunJob(plan(session=NEXT, outcomes=(answered(False, why),)), 1)]


def test_a_seal_asked_for_again_is_answered_and_changes_nothing() -> None:
    end = ends(4, 4, 4)
    done = epoch(2, 0, end, session=NEXT, read=READ_0, seal=seal(end), sealed=sealed(end, 0))
    for entry, reason in (
        (PENDING, f"a seal of {DAY} is pending already"),
        (done, f"{DAY} is sealed already (epoch 0)"),
    ):
        _, instructions = told(claimed(entry), offered(None, closing(ends(9, 9, 9), "again")))
        (job,) = instructions
        assert isinstance(job, RunJob)
        outcome = outcome_of("again", kind="seal", obeyed=True, reason=reason)
        assert (job.plan.outcomes, job.plan.accepted) == ((outcome,), None)


def test_no_session_comes_after_itself() -> None:
    state = claimed(ONE).state
    assert state is not None
    assert not_sealable(state, DAY, NEXT) == ""
    assert not_sealable(state, DAY, DAY).startswith(f"{DAY!r} is not written YYYY-MM-DD")


def test_a_session_of_an_odd_name_is_not_sealed_and_does_not_stop_the_stream() -> None:
    """Warehouses from before dates were checked have such a session."""
    odd = "2026-1-5"
    entries = [genesis(session=odd), claim(1, 1), epoch(2, 0, ends(4, 4, 4), session=odd)]
    _, instructions = told(
        begun(), reading(entries), Appended(), offered(None, closing(ends(9, 9, 9), session=odd))
    )
    (job,) = instructions
    assert isinstance(job, RunJob)
    (outcome,) = job.plan.outcomes
    assert not outcome.obeyed
    assert outcome.reason == (
        f"'2026-1-5' is not written YYYY-MM-DD, so {NEXT} does not come after it in the tables. "
        "Name a new warehouse.root and join its rows again there"
    )
    assert job.plan.seal is None


# --- journal first


def test_files_are_durable_before_the_entry_and_the_entry_before_the_tables() -> None:
    files = [file("results", 1), file("spill", 1), file("results", 1, 1)]
    driver, instructions = told(
        claimed(ONE),
        offered(),
        reported(
            report(1, 1, files=files[2:], results={DAY: 2}, read=[count("b", 0, 2, 5)]),
            report(
                0,
                1,
                files=files[:2],
                results={DAY: 1},
                cuts=[cut(0, 1)],
                spilled_rows={DAY: 3},
                read=[count("a", 0, 2, 2**64 - 1), count("b", 0, 0, 1)],
                recent_input_ms=77,
            ),
        ),
    )
    entry = second(
        files=files,
        cuts=[cut(0, 1)],
        read=[count("a", 0, 2, 2**64 - 1), count("b", 0, 2, 6)],
        results={DAY: 3},
        spilled_rows={DAY: 3},
        recent_input_ms=77,
    )
    assert instructions == [Sync(tuple(files)), Append(entry)]
    driver, instructions = told(driver, Appended())
    assert instructions == [
        Apply("spill", 1, (files[1],)),
        Apply("results", 1, (files[0], files[2])),
    ]
    driver, instructions = told(driver, Applied("results", 1))
    assert instructions == []
    _, instructions = told(driver, Applied("spill", 1))
    assert instructions == [Ready()]


def test_an_epoch_without_files_commits_to_no_table() -> None:
    driver, instructions = told(claimed(ONE), offered(), reported(report(0, 1), report(1, 1)))
    assert instructions == [Sync(()), Append(second())]
    _, instructions = told(driver, Appended())
    assert instructions == [Ready()]


def test_a_move_is_one_entry_that_names_both_manifests() -> None:
    command = command_of("move", "d/1", move=Move(group=Prefix(2, 1), to=1))
    _, instructions = told(
        claimed(ONE), offered(None, command), reported(report(0, 1), report(1, 1))
    )
    entry = second(
        assignment=[GROUPS[0], (Prefix(2, 1), 1), *GROUPS[2:]],
        moved=[Move(group=Prefix(2, 1), to=1, decision="d")],
        commands=[outcome_of("d/1", kind="move", obeyed=True, slot=1)],
    )
    assert instructions == [Sync(()), Append(entry)]
    assert entry.manifests == {0: "m-1-0", 1: "m-1-1"}


def test_a_sealed_session_is_in_the_entry_with_its_ranges_and_counts() -> None:
    _, instructions = told(
        claimed(epoch(2, 0, ends(4, 4, 4), read=READ_0, results={DAY: 5}, cuts=[cut(3, 0)])),
        offered(ends(6, 6, 7), closing(ends(6, 6, 6))),
        reported(
            report(0, 1, results={DAY: 1, NEXT: 7}),
            report(1, 1, results={DAY: 2}, cuts=[cut(3, 1)], spilled_rows={DAY: 4}),
        ),
    )
    entry = second(
        end=ends(6, 6, 7),
        session=NEXT,
        cuts=[cut(3, 1)],
        commands=[outcome_of("close", kind="seal", obeyed=True)],
        seal=seal(ends(6, 6, 6)),
        sealed=sealed(
            ends(6, 6, 6),
            1,
            ranges=[Prefix(6, value) for value in range(48, 64)],
            results=8,
            spilled_rows=4,
            generations=2,
        ),
        results={DAY: 3, NEXT: 7},
        spilled_rows={DAY: 4},
    )
    assert instructions == [Sync(()), Append(entry)]


@pytest.mark.parametrize(
    "reports",
    [
        (report(0, 1),),
        (report(0, 1), report(1, 1), report(1, 1)),
        (report(0, 1), report(1, 0)),
        (report(0, 1), report(2, 1)),
    ],
)
def test_it_journals_only_when_exactly_one_report_a_slot_came(reports: Any) -> None:
    driver, _ = told(claimed(ONE), offered())
    with pytest.raises(ReportsWrong, match="Epoch 1 needs one report from each of the slots"):
        step(driver, reported(*reports))


def test_what_the_fold_would_refuse_is_never_appended() -> None:
    """An entry that the next start cannot read would be the end of the warehouse."""
    driver, _ = told(claimed(ONE), offered())
    with pytest.raises(JournalBroken, match="writes to closed sessions"):
        step(driver, reported(report(0, 1, results={NEXT: 1}), report(1, 1)))


# --- recovery

SESSION = SessionRestore(session=DAY, start=ends(0, 0, 0), end=ends(4, 4, 4), cuts=())
RESTORE_1 = Restore(
    slots=frozenset({1}),
    read_from=ends(0, 0, 0),
    read_to=ends(4, 4, 4),
    sessions=(SESSION,),
    expected=tuple(READ_0),
)
"""What slot 1 held after `ONE`: everything from the start, for nothing was cut."""


def test_a_lost_slot_starts_from_nothing_and_is_restored() -> None:
    _, instructions = told(claimed(ONE), offered(), reported(report(0, 1), lost(1, 1)))
    assert instructions == [RunJob(plan(manifests=((0, "m-0-0"), (1, None)), restore=RESTORE_1), 2)]


def test_a_slot_lost_earlier_stays_lost_when_another_one_goes() -> None:
    """Its host is gone: what the second attempt wrote for it is named by nobody."""
    _, instructions = told(
        claimed(ONE),
        offered(),
        reported(report(0, 1), lost(1, 1)),
        reported(lost(0, 1), report(1, 1)),
    )
    both = replace(RESTORE_1, slots=frozenset({0, 1}))
    assert instructions == [RunJob(plan(manifests=((0, None), (1, None)), restore=both), 3)]


def test_a_slot_lost_earlier_stays_lost_when_the_job_fails() -> None:
    _, instructions = told(
        claimed(ONE), offered(), reported(report(0, 1), lost(1, 1)), JobFailed("an executor died")
    )
    assert instructions == [RunJob(plan(manifests=((0, "m-0-0"), (1, None)), restore=RESTORE_1), 3)]


def test_nothing_of_an_epoch_is_kept_once_it_is_in_the_journal() -> None:
    entry = second(restored_slots=[1], read=[], recent_input_ms=0)
    driver, instructions = told(
        claimed(ONE),
        offered(),
        reported(report(0, 1), lost(1, 1)),
        reported(report(0, 1), report(1, 1, restored=READ_0)),
    )
    assert instructions[-1] == Append(entry)
    assert driver.offer == offered()
    assert driver.failures
    driver, _ = told(driver, Appended())
    state = fold(claimed(ONE).state, entry)
    assert driver == Driver(name="host/2", started_at="started", state=state)


def test_an_answer_to_no_append_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was being appended"):
        step(claimed(ONE), Appended())


def test_what_was_lost_is_forgotten_with_the_epoch() -> None:
    driver, _ = told(
        claimed(ONE),
        offered(),
        reported(report(0, 1), lost(1, 1)),
        reported(report(0, 1), report(1, 1, restored=READ_0)),
        Appended(),
    )
    for attempt, events in enumerate([[], [JobFailed("an executor died")]], 1):
        _, instructions = told(driver, offered(ends(7, 7, 7)), *events)
        (job,) = instructions
        assert isinstance(job, RunJob)
        assert (job.attempt, job.plan.restore) == (attempt, None)
        assert job.plan.manifests == ((0, "m-1-0"), (1, "m-1-1"))


def test_a_slot_that_had_to_give_and_found_nothing_is_the_lost_one() -> None:
    """Its own step may well have found its state, on another host than its extract."""
    command = command_of("move", "d/1", move=Move(group=Prefix(2, 1), to=1))
    _, instructions = told(
        claimed(ONE), offered(None, command), reported(report(0, 1), lost(1, 1, {0: "gone"}))
    )
    outcome = outcome_of("d/1", kind="move", obeyed=True, slot=1)
    waiting = Move(group=Prefix(2, 1), to=1, decision="d")
    assert instructions == [
        RunJob(
            plan(
                queue=(waiting,),
                outcomes=(outcome,),
                manifests=((0, None), (1, "m-0-1")),
                restore=replace(RESTORE_1, slots=frozenset({0})),
            ),
            2,
        )
    ]


def test_rows_are_read_again_only_from_their_ranges_last_cut() -> None:
    entries = [
        epoch(2, 0, ends(4, 4, 4), read=READ_0, cuts=[cut(2, 0), cut(0, 0)]),
        epoch(3, 1, ends(5, 5, 5), read=[count("a", 0, 1, 9)], cuts=[cut(3, 1)]),
    ]
    driver, _ = told(begun(), reading([*BEGUN, *entries], {}), Appended())
    _, instructions = told(driver, offered(), reported(report(0, 2), lost(1, 2)))
    restore = Restore(
        slots=frozenset({1}),
        read_from=ends(4, 4, 4),
        read_to=ends(5, 5, 5),
        sessions=(
            replace(
                SESSION,
                end=ends(5, 5, 5),
                cuts=(Since(Prefix(2, 2), ends(4, 4, 4)), Since(Prefix(2, 3), ends(5, 5, 5))),
            ),
        ),
        expected=(count("a", 0, 1, 9), count("a", 1, 0), count("b", 0, 0)),
    )
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.plan.restore == restore


def of_a_tree(*entries: Epoch) -> Driver:
    """A driver of a tree: slot 0 has the groups of join 0, slot 1 those of the root."""
    tree = (genesis(parents=[1, ROOT], joins=["ab", "abc"]), claim(1, 1))
    return told(begun(), reading([*tree, *entries], {}), Appended())[0]


PAST = (
    epoch(2, 0, ends(4, 4, 4), read=READ_0, cuts=[cut(0, 0), cut(1, 0)]),
    epoch(3, 1, ends(5, 5, 5), read=[count("a", 0, 1, 9)]),
    epoch(4, 2, ends(6, 5, 5), read=[count("a", 0, 1, 3)], cuts=[cut(0, 2)]),
)
"""Of join 0 ranges were cut in the epochs 0 and 2."""
MADE_AGAIN = Replay(
    joins=frozenset({0}),
    marks=(ends(4, 4, 4), ends(6, 5, 5)),
    cuts=((Prefix(2, 0), 0), (Prefix(2, 1), 0), (Prefix(2, 0), 1)),
)


def test_rows_that_a_join_gave_are_made_again_by_all_cuts_of_the_past() -> None:
    """They are in no topic: the journal is read for them, once for all attempts of the epoch."""
    driver, instructions = told(of_a_tree(*PAST), offered(), reported(report(0, 3), lost(1, 3)))
    assert instructions == [ReadHistory(-1)]
    driver, instructions = told(driver, HistoryRead(PAST))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert (job.attempt, job.plan.manifests) == (2, ((0, "m-2-0"), (1, None)))
    assert job.plan.restore == Restore(
        slots=frozenset({1}),
        read_from=ends(0, 0, 0),
        read_to=ends(6, 5, 5),
        sessions=(replace(SESSION, end=ends(6, 5, 5), replay=MADE_AGAIN),),
        expected=(count("a", 0, 6, 19), count("a", 1, 4, 1), count("b", 0, 4, 2)),
    )
    driver, instructions = told(driver, JobFailed("an executor died"))
    assert instructions == [RunJob(job.plan, 3)]
    # The next epoch knows nothing of it.
    driver, _ = told(
        driver, reported(report(0, 3), report(1, 3, restored=job.plan.restore.expected))
    )
    driver, _ = told(driver, Appended())
    assert driver.history == ()


def test_rows_of_leaves_alone_are_restored_without_the_past() -> None:
    """What join 0 holds has come from topics."""
    _, instructions = told(of_a_tree(*PAST), offered(), reported(lost(0, 3), report(1, 3)))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.plan.restore is not None
    (session,) = job.plan.restore.sessions
    assert session.replay is None
    assert session.cuts == (
        Since(Prefix(2, 1), ends(4, 4, 4)),
        Since(Prefix(2, 0), ends(6, 5, 5)),
    )


def test_a_past_is_looked_for_again_after_another_driver() -> None:
    """The plan that follows is tried only while nobody else has claimed."""
    driver, _ = told(of_a_tree(*PAST), offered(), reported(report(0, 3), lost(1, 3)))
    driver, instructions = step(driver, HistoryRead(PAST))
    assert instructions == [Look()]


@pytest.mark.parametrize("past", [PAST[:2], PAST[1:], (PAST[0], PAST[2]), ()])
def test_a_past_with_a_gap_is_refused(past: Sequence[Epoch]) -> None:
    driver, _ = told(of_a_tree(*PAST), offered(), reported(report(0, 3), lost(1, 3)))
    with pytest.raises(ValueError, match=r"^reading again needs all epochs from 0 to 2$"):
        step(driver, HistoryRead(past))


def test_two_open_sessions_are_restored_each_from_its_own_start() -> None:
    entries = [
        epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=seal(ends(3, 6, 4)), cuts=[cut(0, 0)]),
        epoch(3, 1, ends(5, 4, 4), read=[count("a", 0, 1)], cuts=[cut(0, 1, session=NEXT)]),
    ]
    _, instructions = told(claimed(*entries), offered(), reported(lost(0, 2), report(1, 2)))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.plan.restore is not None
    assert job.plan.restore.sessions == (
        SessionRestore(
            session=DAY,
            start=ends(0, 0, 0),
            end=ends(3, 6, 4),
            cuts=(Since(Prefix(2, 0), ends(4, 4, 4)),),
        ),
        SessionRestore(
            session=NEXT,
            start=ends(3, 6, 4),
            end=ends(5, 4, 4),
            cuts=(Since(Prefix(2, 0), ends(5, 4, 4)),),
        ),
    )


def test_a_slot_that_held_nothing_needs_no_restore() -> None:
    driver, _ = told(begun(), reading(BEGUN, {}), Appended())
    _, instructions = told(driver, offered(ends(1, 1, 1)), reported(report(0, 0), lost(1, 0)))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert (job.attempt, job.plan.restore, job.plan.manifests) == (2, None, ((0, None), (1, None)))


def test_the_restored_slots_are_in_the_entry() -> None:
    _, instructions = told(
        claimed(ONE),
        offered(),
        reported(report(0, 1), lost(1, 1)),
        reported(report(0, 1, restored=READ_0[:2]), report(1, 1, restored=READ_0[2:])),
    )
    assert instructions == [Sync(()), Append(second(restored_slots=[1]))]


def test_a_job_that_failed_runs_again_as_it_was() -> None:
    _, instructions = told(claimed(ONE), offered(), JobFailed("an executor died"))
    assert instructions == [RunJob(plan(), 2)]


READS = "It reads a/0 from 4 to 5, a/1 from 4 to 5, b/0 from 4 to 5. Nothing from it was committed"


def ends_after(*failures: JobFailed) -> End:
    """How the driver ends with the last of these; with those before it tries again."""
    driver, _ = told(claimed(ONE), offered())
    for attempt, failure in enumerate(failures[:-1], start=2):
        driver, instructions = told(driver, failure)
        assert instructions == [RunJob(plan(), attempt)]
    _, (end,) = told(driver, failures[-1])
    assert isinstance(end, End)
    assert end.fenced is False
    return end


def test_an_epoch_that_keeps_failing_ends_the_driver() -> None:
    end = ends_after(*[JobFailed("an executor died")] * MAX_ATTEMPTS)
    assert end.reason == f"epoch 1 failed {MAX_ATTEMPTS} times: an executor died. {READS}"


def test_an_error_that_is_always_the_same_ends_the_driver_sooner() -> None:
    """Attempts differ in their names, and in nothing that would help."""
    texts = [f"ValueError: 7-{attempt:016x}-1.arrow is odd" for attempt in (11, 12, 13)]
    end = ends_after(*(JobFailed(text, "raised") for text in texts))
    assert end.reason == (
        f"epoch 1 failed {SAME_ERRORS} times in a row with the same error: {texts[-1]}. {READS}. "
        "Either one of these rows cannot be processed, or this is a bug: keep last-error.txt "
        "and report it"
    )


def test_an_error_among_others_is_tried_again() -> None:
    """Three in a row: the first attempt runs another way, and a lost worker says nothing."""
    same, other = JobFailed("ValueError: x", "raised"), JobFailed("KeyError: y", "raised")
    end = ends_after(other, same, same, JobFailed("a worker died"), other, same, same, same)
    assert "3 times in a row" in end.reason


def test_a_folder_that_cannot_be_written_ends_the_driver_at_once() -> None:
    """Another attempt would leave as many files behind again."""
    end = ends_after(JobFailed("cannot write /w/x: no space is left", "storage"))
    assert end.reason == (
        "epoch 1 has failed: cannot write /w/x: no space is left. Nothing from it was committed. "
        "It is not tried again, because every attempt leaves files behind: mend that, run "
        "`spillway doctor`, and start again"
    )


def test_rows_that_are_gone_end_the_driver_at_once() -> None:
    """Kafka will not have them, until somebody says that they are gone for good."""
    end = ends_after(JobFailed("KAFKA_DATA_LOSS", "gone"))
    assert end.reason == (
        "epoch 1 has failed: Kafka does not hold rows any more that it reads: KAFKA_DATA_LOSS. "
        "Nothing from it was committed. It is not tried again. Where nobody has these rows any "
        "more, go on without them: `spillway accept-loss --session 2026-01-05 --reason ...`, and "
        "start again"
    )


def test_schemas_that_cannot_be_known_end_the_driver_at_once() -> None:
    """What the registry refuses it refuses again; and no message is to blame."""
    end = ends_after(JobFailed("the schema registry at http://r: HTTP 401", "schemas"))
    assert end.reason == (
        "epoch 1 has failed: the schema registry at http://r: HTTP 401. Nothing from it was "
        "committed, and no message went to quarantine for it: mend that, run `spillway doctor`, "
        "and start again"
    )


def test_failures_are_forgotten_with_the_epoch() -> None:
    same = JobFailed("ValueError: x", "raised")
    driver, _ = told(
        claimed(ONE), offered(), same, same, reported(report(0, 1), report(1, 1)), Appended()
    )
    _, instructions = told(driver, offered(ends(7, 7, 7)), same)
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.attempt == 2


# --- what the journal's state and an entry are, in full


def test_the_state_after_the_genesis() -> None:
    start = ends(1, 2, 3)
    first = genesis(start=start)
    assert replay([]) is None
    assert begin(first) == JournalState(
        n=0,
        term=0,
        epoch=-1,
        genesis=first,
        topics=TOPICS,
        end=start,
        sessions=(OpenSession(date=DAY, start=start, base=-1),),
        seal=None,
        groups=GROUPS,
        assignment_version=-1,
        policy_epoch=-1,
        manifests={0: None, 1: None},
        marks={-1: Mark(start, {})},
        counts={},
        sealed={},
        seen=frozenset(),
    )


def test_the_state_after_epochs_and_a_claim() -> None:
    """Two sessions are open: the second one has cuts only, the first one results and rows."""
    totals = SlotTotals(slot=0, budget_bytes=99, rows=3, state_bytes=9, folder_bytes=10)
    queued = Move(group=Prefix(2, 0), to=1, decision="d")
    entries = [
        epoch(2, 0, ends(4, 4, 4), read=READ_0, cuts=[cut(0, 0)], recent_input_ms=50),
        epoch(
            3,
            1,
            ends(5, 5, 5),
            read=[count("a", 0, 1, 2**64 - 5)],
            cuts=[cut(0, 1), cut(1, 1), cut(3, 1, session=NEXT)],
            seal=seal(ends(5, 9, 5)),
            results={DAY: 3},
            spilled_rows={DAY: 4},
            commands=[answered(True, "", "other")],
            recent_input_ms=40,
            slots=[totals],
            budgets={1: 70},
            queued=[queued],
        ),
    ]
    state = replay([*BEGUN, *entries])
    zero = Mark(ends(4, 4, 4), {("a", 0): (4, 7), ("a", 1): (4, 1), ("b", 0): (4, 2)})
    now = Mark(ends(5, 5, 5), {("a", 0): (5, 2), ("a", 1): (4, 1), ("b", 0): (4, 2)})
    day = OpenSession(
        date=DAY,
        start=ends(0, 0, 0),
        base=-1,
        recent_cuts={Prefix(2, 0): (-1, 0, 1), Prefix(2, 1): (-1, 1)},
        cuts=3,
        results=3,
        spilled_rows=4,
    )
    after = OpenSession(
        date=NEXT, start=ends(5, 9, 5), base=0, recent_cuts={Prefix(2, 3): (0, 1)}, cuts=1
    )
    expected = JournalState(
        n=3,
        term=1,
        epoch=1,
        genesis=genesis(),
        topics=TOPICS,
        end=ends(5, 5, 5),
        sessions=(day, after),
        seal=seal(ends(5, 9, 5)),
        groups=GROUPS,
        assignment_version=-1,
        policy_epoch=-1,
        manifests={0: "m-1-0", 1: "m-1-1"},
        marks={-1: Mark(ends(0, 0, 0), {}), 0: zero, 1: now},
        counts=now.counts,
        sealed={},
        seen=frozenset({"other"}),
        recent_input_ms=50,
        totals=(totals,),
        budgets={1: 70},
        cores=0,
        moves=(queued,),
    )
    assert state == expected
    claimed_ = fold(state, claim(4, 2, cores=8))
    assert claimed_ == replace(expected, n=4, term=2, cores=8, budgets={})
    third = fold(claimed_, epoch(5, 2, ends(6, 6, 6), term=2, cuts=[cut(0, 2), cut(1, 2)]))
    assert sorted(third.marks) == [-1, 0, 1, 2]
    assert third.seen == {"other"}
    moved = [(Prefix(2, 0), 1), *GROUPS[1:]]
    carried = epoch(
        6, 3, ends(7, 7, 7), term=2, assignment=moved, queued=[], moved=[queued], session=DAY
    )
    last = fold(third, carried)
    assert (last.groups, last.assignment_version, last.moves) == (tuple(moved), 3, ())
    assert sorted(last.marks) == [-1, 0, 1, 2, 3]
    # The first session's marks go with it; the second one began after epoch 0.
    over = epoch(7, 4, ends(9, 9, 9), term=2, session=NEXT, sealed=sealed(ends(5, 9, 5), 4))
    gone = fold(last, over)
    assert sorted(gone.marks) == [0, 1, 4]
    assert gone.session.date == NEXT


@pytest.mark.parametrize(
    ("kind", "obeyed", "policy", "relieves"),
    [
        ("spill", True, "p", True),
        ("move", True, "p", True),
        ("slots", True, "p", True),
        ("spill", False, "p", False),
        ("spill", True, "", False),
        ("split", True, "p", False),
    ],
)
def test_an_epoch_relieves_when_it_obeys_a_policy(
    kind: str, obeyed: bool, policy: str, relieves: bool
) -> None:
    outcome = outcome_of("d/1", kind=kind, obeyed=obeyed, policy=policy)
    state = replay([*BEGUN, epoch(2, 0, ends(4, 4, 4), commands=[outcome])])
    assert state is not None
    assert state.policy_epoch == (0 if relieves else -1)


def test_an_epoch_waits_for_commands_moves_and_a_seal_in_reach() -> None:
    def found(**more: Any) -> JournalState:
        state = replay([*BEGUN, epoch(2, 0, ends(4, 4, 4), **more)])
        assert state is not None
        return state

    command = command_of("spill", "d/1", slot=1, bytes=9)
    seen = outcome_of("d/1", kind="spill", obeyed=True)
    assert not waits(found(), [])
    assert waits(found(), [command])
    assert not waits(found(commands=[seen]), [command])
    assert waits(found(queued=[Move(group=Prefix(2, 0), to=1)]), [])
    assert waits(found(seal=seal(ends(4, 4, 4))), [])
    assert not waits(found(seal=seal(ends(4, 5, 4))), [])


def test_a_new_slot_starts_empty_and_one_that_ends_has_no_manifest() -> None:
    moves = [Move(group=Prefix(2, 1), to=2)]
    command = command_of("slots", "d/1", slots=3, moves=moves)
    driver, instructions = told(claimed(ONE), offered(None, command))
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.plan.manifests == ((0, "m-0-0"), (1, "m-0-1"), (2, None))
    none = {"budget_bytes": 0, "state_bytes": 0, "folder_bytes": 0}
    totals = [SlotTotals(slot=slot, rows=slot, **none) for slot in range(3)]
    three = [report(slot, 1, totals=totals[slot]) for slot in range(3)]
    driver, instructions = told(driver, reported(*three), Appended())
    assert driver.state is not None
    assert (driver.state.slots, driver.state.totals) == ((0, 1, 2), tuple(totals))
    back = [Move(group=Prefix(2, 1), to=0)]
    driver, instructions = told(
        driver, offered(ends(7, 7, 7), command_of("slots", "d/2", slots=2, moves=back))
    )
    (job,) = instructions
    assert isinstance(job, RunJob)
    assert job.plan.manifests == ((0, "m-1-0"), (1, "m-1-1"), (2, "m-1-2"))
    reports = [report(slot, 2, totals=totals[slot]) for slot in range(3)]
    driver, instructions = told(driver, reported(*reports))
    (_, append) = instructions
    assert isinstance(append, Append)
    assert isinstance(append.entry, Epoch)
    assert append.entry.manifests == {0: "m-2-0", 1: "m-2-1"}
    assert append.entry.slots == totals[:2]


def test_moves_that_wait_and_budgets_are_in_the_entry_when_they_change() -> None:
    commands = [
        command_of("move", "d/0", move=Move(group=Prefix(2, 0), to=1, bytes=5)),
        command_of("move", "d/2", move=Move(group=Prefix(2, 2), to=0, bytes=5)),
        command_of("budget", "b", slot=1, bytes=70),
    ]
    driver, said = told(
        claimed(ONE),
        offered(None, *commands, most_moved_bytes=9),
        reported(report(0, 1), report(1, 1)),
    )
    then = Move(group=Prefix(2, 2), to=0, bytes=5, decision="d")

    def entry(said: list[Instruction]) -> tuple[Any, Any, Any]:
        append = said[-1]
        assert isinstance(append, Append)
        assert isinstance(append.entry, Epoch)
        return append.entry.queued, append.entry.moved, append.entry.budgets

    assert entry(said)[0] == [then]
    assert entry(said)[2] == {1: 70}
    driver, _ = told(driver, Appended())
    driver, said = told(driver, offered(ends(7, 7, 7)), reported(report(0, 2), report(1, 2)))
    assert entry(said) == ([], [then], None)
    driver, _ = told(driver, Appended())
    _, said = told(driver, offered(ends(8, 8, 8)), reported(report(0, 3), report(1, 3)))
    assert entry(said) == (None, [], None)


def test_a_sealed_session_without_results_has_none() -> None:
    _, instructions = told(
        claimed(ONE),
        offered(ends(6, 6, 6), closing(ends(6, 6, 6))),
        reported(report(0, 1), report(1, 1)),
    )
    entry = second(
        session=NEXT,
        commands=[ACCEPTED],
        seal=seal(ends(6, 6, 6)),
        sealed=sealed(ends(6, 6, 6), 1),
    )
    assert instructions == [Sync(()), Append(entry)]


def test_a_seal_ends_at_0_in_partitions_that_a_topic_gains() -> None:
    wide = {"a": [6, 6, 2], "b": [6]}
    end = seal({"a": [9, 9, 0], "b": [9]})
    pending = epoch(2, 0, ends(4, 4, 4), read=READ_0, seal=seal(ends(9, 9, 9)))
    start = {"a": [4, 4, 0], "b": [4]}
    _, instructions = told(claimed(pending), offered(wide))
    assert instructions == [RunJob(plan(start=start, end=wide, seal=end), 1)]
    _, instructions = told(claimed(ONE), offered(wide, closing(ends(9, 9, 9))))
    assert instructions == [
        RunJob(plan(start=start, end=wide, seal=end, accepted=end, outcomes=(ACCEPTED,)), 1)
    ]


def test_what_was_cut_is_flushed_only_at_the_end() -> None:
    entry = epoch(2, 0, ends(4, 4, 4), read=READ_0, cuts=[cut(3, 0)])
    _, instructions = told(claimed(entry), offered())
    assert instructions == [RunJob(plan(), 1)]


def test_a_seal_says_who_asked_for_it() -> None:
    commands = (closing(ends(9, 9, 9), by="alice"), withdrawing(by="bob"))
    _, instructions = told(claimed(ONE), offered(None, *commands))
    outcomes = tuple(
        each.model_copy(update={"by": by})
        for each, by in ((ACCEPTED, "alice"), (answered(True, ""), "bob"))
    )
    assert instructions == [RunJob(plan(outcomes=outcomes), 1)]


def test_what_is_read_again_begins_where_the_first_of_the_sessions_needs_it() -> None:
    """Digests are counted round 2**64; a partition of which nothing was read has no rows."""
    entries = [
        epoch(
            2,
            0,
            ends(4, 0, 0),
            read=[count("a", 0, 4, 7)],
            seal=seal(ends(3, 6, 4)),
            cuts=[cut(2, 0), cut(3, 0)],
        ),
        epoch(
            3,
            1,
            ends(5, 4, 0),
            read=[count("a", 0, 1, 2**64 - 3), count("a", 1, 4, 2)],
            cuts=[cut(2, 1, session=NEXT), cut(3, 1, session=NEXT)],
        ),
    ]
    restores = []
    for slot in (1, 0):
        reports = [report(0, 2), report(1, 2)]
        reports[slot] = lost(slot, 2)
        _, instructions = told(claimed(*entries), offered(), reported(*reports))
        (job,) = instructions
        assert isinstance(job, RunJob)
        assert job.plan.restore is not None
        restores.append(job.plan.restore)
    cut_, uncut = restores
    assert cut_.read_from == ends(4, 0, 0), "of the first session everything was cut in epoch 0"
    assert cut_.expected == (count("a", 0, 1, 2**64 - 3), count("a", 1, 4, 2), count("b", 0, 0))
    assert uncut.read_from == ends(0, 0, 0)
    assert uncut.expected == (count("a", 0, 5, 4), count("a", 1, 4, 2), count("b", 0, 0))
    assert [each.cuts for each in uncut.sessions] == [(), ()]


def test_what_was_read_again_is_added_up_round_the_digest() -> None:
    driver, _ = told(claimed(ONE), offered(), reported(report(0, 1), lost(1, 1)))
    parts = [count("a", 0, 1, 2**64 - 2), count("a", 0, 3, 9), *READ_0[1:]]
    _, instructions = told(driver, reported(report(0, 1), report(1, 1, restored=parts)))
    assert instructions[-1] == Append(second(restored_slots=[1]))


def test_slots_that_are_lost_again_and_again_are_named() -> None:
    driver, _ = told(claimed(ONE), offered())
    both = reported(lost(0, 1), lost(1, 1))
    for _ in range(MAX_ATTEMPTS - 1):
        driver, _ = told(driver, both)
    _, (end,) = told(driver, both)
    assert isinstance(end, End)
    assert end.reason == (
        f"epoch 1 failed {MAX_ATTEMPTS} times: lost state of slot 0 (gone), 1 (gone). {READS}"
    )


HEARD = "a join below the root did not find it"
NO_GROUPS = "groups that come from there were not found"


@pytest.mark.parametrize(
    ("told_by", "reasons"),
    [
        ([{0: "no disk"}, {1: "no file"}], {0: "no disk", 1: "no file"}),
        ([{}, {0: NO_GROUPS}], {0: NO_GROUPS}),
        ([{}, {1: "no file", 0: NO_GROUPS}], {0: NO_GROUPS, 1: "no file"}),
        ([{0: "", 1: "first"}, {0: "no disk", 1: ""}], {0: "no disk", 1: "first"}),
        (
            [{0: "no disk", 1: NO_GROUPS}, {0: NO_GROUPS, 1: "no file"}],
            {0: "no disk", 1: "no file"},
        ),
        ([{0: ""}, {0: "", 1: ""}], {0: HEARD, 1: HEARD}),
    ],
)
def test_each_lost_slot_is_told_with_its_own_reason(
    told_by: list[dict[int, str]], reasons: dict[int, str]
) -> None:
    """What the slot itself says; or else the first that gives a reason."""
    found = [lost(slot, 1, unfound) for slot, unfound in enumerate(told_by)]
    driver, (job,) = told(claimed(ONE), offered(), reported(*found))
    assert isinstance(job, RunJob)
    assert list(missing_slots(plan(), found).items()) == list(reasons.items())
    names = ", ".join(f"{slot} ({what})" for slot, what in reasons.items())
    assert driver.failures == (JobFailed(f"lost state of slot {names}"),)
    assert job.plan.restore is not None
    assert job.plan.restore.slots == set(reasons)


def test_the_first_of_several_others_gives_the_reason() -> None:
    three = plan(manifests=tuple((slot, None) for slot in range(3)))
    found = [report(0, 1), lost(1, 1, {0: "", 1: "x"}), lost(2, 1, {0: "second"})]
    assert missing_slots(three, found) == {0: "second", 1: "x"}
    found = [report(0, 1), lost(1, 1, {0: "first"}), lost(2, 1, {0: "second"})]
    assert missing_slots(three, found) == {0: "first"}


@pytest.mark.parametrize(
    ("end", "reads"),
    [(ends(4, 4, 4), "no new rows"), (ends(4, 5, 6), "a/1 from 4 to 4, b/0 from 4 to 5")],
)
def test_what_a_failed_epoch_reads_is_named(end: Any, reads: str) -> None:
    driver, _ = told(claimed(ONE), offered(end))
    for _ in range(MAX_ATTEMPTS - 1):
        driver, _ = told(driver, JobFailed("an executor died"))
    _, (ended,) = told(driver, JobFailed("an executor died"))
    assert isinstance(ended, End)
    assert ended.reason.endswith(f"died. It reads {reads}. Nothing from it was committed")


def test_the_last_claim_of_several_is_the_one_that_took_over() -> None:
    others = (claim(4, 3, driver="host/8"), claim(5, 4, driver="host/9"))
    _, (end,) = told(claimed(ONE), Looked((*others, epoch(6, 1, ends(6, 6, 6), term=4))))
    assert isinstance(end, End)
    assert "this warehouse: host/9, term 4. Nothing" in end.reason


def test_rows_are_carried_with_the_history_that_they_need() -> None:
    """The first epoch after a seal asks for the past before it runs, and looks for another driver
    only when it is tried again."""
    day = Carrying()
    day.seals()
    driver, instructions = told(begun(), JournalRead(day.entries, EVERY, TOPICS), Appended())
    assert instructions == [Ready()]
    assert driver.state is not None
    assert waits(driver.state, ())
    offer = Offered(ends(24, 24, 24), (), THIRD, "2026-01-06T15:00:00Z")
    driver, instructions = step(driver, offer)
    assert instructions == [ReadHistory(1)]
    driver, instructions = step(driver, HistoryRead(day.history))
    [run] = instructions
    assert isinstance(run, RunJob)
    assert run.attempt == 1
    assert run.plan.carry == carry_of(driver.state, day.history)
    assert run.plan.expired_by == {}
    assert run.plan.watermarks == {NEXT: 500}
    driver, instructions = step(driver, JobFailed("lost", "lost"))
    assert instructions == [Look()]
    driver, instructions = step(driver, Looked([]))
    assert instructions == [RunJob(run.plan, 2)]
