"""The policies that a controller may run, by name: what each needs and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jobs.policy.disk import active_disk, lazy_disk
from jobs.policy.flux import flux_memory
from jobs.policy.view import Advice, View

Setting = float | int | str


@dataclass(frozen=True)
class Policy:
    """A policy and those of the rebalancing settings that it takes, by their names."""

    decide: Callable[..., Advice]
    settings: tuple[str, ...]

    def advise(self, view: View, settings: Mapping[str, Setting]) -> Advice:
        """Ask the policy, with its settings."""
        return self.decide(view, **self.given(settings))

    def given(self, settings: Mapping[str, Setting]) -> dict[str, Setting]:
        """The settings that it takes."""
        return {name: settings[name] for name in self.settings}


POLICIES: dict[str, Policy] = {
    "lazy-disk": Policy(lazy_disk, ("theta_d", "min_span_s")),
    "active-disk": Policy(active_disk, ("theta_d", "min_span_s", "theta_f")),
    "flux-memory": Policy(flux_memory, ("th_imb",)),
}
