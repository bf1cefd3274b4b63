"""Scenarios of a test's own, and how many results they have."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from spillway.produce.generate import sources
from spillway_schemas.scenario import Scenario, load_scenario


def parse_scenario(text: str) -> Scenario:
    """A scenario from TOML text. Raises ScenarioError."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.toml"
        file.write_text(text)
        return load_scenario(str(file))


def expected_results(scenario: Scenario) -> int:
    """Results of the join of all streams on the symbol: the sum over keys of the products."""
    product = np.int64(1)
    for source in sources(scenario):
        counts = np.zeros(len(source.domain), dtype=np.int64)
        for plan in source.plan:
            counts += np.bincount(source.keys_of(plan.number), minlength=len(counts))
        product = product * counts
    return int(product.sum())
