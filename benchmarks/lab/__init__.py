"""The laboratory: the papers' experiments on the real engine and policies, on a virtual clock.

Model: a *day* is what a workload's description and a seed give: which key each tuple of each
stream has. A *cluster* is some slots whose real steps run one after another in one process, on
tmpfs. A *line* of a figure is one run of a day on a cluster, with rules that say who spills and
who moves. A *figure* is a few lines, and the claims that its paper makes of them.

Invariant: a run counts only when its results are exact. What came at run time and what cleanup
gave must be, group by group, what counts of keys alone say (`exact`), or the run fails.

A *tree* of joins has a day, a cluster and counts of its own (`tree_*`); lines, figures and claims
are the same. Both have their epochs and cleanups done by `job`.

What is virtual is the clock: an epoch is a fixed time of arrivals, whatever it took. So lines
over time say what state was in memory, and nothing of how fast a machine is. Cleanup's seconds
are measured: CPU time of the real cleanup.
"""
