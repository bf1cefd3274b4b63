"""What a cleanup does and refuses to do, from the journal alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.cleanup.job import CleanupProgress
from spillway.cleanup.plan import (
    CleanupRefused,
    bytes_across,
    owed,
    sealed_session,
    shares,
    spill_files,
    stages,
    stored_files,
)
from spillway.cleanup.progress import ProgressLines
from spillway.cleanup.task import RangeDone
from spillway.engine.spill.source import SpillIndex
from spillway.engine.spill.spillfile import RowGroups, SpillFile
from spillway.protocol.seal import CLEANUP_DEPTH, cleanup_ranges, flushed, not_sealed
from spillway.protocol.state import AnotherQuery, replay
from spillway_schemas.filenames import cleanup_name
from spillway_schemas.hash_space import ROOT, above, join_of, spaces
from spillway_schemas.journal import (
    HASH_BITS,
    Claim,
    Epoch,
    FileRecord,
    Genesis,
    Prefix,
    Sealed,
    SealRequest,
    Topic,
)
from tests.commands import command_of

DAY, NEXT = "2026-01-05", "2026-01-06"
AT = "2026-01-05T21:00:00Z"


def record(table: str, path: str, day: str = DAY) -> FileRecord:
    return FileRecord(
        table=table,
        path=path,
        bytes=10,
        rows=1,
        digest=f"sha256:{path}",
        partition={"session_date": day},
    )


def journal(*, sealed: bool = False, pending: bool = False, files=()):
    """Genesis, claim, epoch 0 (with the files) and, when asked for, a seal."""
    start, end = {"t": [0]}, {"t": [5]}
    request = SealRequest(session=DAY, end=end, next_session=NEXT, command="c")
    entries = [
        Genesis(
            warehouse_id="w",
            cluster_id="c",
            topics=[Topic(name="t", id="x", partitions=1)],
            query="q",
            session=DAY,
            start=start,
            start_rule="earliest",
            inputs=2,
            groups=[(Prefix(0, 0), 0)],
            written_at=AT,
        ),
        Claim(n=1, term=1, driver="d", written_at=AT),
    ]
    common = {
        "term": 1,
        "cuts": [],
        "read": [],
        "results": {},
        "slots": [],
        "manifests": {0: None},
        "started_at": AT,
        "written_at": AT,
    }
    entries.append(Epoch(n=2, epoch=0, session=DAY, end=start, files=list(files), **common))
    if sealed or pending:
        done = Sealed(
            session=DAY,
            epoch=1,
            start=start,
            end=end,
            ranges=[],
            results=0,
            spilled_rows=0,
            generations=0,
        )
        entries.append(
            Epoch(
                n=3,
                epoch=1,
                session=NEXT if sealed else DAY,
                end=end if sealed else start,
                files=[],
                seal=request,
                sealed=done if sealed else None,
                **common,
            )
        )
    return entries


def test_sessions_that_there_are_are_named_in_order():
    state = replay(journal(sealed=True))
    two = replace(state, sealed={**state.sealed, "2026-01-02": state.sealed[DAY]})
    assert not_sealed(two, "2025-12-31", []) == (
        f"session 2025-12-31 is not in the journal (sealed: 2026-01-02, {DAY}; open: {NEXT})"
    )
    assert not_sealed(replay(journal()), NEXT, []).endswith(f"(sealed: none; open: {DAY})")
    [today] = replay(journal()).sessions
    both = replace(state, sessions=(today, replace(today, date=NEXT)))
    assert not_sealed(both, "2025-12-31", []).endswith(f"open: {DAY}, {NEXT})")


def test_a_seal_that_the_stream_has_not_read_is_pending():
    state, end = replay(journal()), {"a": [9], "b": [9], "c": [9]}
    asked = command_of("seal", "s", session=DAY, offsets=end)
    back = command_of("withdraw", "w", session=DAY, seal="s")
    assert "is being sealed" in not_sealed(state, DAY, [asked])
    assert "more rows may come" in not_sealed(state, DAY, [asked, back])
    assert "not in the journal" in not_sealed(state, NEXT, [asked])


def test_ranges_of_any_width_are_cleaned_up_in_units_of_one():
    """Of 64: narrower ones lie in one unit, wider ones are several."""
    narrow = [Prefix(9, 0b101_001_111), Prefix(9, 0b101_001_000), Prefix(40, 2**40 - 1)]
    assert cleanup_ranges(narrow) == [Prefix(6, 0b101_001), Prefix(6, 63)]
    assert cleanup_ranges([Prefix(6, 7), Prefix(4, 1)]) == [Prefix(6, v) for v in (4, 5, 6, 7)]
    assert cleanup_ranges([Prefix(0, 0)]) == [Prefix(6, v) for v in range(64)]
    assert cleanup_ranges([]) == []


def test_a_sealed_session_is_found():
    assert sealed_session(replay(journal(sealed=True)), DAY, "q", []).epoch == 1
    assert sealed_session(replay(journal(sealed=True)), DAY, "", []).session == DAY


def test_another_querys_warehouse_is_refused():
    with pytest.raises(AnotherQuery, match=r"or the query's own warehouse\.root"):
        sealed_session(replay(journal(sealed=True)), DAY, "other", [])


@pytest.mark.parametrize(
    ("entries", "session", "query", "why"),
    [
        (journal(), DAY, "q", f"not sealed.*spillway seal --session {DAY}"),
        (journal(pending=True), DAY, "q", f"being sealed.*--until-sealed {DAY}"),
        (journal(sealed=True), NEXT, "q", "not sealed"),
        (journal(sealed=True), "2025-12-31", "q", f"not in the journal.*{DAY}.*{NEXT}"),
    ],
)
def test_refusals_say_why(entries, session, query, why):
    with pytest.raises(CleanupRefused, match=f"(?s){why}"):
        sealed_session(replay(entries), session, query, [])


def test_what_tables_owe_up_to_the_seal():
    entries = journal(sealed=True, files=[record("spill", "a"), record("results", "b")])
    behind = owed(entries, {"spill": -1, "results": 0}, 1)
    assert [(a.table, a.epoch) for a in behind] == [("spill", 0)]
    assert owed(entries, {"spill": 0, "results": 0}, 1) == ()
    # What comes after the seal is another session's business.
    assert owed(entries, {"spill": -1, "results": -1}, -1) == ()


def test_spill_files_are_the_sessions_own_with_the_journals_digests():
    entries = journal(
        files=[record("spill", "b"), record("spill", "a"), record("spill", "z", NEXT)]
    )
    found = spill_files(entries, {"a": 10, "b": 10}, DAY)
    assert found == (SpillFile("a", 10, "sha256:a"), SpillFile("b", 10, "sha256:b"))


@pytest.mark.parametrize(
    ("in_table", "why"),
    [
        ({"a": 10}, "the journal names but the spill table does not, b among"),
        ({"a": 10, "b": 10, "x": 10}, "the spill table names but the journal does not, x among"),
    ],
)
def test_tables_and_journal_must_agree(in_table, why):
    entries = journal(files=[record("spill", "a"), record("spill", "b")])
    with pytest.raises(CleanupRefused, match=why):
        spill_files(entries, in_table, DAY)


def index_of(weights: dict[int, int], depth: int) -> SpillIndex:
    """One row group for each prefix."""
    prefixes = [Prefix(depth, v) for v in weights]
    n = len(prefixes)
    zeros = np.zeros(n, np.int64)
    return SpillIndex(
        (SpillFile("a", 1),),
        RowGroups(
            file=zeros,
            group=np.arange(n),
            operator=zeros,
            input=zeros,
            lo=np.array([p.lo for p in prefixes], np.uint64),
            hi=np.array([p.hi - 1 for p in prefixes], np.uint64),
            rows=zeros + 1,
            bytes=np.array(list(weights.values()), np.int64),
        ),
    )


MB = 2**20


def test_shares_balance_bytes_and_keep_the_numbers_in_order():
    weights = dict.fromkeys(range(16), 10 * MB) | {5: 200 * MB}
    ranges = [Prefix(4, v) for v in range(16)]
    found = shares(list(enumerate(ranges))[3:], index_of(weights, 4), cores=2)
    units = [unit for share in found for unit in share.units]
    assert units == [(n, ranges[n]) for n in range(3, 16)]
    assert any(share.units == ((5, ranges[5]),) for share in found)
    assert 5 <= len(found) <= 13
    assert shares([], index_of(weights, 4), cores=2) == []


def test_row_groups_across_borders_make_fewer_tasks():
    """Each of them would be read by the tasks on both sides."""
    ranges = [Prefix(4, v) for v in range(16)]
    narrow = index_of(dict.fromkeys(range(16), 10 * MB), 4)
    wide = index_of(dict.fromkeys(range(4), 40 * MB), 2)
    units = list(enumerate(ranges))
    assert [len(share.units) for share in shares(units, narrow, cores=1)] == [3, 2, 3, 3, 2, 3]
    assert [len(share.units) for share in shares(units, wide, cores=2)] == [4, 4, 4, 4]
    # Three of fifteen borders lie between row groups; across each of the others lie 40 MB.
    assert bytes_across(wide, ranges) == pytest.approx(40 * MB * 12 / 15)
    assert bytes_across(narrow, ranges) == 0
    assert bytes_across(narrow, ranges[:1]) == 0


def test_tasks_are_as_many_as_may_be_read_twice():
    """Eight row groups of two ranges each: half of the borders are crossed."""
    ranges = [Prefix(4, v) for v in range(16)]
    index = index_of(dict.fromkeys(range(8), 20 * MB), 3)
    # 160 MB, of which a quarter may be read twice; across a border lie 20 MB * 8 / 15.
    affordable = 1 + 0.25 * 160 / (20 * 8 / 15)
    assert len(shares(list(enumerate(ranges)), index, cores=1)) == int(affordable) == 4


def test_no_task_is_too_long_to_see_progress():
    ranges = [Prefix(4, v) for v in range(16)]
    wide = index_of(dict.fromkeys(range(2), 2048 * MB), 1)
    assert [len(share.units) for share in shares(list(enumerate(ranges)), wide, cores=1)] == [2] * 8


def test_little_work_is_one_share():
    ranges = [Prefix(4, v) for v in range(16)]
    found = shares(list(enumerate(ranges)), index_of({3: 1000}, 4), cores=8)
    assert len(found) == 1
    assert found[0].last == 15


def test_numbers_that_are_not_in_hash_order_stay_as_they_are():
    ranges = [Prefix(2, 1), Prefix(2, 3), Prefix(2, 0), Prefix(2, 2)]
    found = shares(list(enumerate(ranges)), SpillIndex.of([]), cores=2)
    assert [[n for n, _ in share.units] for share in found] == [[0, 1], [2, 3]]


def test_rows_of_a_range():
    assert RangeDone(0, (record("results", "a"), record("results", "b")), 0.0).rows == 2


def test_progress_is_a_line_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The first range, the last, and not more than one a second in between."""
    lines = ProgressLines(DAY)
    lines.starting("Spark")
    for done in range(101):
        lines.show(CleanupProgress(done, 100, 10 * done, done * 0.03))
    told = capsys.readouterr()
    assert told.out == "", "standard output is for the outcome"
    assert told.err.splitlines() == [
        f"cleanup {DAY}: starting Spark",
        *(
            f"cleanup {DAY}: {done} of 100 ranges, {rows} results, {seconds} s"
            for done, rows, seconds in (
                (0, "0", "0.0"),
                (34, "340", "1.0"),
                (68, "680", "2.0"),
                (100, "1,000", "3.0"),
            )
        ),
    ]


def test_ranges_of_any_depth_are_cleaned_up_in_ranges_of_one() -> None:
    deep = Prefix(CLEANUP_DEPTH + 3, 0b1011)
    assert cleanup_ranges([deep]) == [Prefix(CLEANUP_DEPTH, 1)]
    wide = Prefix(CLEANUP_DEPTH - 1, 5)
    assert cleanup_ranges([deep, wide]) == [Prefix(CLEANUP_DEPTH, value) for value in (1, 10, 11)]


def texts(ranges: Sequence[Prefix]) -> str:
    return " ".join(each.text for each in ranges)


def ranges_of(text: str) -> list[Prefix]:
    return [Prefix.parse(each) for each in text.split()]


CHAIN, BUSHY = (1, 2, ROOT), (2, 2, ROOT)
"""Spaces are 2/0, 2/1 and 1/1: joins 0, 1 and the root."""


@pytest.mark.parametrize(
    ("parents", "cut", "expected"),
    [
        ((ROOT,), "", ""),
        ((ROOT,), "2/3 9/17 0/0", "0/0 2/3 9/17"),
        (CHAIN, "", ""),
        # Of the root nothing lies above.
        (CHAIN, "3/7", "3/7"),
        (CHAIN, "4/5", "1/1 4/5"),
        (CHAIN, "4/1", "1/1 2/1 4/1"),
        (CHAIN, "4/1 4/5 3/7", "1/1 2/1 3/7 4/1 4/5"),
        (BUSHY, "4/1", "1/1 4/1"),
        (BUSHY, "4/1 4/5", "1/1 4/1 4/5"),
        # A cut of several joins is one of each.
        (CHAIN, "1/0", "1/0 1/1 2/1"),
    ],
)
def test_joins_above_one_that_was_cut_are_flushed_whole(
    parents: tuple[int, ...], cut: str, expected: str
) -> None:
    assert texts(flushed(parents, ranges_of(cut))) == expected


def test_of_an_outer_join_all_is_flushed() -> None:
    """Which keys lack rows is known at the close alone."""
    assert texts(flushed((ROOT,), [], outer=True)) == "0/0"
    assert texts(flushed((ROOT,), ranges_of("9/17"), outer=True)) == "0/0 9/17"


@pytest.mark.parametrize(
    ("joins", "cut", "expected"),
    [
        (1, "9/17", "6/2"),
        (2, "9/17", "7/4"),
        (3, "9/17", "8/8"),
        (3, "9/17 40/1", "8/0 8/8"),
        # Of the root wider ones: it has twice as many hashes.
        (3, "9/511 9/0 9/130", "8/0 8/65 7/127"),
        (3, "7/66 7/65", "7/65 7/66"),
        (3, "6/33 9/511 9/510", "7/66 7/67 7/127"),
        (3, "", ""),
    ],
)
def test_units_of_a_tree_are_those_of_its_joins_one_after_the_other(
    joins: int, cut: str, expected: str
) -> None:
    assert texts(cleanup_ranges(ranges_of(cut), joins)) == expected


@pytest.mark.parametrize("joins", [1, 2, 3, 4, 5])
def test_all_hashes_are_as_many_units_of_each_join(joins: int) -> None:
    found = cleanup_ranges([Prefix(0, 0)], joins)
    assert Counter(join_of(each, joins) for each in found) == dict.fromkeys(range(joins), 64)
    assert found[0].lo == 0
    assert [a.hi for a in found] == [*(b.lo for b in found[1:]), 1 << HASH_BITS]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[Prefix]]:
    """Parents of a tree's joins, children first, and ranges of them that were cut."""
    joins = draw(st.integers(1, 6))
    parents = [*(draw(st.integers(k + 1, joins - 1)) for k in range(joins - 1)), ROOT]
    depths = st.integers(0, 9)
    cut = [
        spaces(joins)[draw(st.integers(0, joins - 1))].part(Prefix(depth, (1 << depth) // 3))
        for depth in draw(st.lists(depths, max_size=4))
    ]
    return parents, cut


@given(trees())
def test_what_a_seal_flushes_is_cleaned_up_from_the_leaves_to_the_root(
    tree: tuple[list[int], list[Prefix]],
) -> None:
    parents, cut = tree
    kept = flushed(parents, cut)
    units = cleanup_ranges(kept, len(parents))
    owners = [join_of(each, len(parents)) for each in units]
    was_cut = {join_of(each, len(parents)) for each in cut}
    assert set(owners) == was_cut | set(above(parents, was_cut))
    # Every row that is flushed lies in one unit, and a join above one that was cut in 64.
    assert all(a.hi <= b.lo for a, b in pairwise(units))
    for each in kept:
        inside = [unit for unit in units if unit.overlaps(each)]
        assert inside
        assert inside[0].lo <= each.lo
        assert each.hi <= inside[-1].hi
    for join in above(parents, was_cut):
        assert owners.count(join) == 64
    # Numbered in this order: a join comes after all below it, also in stages.
    assert owners == sorted(owners)
    found = stages(units, parents)
    assert [join for stage in found for join in stage] == sorted(set(owners))
    stage_of = {join: n for n, stage in enumerate(found) for join in stage}
    for join in stage_of:
        assert all(stage_of[each] > stage_of[join] for each in above(parents, [join]))


@pytest.mark.parametrize(
    ("parents", "cut", "expected"),
    [
        ((ROOT,), "6/1 6/2", [[0]]),
        ((ROOT,), "", []),
        (CHAIN, "8/0 8/65 7/127", [[0], [1], [2]]),
        (BUSHY, "8/0 8/65 7/127", [[0, 1], [2]]),
        (BUSHY, "7/127", [[2]]),
    ],
)
def test_joins_that_do_not_read_each_other_are_cleaned_at_once(
    parents: tuple[int, ...], cut: str, expected: list[list[int]]
) -> None:
    assert stages(ranges_of(cut), parents) == expected


def test_what_a_cleanup_has_stored_is_no_entry_s() -> None:
    """Rows of the joins above: the journal does not name them, and who goes on needs them."""
    stored = f"session_date={DAY}/{cleanup_name(DAY, 3, 'aaaaaaaaaaaa', 0)}"
    other = f"session_date={DAY}/{cleanup_name(DAY, 12, 'bbbbbbbbbbbb', 1)}"
    in_table = {"a": 10, other: 7, stored: 9}
    entries = journal(files=[record("spill", "a")])
    assert spill_files(entries, in_table, DAY) == (SpillFile("a", 10, "sha256:a"),)
    assert stored_files(in_table) == tuple(
        SpillFile(p, in_table[p]) for p in sorted((stored, other))
    )
    assert stored_files({"a": 10}) == ()
