"""The judgement of one batch of keys: Arrow in, exact totals and failing keys out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway.decode import compile_query
from spillway.protocol.seal import carried_from
from spillway.sealed_input.decoding import TIMED, decoded
from spillway.sealed_input.timing import Timing, timing_of
from spillway.verify import workers
from spillway.verify.arithmetic import CERTAIN, PRIMES
from spillway.verify.verdicts import TOTALS
from spillway.verify.workers import FOLDED, judged_tree
from spillway_schemas.journal import Carried
from spillway_schemas.query import load_query
from spillway_schemas.windows import Judging
from tests.carrying import Carrying
from tests.chunked import chunks
from tests.protocol_entries import NEXT, ends, sealed

KEY = pa.field("symbol", pa.string())
SCHEMA = pa.schema([KEY, *TOTALS])


def totals(found: list[pa.RecordBatch]) -> dict[str, Any]:
    """The first row, which holds the totals, without its null key."""
    first = found[0].slice(0, 1).to_pylist()[0]
    assert first.pop("symbol") is None
    return dict(first)


def tree_batch(*rows: tuple[str | None, list[Any]]) -> pa.RecordBatch:
    """One row a key: what the fold gives, then what the results are."""
    columns: list[Any] = [pa.array([key for key, _ in rows], KEY.type)]
    for i, type_ in enumerate(FOLDED.values()):
        kind = pa.float64() if type_ == "double" else pa.int64()
        columns.append(pa.array([numbers[i] for _, numbers in rows], kind))
    return pa.RecordBatch.from_arrays(columns, names=["symbol", *FOLDED])


OF_TREE: list[Any] = [6, 6, 6.0, 150, 280, 4, 2, 150 + PRIMES[0], 280 + 3 * PRIMES[1]]
"""6 results, of which cleanup gave 2; the results' sums are not reduced."""


def test_keys_of_a_tree_and_rejected_rows_are_judged_apart() -> None:
    many = 2**40 + 1
    large = [many % PRIMES[0], many % PRIMES[1], float(many), 1, 2, many, 0, 1, 2]
    rejected = (None, [3, 0, 0.0, 11, 12, 3, 0, 11, 12])
    batches = [tree_batch(), tree_batch(("A", OF_TREE), rejected, ("B", large)), tree_batch()]
    found = list(judged_tree(1, SCHEMA, batches))
    assert len(found) == 1
    assert list(totals(found).values()) == [str(many + 6), many + 4, 2, 2, 0, 3, 3, 0]


@pytest.mark.parametrize("at", range(len(FOLDED)))
def test_a_key_of_a_tree_that_differs_in_anything_is_named(at: int) -> None:
    wrong = [n + (2 * CERTAIN if i == 2 else 1) * (i == at) for i, n in enumerate(OF_TREE)]
    found = list(judged_tree(1, SCHEMA, [tree_batch(("A", OF_TREE), ("B", wrong))]))
    assert totals(found)["failing"] == 1
    assert found[1].column(0).to_pylist() == ["B"]


def test_no_more_keys_are_named_than_show_that_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "FEW_KEYS", 2)
    wrong = [7, *OF_TREE[1:]]
    for failing, named in ((2, 2), (3, 3), (5, 3)):
        keys = [(name, wrong) for name in "BCDEF"[:failing]]
        found = list(judged_tree(1, SCHEMA, [tree_batch(("A", OF_TREE), *keys)]))
        assert totals(found)["failing"] == failing
        assert found[1].to_pylist() == [
            {"symbol": name} | dict.fromkeys(TOTALS.names) for name in "BCDEF"[:named]
        ]


def test_a_measure_that_is_missing_is_not_taken_for_a_number() -> None:
    with pytest.raises(pa.ArrowInvalid, match="with 1 null"):
        list(judged_tree(1, SCHEMA, [tree_batch(("A", OF_TREE), ("B", [None, *OF_TREE[1:]]))]))


def test_a_key_of_a_tree_without_results_or_without_rows_is_named() -> None:
    nothing = [0, 0, 0.0, 0, 0]
    keys = [("A", [*OF_TREE[:5], 0, 0, 0, 0]), ("B", [*nothing, *OF_TREE[5:]])]
    found = list(judged_tree(1, SCHEMA, [tree_batch(*keys)]))
    assert list(totals(found).values())[:5] == ["6", 4, 2, 2, 2]


@pytest.mark.parametrize(
    "quarantined", [[2, 0, 11, 12], [3, 0, 11 + PRIMES[0], 12], [3, 0, 11, 12 + PRIMES[1]]]
)
def test_of_a_tree_the_quarantine_must_hold_just_the_rejected_rows(quarantined: list[Any]) -> None:
    rejected = (None, [3, 0, 0.0, 11, 12, *quarantined])
    found = list(judged_tree(1, SCHEMA, [tree_batch(("A", OF_TREE), rejected)]))
    assert len(found) == 1, "the null key is no failing key"
    assert list(totals(found).values()) == ["6", 4, 2, 1, 0, 3, quarantined[0], 1]


PLAN = compile_query(load_query("symbol_window")).streams[1]
"""Of `volume`, by `ts`."""


def test_rows_of_an_earlier_session_are_carried_and_what_it_rejected_is_not_looked_at() -> None:
    """The session begins at offset 3."""
    good = b'{"symbol": "A", "ts": "2026-01-05T10:00:00Z", "shares": 1}'
    values = [good, b"not json", good, good, b"not json"]
    n = len(values)
    raw = pa.RecordBatch.from_arrays(
        [
            pa.array([PLAN.topic] * n),
            pa.array([0] * n, pa.int32()),
            pa.array(range(n)),
            pa.array(values, pa.binary()),
            pa.array([1_767_607_200_000_000] * n, pa.timestamp("us", "UTC")),
        ],
        names=["topic", "partition", "offset", "value", "timestamp"],
    )
    place = (PLAN.topic, 0)
    timing = Timing(10**9, {place: Judging.by_epochs([])}, {place: 3})
    schema = pa.schema(
        [
            *(pa.field(f"k{i}", field.type) for i, field in enumerate(PLAN.keys)),
            *(pa.field(f"p{i}", field.type) for i, field in enumerate(PLAN.payload)),
            *TIMED,
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("kept", pa.bool_()),
        ]
    )
    found = pa.Table.from_batches(decoded(PLAN, schema, timing, chunks([raw]))).select(
        ["offset", "kept", "carried"]
    )
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
        (0, True, True),
        (2, True, True),
        (3, True, False),
        (4, False, None),
    ]


def test_the_proof_reads_what_is_carried_and_judges_it_by_one_time() -> None:
    day = Carrying()
    day.seals()
    day.epoch(ends(30, 30, 30), session=NEXT)
    record = sealed(
        ends(30, 30, 30), 8, session=NEXT, start=ends(22, 24, 24), carried=day.state.session.carried
    )
    genesis = day.state.genesis
    assert carried_from(genesis, record, day.history) == ends(12, 12, 12)
    timing = timing_of(genesis, record, day.history[2:])
    assert timing is not None
    assert timing.begins == {("a", 0): 22, ("a", 1): 24, ("b", 0): 24}
    # Rows of epochs 3 and 4, judged by the watermarks after epochs 2 and 3.
    assert timing.judgings["a", 0].of(np.array([12, 15, 16])).tolist() == [200, 200, 300]
    first = sealed(ends(22, 24, 24), 6)
    assert carried_from(genesis, first, day.history) == first.start
    of_all = record.model_copy(update={"carried": Carried(since=-1, expired_by_us=0)})
    assert carried_from(genesis, of_all, day.history) == genesis.start
