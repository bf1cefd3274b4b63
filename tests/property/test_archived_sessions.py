"""The archive and what stays in the table are the journal as it was, wherever it is cut.

The journals are generated: sessions of epochs and claims, with files, with rows beyond a session's
end, in commits of any size. The reference is the list of the entries themselves.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from spillway.maintenance import maintain
from spillway.protocol.state import replay
from spillway.readmodel.kept import followed
from spillway_schemas.filenames import Archived, archive_name, archive_origin
from spillway_schemas.journal import Epoch
from tests.archived_journal import DAYS, filled, journal_of, prove, seals
from tests.lanes import explored
from tests.report_journal import model_of

sessions = st.lists(st.text("eefxco", min_size=1, max_size=12), min_size=3, max_size=6)


@explored(2, 8, sessions, st.integers(0, 2**16), st.lists(st.integers(1, 3), max_size=3))
def test_archive_and_table_are_the_journal(steps: list[str], seed: int, proofs: list[int]) -> None:
    """Kills: a cut one entry off, an archive that lacks files, one that is read twice."""
    entries = journal_of(steps, seed)
    ends = seals(entries)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "w"
        journal = (warehouse := filled(root, entries, seed)).journal
        proved = 0
        for more in [*proofs, len(steps)]:
            days = DAYS[:-1][: len(steps) - 1]
            prove(warehouse, days[proved : proved + more])
            proved = min(proved + more, len(days))
            maintain(warehouse, keep_spilled_days=0, keep_statistics_days=0, archive_journal_days=0)
            gone = days[: max(0, proved - 1)]  # with the next one's first rows, which is proved
            assert journal.first_n() == (ends[gone[-1]] + 1 if gone else 0)
            for name in ("snapshots", "readmodels"):
                shutil.rmtree(root / name, ignore_errors=True)
            assert journal.read_on() == (None, entries)
            assert journal.state() == replay(entries)
            assert followed(None, journal.heads()) == model_of(entries)
            for n in range(len(entries)):
                assert journal.read(n) == entries[n:]
            for ended in (e.sealed for e in entries if isinstance(e, Epoch) and e.sealed):
                proof = journal.read_session(ended)
                begins = next(k for k, e in enumerate(entries) if of_epoch(e) > ended.base)
                assert proof[-len(entries[begins:]) :] == entries[begins:], "the proof's input"
            assert warehouse.check() == []
        names = [archive_origin(path.name) for path in (root / "archive").iterdir()]
        assert sorted(each.session for each in names if each) == days[:-1], "one file a session"


def of_epoch(entry: object) -> int:
    return entry.epoch if isinstance(entry, Epoch) else -1


numbers = st.integers(0, 10**9)
hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
dates = st.sampled_from(DAYS)


@given(dates, numbers, numbers, hexes)
def test_names_of_archives_are_known(day: str, one: int, other: int, digest: str) -> None:
    first, last = sorted((one, other))
    archived = Archived(day, first, last, digest[:12], digest)
    assert archive_origin(archive_name(archived)) == archived


@given(
    st.from_regex(
        r"[0-9]{4}-[01]?[0-9]-[0-3]?[0-9](-0?[0-9]{1,4}){1,3}-[0-9a-fA-F]{12,16}-[0-9a-f]{63,65}"
        r"\.parquet\n?",
        fullmatch=True,
    )
    | st.text()
)
@example(f"2026-01-05-7-3-aaaaaaaaaaaa-{'0' * 64}.parquet")
@example(f"2026-02-30-3-7-aaaaaaaaaaaa-{'0' * 64}.parquet")
def test_only_what_would_be_written_so_is_an_archive(name: str) -> None:
    found = archive_origin(name)
    assert found is None or archive_name(found) == name
