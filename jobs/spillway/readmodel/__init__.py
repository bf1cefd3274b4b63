"""The read model: what follows from journal, statistics and commands, for all who decide or show.

The controller, `status`, the page, the report and the metrics stand on one `ReadModel`: the
protocol's own `JournalState`, and the sums of `Tally`, which nothing in the protocol needs. It is
incremental: only entries that are new are read.

| module | what it has |
|---|---|
| `model` | the read model after one entry, and how it is written |
| `tally` | the sums (pure) |
| `adaptations` | the history of decisions (pure) |
| `kept` | the models that a warehouse keeps, for those who look for the first time |
| `cache` | the model and more, kept from look to look (a cache of this machine) |
| `groups` | what `statistics` says of each group now |
| `joins` | what each join of a tree holds and gives |
| `hottest` | the keys that most rows have |
| `event_time` | how far the time of a query with windows has come |
| `clocks`, `disks` | hosts whose clocks are wrong, disks that are slow |
| `waiting` | what was asked for and not answered |
"""
