"""What people look at: one data function, a terminal view and an HTML report.

| module | idea |
|---|---|
| `model` | `Status`: every figure that is shown anywhere |
| `status`, `detail` | `status.status(...)`: the one data function; what only the report draws |
| `ends` | Kafka's end offsets, without waiting long |
| `looking` | looks again and again |
| `running` | whether anybody obeys a command |
| `groups` | the largest groups, for `spillway status --groups` |
| `decisions` | what was decided, for the terminal |
| `query_tree` | a query's joins, for `spillway explain` |
| `words`, `terminal`, `shown` | numbers as text; `spillway status` |
| `settings` | the settings as a table |
| `several` | several queries, a line for each |
| `svg`, `charts`, `html`, `page_style` | plain SVG; which charts; the page; its colours |

Nothing here imports Spark.
"""
