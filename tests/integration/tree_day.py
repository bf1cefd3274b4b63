"""A day of the five-way tree on the real parts: `((A B C on k1) D on k2) E on k3`."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.integration.day import LATE, Day, chained

STREAMS = ("a", "b", "c", "d", "e")
FIELDS = {
    "a": {"a1": "string", "note": "string"},
    "b": {"b1": "string"},
    "c": {"c1": "string", "c2": "int", "n": "int"},
    "d": {"d1": "int", "d2": "string"},
    "e": {"e1": "string", "n": "int"},
}
JOINS = """
[join.abc]
inputs = ["a", "b", "c"]
on = [{ name = "k1", columns = { a = "a1", b = "b1", c = "c1" } }]

[join.abcd]
inputs = ["abc", "d"]
on = [{ name = "k2", columns = { abc = "c.c2", d = "d1" } }]

[join.abcde]
inputs = ["abcd", "e"]
on = [{ name = "k3", columns = { abcd = "d.d2", e = "e1" } }]

[results]
columns = ["a.note", "c.n", "e.n"]
"""


def tree_messages(seed: int, rows: int, keys: int) -> list[tuple[str, bytes]]:
    """`rows` (stream, value) pairs in random order, a few of them broken."""
    rng = random.Random(seed)
    made = []
    for number in range(rows):
        stream = rng.choice(STREAMS)
        # Skewed: a tenth of the keys has a third of the rows.
        one, two, three = (rng.randrange(keys // 10 if rng.random() < 0.3 else keys) for _ in "123")
        body: dict[str, Any] = {
            "a": {"a1": f"K{one}", "note": f"{seed}/{number}"},
            "b": {"b1": f"K{one}"},
            "c": {"c1": f"K{one}", "c2": two, "n": number},
            "d": {"d1": two, "d2": f"D{three}"},
            "e": {"e1": f"D{three}", "n": number},
        }[stream]
        value = json.dumps(body).encode()
        if rng.random() < 0.01:
            value = rng.choice([b"", value[:-2], b'{"c1": null}'])
        made.append((stream, value))
    return made


@dataclass
class TreeDay(Day):
    """One warehouse of the five-way tree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lines = []
        for stream, topic in self.topics.items():
            fields = ", ".join(f"{name} = '{kind}'" for name, kind in FIELDS[stream].items())
            lines += [f"[streams.{stream}]", f'topic = "{topic}"', f"fields = {{ {fields} }}", ""]
        (self.folder / "query.toml").write_text("\n".join(lines) + JOINS)

    def expected(self, session: str) -> Counter[tuple[Any, ...]]:
        """Brute force over what Kafka holds of a sealed session: coordinates and shown values."""
        sealed = self.sealed(session)
        rows: dict[str, list[tuple[tuple[int, int], dict[str, Any]]]] = {}
        late = self.late()
        for stream, found in self.read_topics().items():
            topic = self.topics[stream]
            start, end = sealed["start"][topic], sealed["end"][topic]
            rows[stream] = [
                ((p, o), body)
                for p, o, value in found
                if start[p] <= o < end[p] and (body := _accepted(stream, value)) is not None
            ] + late.get(stream, [])
        by = {
            stream: _by(rows[stream], column)
            for stream, column in (("b", "b1"), ("c", "c1"), ("d", "d1"), ("e", "e1"))
        }
        made: Counter[tuple[Any, ...]] = Counter()
        for a, left in rows["a"]:
            for b, _ in by["b"][left["a1"]]:
                for c, mid in by["c"][left["a1"]]:
                    for d, right in by["d"][mid["c2"]]:
                        for e, last in by["e"][right["d2"]]:
                            keys = (left["a1"], mid["c2"], right["d2"])
                            shown = (left["note"], mid["n"], last["n"])
                            made[*keys, *shown, *a, *b, *c, *d, *e] += 1
        return made

    def correct(self, session: str, late: Sequence[tuple[str, bytes]]) -> None:
        """Add late (stream, value) rows to a proved session, and prove it again."""
        file = self.write_late(late)
        correct = ["correct", "--session", session, file, "--reason", "a feed was down"]
        self.ok(*chained(correct, ["verify", "--session", session]), timeout_s=300)

    def late(self) -> dict[str, list[tuple[tuple[int, int], dict[str, Any]]]]:
        """The rows of the session's one correction."""
        found = defaultdict(list)
        if (file := self.folder / LATE).exists():
            names = {topic: stream for stream, topic in self.topics.items()}
            for number, line in enumerate(file.read_text().splitlines(), 1):
                row = json.loads(line)
                found[names[row["topic"]]].append(((-1, number), row["value"]))
        return found

    def check(self, session: str) -> Counter[str]:
        """Compare the session's results with brute force; the number of results of each phase."""
        got: Counter[tuple[Any, ...]] = Counter()
        phases: Counter[str] = Counter()
        for row in self.results(session):
            where = [row[f"{s}_{part}"] for s in STREAMS for part in ("partition", "offset")]
            shown = [row[name] for name in ("k1", "k2", "k3", "a_note", "c_n", "e_n")]
            got[*shown, *where] += 1
            phases[row["phase"]] += 1
        expected = self.expected(session)
        missing, surplus = expected - got, got - expected
        assert not missing, f"{missing.total()} missing, e.g. {next(iter(missing))}"
        assert not surplus, f"{surplus.total()} too many, e.g. {next(iter(surplus))}"
        return phases


def _by(
    rows: Sequence[tuple[tuple[int, int], dict[str, Any]]], column: str
) -> dict[Any, list[tuple[tuple[int, int], dict[str, Any]]]]:
    found: dict[Any, list[tuple[tuple[int, int], dict[str, Any]]]] = defaultdict(list)
    for where, body in rows:
        found[body[column]].append((where, body))
    return found


def _accepted(stream: str, value: bytes | None) -> dict[str, Any] | None:
    try:
        body = json.loads((value or b"").decode())
    except ValueError:
        return None
    good = isinstance(body, dict) and all(body.get(name) is not None for name in FIELDS[stream])
    return body if good else None
