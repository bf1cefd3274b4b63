"""Figures as a scrape gives them, taken apart by Prometheus' own Python parser."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""By name and sorted labels."""


def parsed(text: str) -> Samples:
    """Every sample of a text."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(listen: str) -> Samples:
    """What is served at `host:port` now; empty when nothing answers."""
    try:
        with urllib.request.urlopen(f"http://{listen}/metrics", timeout=5) as answer:
            return parsed(answer.read().decode())
    except OSError:
        return {}


def figure(samples: Samples, name: str, **labels: str) -> float | None:
    """One sample; None when it is not there."""
    return samples.get((name, tuple(sorted(labels.items()))))


def total(samples: Samples, name: str) -> float:
    """The sum over all labels."""
    return sum(each for (found, _), each in samples.items() if found == name)
