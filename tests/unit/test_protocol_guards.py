"""Every `raise` of `spillway.protocol`: one broken journal or one lying report that sets it off.

The last test finds the `raise` statements in the source and those that the cases reach: a new guard
needs a case here.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from spillway.protocol import driver as protocol
from spillway.protocol.driver import (
    Appended,
    Applied,
    HistoryRead,
    JournalRead,
    Offered,
    Reported,
    step,
)
from spillway.protocol.entry import ReportsWrong, entry_of
from spillway.protocol.failing import JobFailed
from spillway.protocol.plan import Plan, plan_epoch
from spillway.protocol.queries import QueryChanged, goes_on_by_another, kept_query
from spillway.protocol.recovery import InputChanged
from spillway.protocol.state import (
    AnotherQuery,
    JournalBroken,
    JournalState,
    check_query,
    fold,
    replay,
)
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import (
    KEPT_GENERATIONS,
    Claim,
    Epoch,
    Genesis,
    Move,
    Prefix,
    SlotReport,
    SlotTotals,
    Topic,
)
from spillway_schemas.query import load_query
from tests.protocol_entries import (
    DAY,
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
)

SOURCE = Path(__file__).parents[2] / "jobs" / "spillway" / "protocol"
BEGUN = (genesis(), claim(1, 1))
ONE = epoch(2, 0, ends(4, 4, 4), read=[count("a", 0, 4, 7), count("a", 1, 4), count("b", 0, 4)])
SEALING = seal(ends(6, 6, 6))
FULL = ONE.model_copy(update={"results": {DAY: 3}})


@dataclass(frozen=True)
class Case:
    """What is wrong, and the error that must say so."""

    name: str
    error: type[Exception]
    says: str
    """A regular expression that the message must match from its beginning."""
    act: Callable[[], object]


def journal(name: str, says: str, *entries: Genesis | Claim | Epoch) -> Case:
    """A journal that contradicts itself: all but its last entry are fine."""

    def act() -> JournalState:
        state: JournalState | None = None
        for entry in entries[:-1]:
            state = fold(state, entry)
        return fold(state, entries[-1])

    return Case(name, JournalBroken, says, act)


def reports(
    name: str, error: type[Exception], says: str, *found: SlotReport, held: int | None = None
) -> Case:
    """Reports of epoch 1 that cannot be: of a job that restored slot 1, which held so many rows."""
    of_slot = {"slot": 1, "budget_bytes": 1, "state_bytes": 1, "folder_bytes": 1, "rows": held}
    slots = [] if held is None else [SlotTotals.model_validate(of_slot)]
    state = replay([*BEGUN, ONE.model_copy(update={"slots": slots})])
    assert state is not None
    plan = plan_epoch(state, ends(5, 5, 5), [], NEXT, frozenset({1}))

    def act() -> Epoch:
        return entry_of(state, plan, found, started_at="", written_at="", seconds={})

    return Case(name, error, says, act)


def driver(name: str, says: str, event: protocol.Event, *before: protocol.Event) -> Case:
    """An event that cannot happen now."""

    def act() -> object:
        now, _ = protocol.start("host/1", "started")
        for each in before:
            now, _ = step(now, each)
        return step(now, event)

    return Case(name, ValueError, says, act)


SHIPPED = load_query("symbol")


def opened(*entries: Epoch, **more: Any) -> JournalState:
    state = replay([genesis(**more), claim(1, 1), *entries])
    assert state is not None
    return state


def again(topics: list[Topic]) -> Claim:
    return claim(3, 2, topics=topics)


def unsealed() -> Epoch:
    state = replay([*BEGUN, ONE])
    assert state is not None
    plan = replace(plan_epoch(state, ends(5, 5, 5), [], NEXT), sealing=True)
    done = [report(0, 1), report(1, 1)]
    return entry_of(state, plan, done, started_at="", written_at="", seconds={})


def unread() -> Plan:
    """Slot 1 has rows of the root, which join 0 gave it before it lost them."""
    state = replay([genesis(parents=[1, ROOT], joins=["ab", "abc"]), claim(1, 1), ONE])
    assert state is not None
    return plan_epoch(state, ends(5, 5, 5), [], NEXT, frozenset({1}))


RESTORED = [count("a", 0, 4, 7), count("a", 1, 4), count("b", 0, 4)]
MOVED = Move(group=Prefix(2, 0), to=1)
READ = JournalRead([genesis()], {}, TOPICS)
OFFERED = Offered(ends(1, 1, 1), [], NEXT, "now")

CASES = [
    Case(
        "another query",
        AnotherQuery,
        r"this warehouse holds another query's state and results \(fingerprint q, now other\)",
        lambda: check_query(genesis(), "other"),
    ),
    Case(
        "a query without a text",
        AnotherQuery,
        "this warehouse is from before the text of its query was kept",
        lambda: kept_query(genesis()),
    ),
    Case(
        "a text that means something else",
        AnotherQuery,
        "the journal's text of the query .* means something else to this version of spillway",
        lambda: kept_query(genesis(text=SHIPPED.text)),
    ),
    Case(
        "a query of other topics",
        QueryChanged,
        "this warehouse is another query's: none of its topics is one of the query's",
        lambda: goes_on_by_another(opened(), SHIPPED),
    ),
    Case(
        "a query that changes in mid-session",
        QueryChanged,
        "the query has changed in mid-session: 2026-01-05 has begun",
        lambda: goes_on_by_another(
            opened(ONE, topics=[Topic(name="stock", id="s", partitions=1)]), SHIPPED
        ),
    ),
    journal(
        "a change in mid-session",
        r"entry 3 changes the query: 2026-01-05 has begun .*: 12 rows of it are read$",
        *BEGUN,
        ONE,
        claim(3, 2, begins=genesis(query="r")),
    ),
    journal(
        "a change from elsewhere",
        r"entry 2 changes the query, and does not go on from there$",
        *BEGUN,
        claim(2, 2, begins=genesis(query="r", session=NEXT)),
    ),
    journal(
        "a change of slots",
        r"entry 2 changes the query, and the slots$",
        *BEGUN,
        claim(
            2,
            2,
            begins=genesis(
                query="r", parents=[1, -1], joins=["l", "u"], groups=[(Prefix(0, 0), 0)]
            ),
        ),
    ),
    journal("a late genesis", "the genesis is entry 1, not 0$", genesis(n=1)),
    journal("no genesis", r"the journal begins with a claim, entry 1$", claim(1, 1)),
    journal("a gap", r"entry 2 \(claim\) follows entry 0$", genesis(), claim(2, 1)),
    journal("an entry twice", r"entry 1 \(claim\) follows entry 1$", *BEGUN, claim(1, 2)),
    journal("two geneses", r"entry 2 \(genesis\) follows entry 1$", *BEGUN, genesis(n=2)),
    journal("a term twice", "entry 2 claims term 1 after term 1$", *BEGUN, claim(2, 1)),
    journal(
        "a topic gone",
        "entry 3: topic b does not exist any more$",
        *BEGUN,
        ONE,
        again([TOPICS[0]]),
    ),
    journal(
        "a topic made anew",
        "entry 3: topic b was deleted and created again \\(its id was id-b, now id-c\\)$",
        *BEGUN,
        ONE,
        again([TOPICS[0], Topic(name="b", id="id-c", partitions=1)]),
    ),
    journal(
        "a topic shrunk",
        "entry 3: topic a had 2 partitions, has 1$",
        *BEGUN,
        ONE,
        again([Topic(name="a", id="id-a", partitions=1), TOPICS[1]]),
    ),
    journal(
        "a cut taken back that never was",
        "epoch 1 takes back the cut of 2/1 at epoch 0, which is not the last one of 2026-01-05",
        *BEGUN,
        ONE.model_copy(update={"cuts": [cut(0, 0)]}),
        epoch(3, 1, ends(5, 5, 5), voided=[cut(1, 0)]),
    ),
    journal(
        "a cut taken back before the last one",
        "epoch 2 takes back the cut of 2/1 at epoch 0, which is not the last one",
        *BEGUN,
        ONE.model_copy(update={"cuts": [cut(1, 0)]}),
        epoch(3, 1, ends(5, 5, 5), cuts=[cut(1, 1)]),
        epoch(4, 2, ends(6, 6, 6), voided=[cut(1, 0)]),
    ),
    journal(
        "a cut taken back before that of a group which it was merged into",
        "epoch 2 takes back the cut of 2/1 at epoch 0, which is not the last one",
        *BEGUN,
        ONE.model_copy(update={"cuts": [cut(1, 0)]}),
        epoch(3, 1, ends(5, 5, 5), cuts=[cut(0, 1, depth=1)]),
        epoch(4, 2, ends(6, 6, 6), voided=[cut(1, 0)]),
    ),
    journal(
        "a cut taken back that is not kept any more",
        "epoch 18 takes back the cut of 2/1 at epoch 0, which is not the last one",
        *BEGUN,
        *(epoch(2 + n, n, ends(n, n, n), cuts=[cut(1, n)]) for n in range(KEPT_GENERATIONS + 1)),
        epoch(
            KEPT_GENERATIONS + 3,
            KEPT_GENERATIONS + 1,
            ends(99, 99, 99),
            voided=[cut(1, n) for n in reversed(range(1, KEPT_GENERATIONS + 1))],
        ),
        epoch(
            KEPT_GENERATIONS + 4,
            KEPT_GENERATIONS + 2,
            ends(99, 99, 99),
            voided=[cut(1, 0)],
        ),
    ),
    journal(
        "a cut of a closed session taken back",
        "epoch 0 writes to closed sessions {'2026-01-06'}$",
        *BEGUN,
        ONE.model_copy(update={"voided": [cut(1, 0, session=NEXT)]}),
    ),
    journal(
        "a cut taken back whose rows are in no file",
        "epoch 2 takes back the cut of 2/1 at epoch 0, which is not the last one",
        *BEGUN,
        ONE,
        epoch(3, 1, ends(5, 5, 5), deferred=[cut(1, 0)]),
        epoch(4, 2, ends(6, 6, 6), voided=[cut(1, 0)]),
    ),
    journal(
        "a cut taken back of half of a group whose rows are in no file",
        "epoch 2 takes back the cut of 2/1 at epoch 0, which is not the last one",
        *BEGUN,
        ONE.model_copy(update={"cuts": [cut(1, 0)]}),
        epoch(3, 1, ends(5, 5, 5), deferred=[cut(0, 0, depth=1)]),
        epoch(4, 2, ends(6, 6, 6), voided=[cut(1, 0)]),
    ),
    *(
        journal(
            f"rows deferred {what}",
            f"epoch 1 defers rows of {each.session} up to epoch {each.epoch}, which were not in",
            *BEGUN,
            ONE,
            epoch(3, 1, ends(5, 5, 5), deferred=[each]),
        )
        for what, each in (
            ("of a closed session", cut(1, 0, session=NEXT)),
            ("of an epoch before the last", cut(1, -1)),
            ("of this very epoch", cut(1, 1)),
        )
    ),
    journal(
        "rows deferred of a session that has none",
        "epoch 0 defers rows of 2026-01-05 up to epoch -1, which were not in memory$",
        *BEGUN,
        ONE.model_copy(update={"deferred": [cut(1, -1)]}),
    ),
    journal(
        "a watermark from nowhere",
        "epoch 0 has the watermarks {'2026-01-05': 7}; by the times that it counts they are {}$",
        *BEGUN,
        ONE.model_copy(update={"watermarks": {DAY: 7}}),
    ),
    journal(
        "another term's epoch",
        "epoch 0 of term 2 in term 1$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), term=2),
    ),
    journal("an epoch twice", "epoch 0 follows epoch 0$", *BEGUN, ONE, epoch(3, 0, ends(5, 5, 5))),
    journal("an epoch left out", "epoch 1 follows epoch -1$", *BEGUN, epoch(2, 1, ends(5, 5, 5))),
    journal(
        "offsets fall",
        "epoch 1 ends before epoch 0$",
        *BEGUN,
        ONE,
        epoch(3, 1, ends(5, 3, 5)),
    ),
    journal(
        "a slot without a manifest",
        r"epoch 0 names manifests of \[0\]$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), manifests={0: "m"}),
    ),
    journal(
        "a manifest without a slot",
        r"epoch 0 names manifests of \[0, 1, 2\]$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), manifests={0: "m", 1: "m", 2: "m"}),
    ),
    journal(
        "another session sealed",
        f"epoch 0 seals {NEXT} wrongly$",
        *BEGUN,
        epoch(2, 0, ends(6, 6, 6), seal=SEALING, sealed=sealed(ends(6, 6, 6), 0, session=NEXT)),
    ),
    journal(
        "sealed without a seal",
        "epoch 0 seals before the session's end$",
        *BEGUN,
        epoch(2, 0, ends(6, 6, 6), session=NEXT, sealed=sealed(ends(6, 6, 6), 0)),
    ),
    journal(
        "sealed too early",
        "epoch 0 seals before the session's end$",
        *BEGUN,
        epoch(2, 0, ends(6, 5, 6), session=NEXT, seal=SEALING, sealed=sealed(ends(6, 6, 6), 0)),
    ),
    journal(
        "sealed below the seal",
        "epoch 0 seals at other offsets than the seal's$",
        *BEGUN,
        epoch(2, 0, ends(6, 6, 6), session=NEXT, seal=SEALING, sealed=sealed(ends(6, 5, 6), 0)),
    ),
    journal(
        "lost beyond the end",
        r"epoch 0 ends before {'a': \[5, 0\]}, up to where rows are lost$",
        *BEGUN,
        epoch(2, 0, ends(4, 4, 4), lost_to={"a": [5, 0]}),
    ),
    journal(
        "a loss that is not told",
        r"epoch 0 seals 2026-01-05 with rows lost up to {}; what was accepted is {'a': \[5, 0\], ",
        *BEGUN,
        epoch(
            2,
            0,
            ends(6, 6, 6),
            session=NEXT,
            seal=SEALING,
            sealed=sealed(ends(6, 6, 6), 0),
            lost_to={"a": [5, 0]},
        ),
    ),
    journal(
        "sealed beyond the seal",
        "epoch 0 seals at other offsets than the seal's$",
        *BEGUN,
        epoch(2, 0, ends(7, 7, 7), session=NEXT, seal=SEALING, sealed=sealed(ends(6, 7, 6), 0)),
    ),
    journal(
        "the wrong session open",
        f"epoch 0 says {NEXT} is open, not the journal$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), session=NEXT),
    ),
    journal(
        "a move that did not happen",
        "epoch 0 says .* was carried out; it was not$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), moved=[MOVED]),
    ),
    journal(
        "a move that has happened",
        "epoch 0 has .* still to be carried out$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), queued=[Move(group=Prefix(2, 0), to=0)]),
    ),
    journal(
        "a move of no group",
        "epoch 0 has .* still to be carried out$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), queued=[Move(group=Prefix(3, 0), to=1)]),
    ),
    journal(
        "a second seal",
        "epoch 1 accepts a second or foreign seal$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), seal=SEALING),
        epoch(3, 1, ends(1, 1, 1), seal=SEALING),
    ),
    journal(
        "a foreign seal",
        "epoch 0 accepts a second or foreign seal$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), seal=seal(ends(6, 6, 6), session=NEXT, next_session=THIRD)),
    ),
    journal(
        "no seal to take back",
        "epoch 1 takes back a seal that is not pending$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1)),
        epoch(3, 1, ends(1, 1, 1), withdrawn="close"),
    ),
    journal(
        "another seal taken back",
        "epoch 1 takes back a seal that is not pending$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), seal=SEALING),
        epoch(3, 1, ends(1, 1, 1), withdrawn="another"),
    ),
    journal(
        "a seal taken back too late",
        "epoch 1 takes back a seal whose end was passed$",
        *BEGUN,
        epoch(2, 0, ends(1, 7, 1), seal=SEALING),
        epoch(3, 1, ends(1, 7, 1), withdrawn="close"),
    ),
    journal(
        "sealed by a seal that was taken back",
        "epoch 1 seals before the session's end$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), seal=SEALING),
        epoch(3, 1, ends(6, 6, 6), withdrawn="close", sealed=sealed(ends(6, 6, 6), 1)),
    ),
    journal(
        "a session that a withdrawal has closed",
        f"epoch 1 writes to closed sessions {{'{NEXT}'}}$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), seal=SEALING),
        epoch(3, 1, ends(7, 7, 7), withdrawn="close", results={NEXT: 1}),
    ),
    journal(
        "a session after itself",
        f"the session after {DAY} cannot come before it$",
        *BEGUN,
        epoch(2, 0, ends(1, 1, 1), seal=seal(ends(6, 6, 6), next_session=DAY)),
    ),
    *(
        journal(
            f"{kind} of a closed session",
            f"epoch 0 writes to closed sessions {{'{NEXT}'}}$",
            *BEGUN,
            epoch(2, 0, ends(1, 1, 1), **{kind: what}),
        )
        for kind, what in {
            "cuts": [cut(0, 0, session=NEXT)],
            "results": {NEXT: 1},
            "spilled_rows": {NEXT: 1},
        }.items()
    ),
    reports(
        "a report too few",
        ReportsWrong,
        r"Epoch 1 needs one report from each of the slots \[0, 1\], got \(slot, epoch\) \[\(0, 1\)",
        report(0, 1),
    ),
    reports(
        "a report twice",
        ReportsWrong,
        r"Epoch 1 needs .*\[\(0, 1\), \(1, 1\), \(1, 1\)\]\. Nothing was journaled",
        report(0, 1),
        report(1, 1),
        report(1, 1),
    ),
    reports(
        "a report of another epoch",
        ReportsWrong,
        r"Epoch 1 needs .*\[\(0, 0\), \(1, 1\)\]",
        report(0, 0),
        report(1, 1),
    ),
    reports(
        "a lost slot in an entry",
        ReportsWrong,
        r"Epoch 1 has lost slots\. Nothing was journaled",
        report(0, 1),
        lost(1, 1),
    ),
    reports(
        "a slot that gave nothing in an entry",
        ReportsWrong,
        r"Epoch 1 has lost slots\. Nothing was journaled",
        report(0, 1),
        lost(1, 1, {0: "gone"}),
    ),
    reports(
        "no manifest",
        ReportsWrong,
        r"Epoch 1: slots \[0\] name no manifest",
        report(0, 1, manifest=None),
        report(1, 1, restored=RESTORED),
    ),
    Case("a seal from nowhere", ReportsWrong, r"Epoch 1 seals without a seal\.", unsealed),
    reports(
        "restored nothing",
        InputChanged,
        "Lost state cannot be restored from Kafka: a/0, offsets 0 to 4, gave 0 rows "
        r"\(digest 0{16}\) where the journal counted 4 \(digest 0{15}7\)\. Was the topic "
        r"emptied or made anew\? Nothing was written; bring the topic's messages back and run it "
        r"again\.$",
        report(0, 1),
        report(1, 1),
    ),
    reports(
        "restored too few",
        InputChanged,
        "Lost state cannot be restored from Kafka: b/0, offsets 0 to 4, gave 3 rows",
        report(0, 1, restored=RESTORED[:1]),
        report(1, 1, restored=[RESTORED[1], count("b", 0, 3)]),
    ),
    reports(
        "restored other rows, as many",
        InputChanged,
        r"Lost state cannot be restored from Kafka: a/0, .* gave 4 rows \(digest 0{15}8\) where",
        report(0, 1, restored=[count("a", 0, 4, 8), *RESTORED[1:]]),
        report(1, 1),
    ),
    reports(
        "restored less state than there was",
        InputChanged,
        "Lost state cannot be restored: slot 1 had 7 rows in memory, and 6 were made again of the "
        "same input",
        report(0, 1, restored=RESTORED, installed_rows=1),
        report(1, 1, installed_rows=6),
        held=7,
    ),
    Case(
        "a past that was not read",
        ValueError,
        "reading again needs all epochs from 0 to 0$",
        unread,
    ),
    driver("a past that nobody asked for", "history came for no plan$", HistoryRead([])),
    driver(
        "an empty journal",
        "the journal is empty: it must begin with a genesis$",
        JournalRead([], {}, TOPICS),
    ),
    driver(
        "a snapshot that hides what is owed",
        "tables lack commits of entries that a snapshot stands for$",
        JournalRead(
            [],
            {"results": -1},
            TOPICS,
            snapshot=replay([*BEGUN, ONE.model_copy(update={"files": [file("results", 0)]})]),
        ),
    ),
    driver("appended nothing", "nothing was being appended$", Appended()),
    driver(
        "applied nothing", "results was not being applied$", Applied("results", 0), READ, Appended()
    ),
    driver(
        "offered before the claim",
        "an epoch was offered while another one is pending$",
        OFFERED,
        READ,
    ),
    driver(
        "offered twice",
        "an epoch was offered while another one is pending$",
        OFFERED,
        READ,
        Appended(),
        OFFERED,
    ),
    driver(
        "rows beyond the limit",
        f"rows were offered that may not be read: {DAY} has 3 results, and",
        Offered(ends(4, 4, 5), [], NEXT, "now"),
        JournalRead([*BEGUN, FULL], {}, TOPICS, max_results=3),
        Appended(),
    ),
    driver("reports of no plan", "reports came for no plan$", Reported([], "now", {}), READ),
    driver("a failure of no job", "a job failed that was not running$", JobFailed("x"), READ),
    driver(
        "an epoch that ends before the last one",
        r"epoch 1 would end at \{'a': \[4, 3\], 'b': \[4\]\}, before ",
        Offered(ends(4, 3, 4), [closing(ends(4, 4, 4))], NEXT, "now"),
        JournalRead([*BEGUN, ONE], {}, TOPICS),
        Appended(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_contradiction_is_refused(case: Case) -> None:
    with pytest.raises(case.error, match=f"^(?:{case.says})") as raised:
        case.act()
    assert type(raised.value) is case.error


def site(case: Case) -> tuple[str, int]:
    """File and line of the `raise` that a case reaches."""
    try:
        case.act()
    except case.error as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert last.lineno is not None
        return Path(last.filename).name, last.lineno
    raise AssertionError(f"{case.name} raises nothing")


def test_every_guard_has_a_case() -> None:
    """Statement by statement: a guard that no case sets off could be taken out unnoticed."""
    guards = {
        (path.name, node.lineno): node.end_lineno or node.lineno
        for path in SOURCE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
    }
    found = [site(case) for case in CASES]
    reached = {
        guard
        for guard, last in guards.items()
        if any(name == guard[0] and guard[1] <= line <= last for name, line in found)
    }
    untested = sorted(f"{name}:{line}" for name, line in guards.keys() - reached)
    assert not untested, f"no case of CASES sets off the raise at {untested}"


def test_an_entry_does_not_know_its_limit_unless_it_is_told() -> None:
    state = replay([*BEGUN, ONE])
    assert state is not None
    plan = plan_epoch(state, ends(5, 5, 5), [], NEXT)
    done = [report(0, 1), report(1, 1)]
    entry = entry_of(state, plan, done, started_at="", written_at="", seconds={})
    assert entry.limit_rows == 0
