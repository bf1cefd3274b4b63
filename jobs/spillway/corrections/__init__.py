"""Corrections: late rows for a session that is closed, joined with its input.

Model: a correction is one more epoch of a closed session. Its rows are new, all rows that the
session has had are old, and the join's kernel gives the combinations with at least one new row, as
it does at run time. Of a tree of joins Spark makes them from the leaves' rows. With inputs A_i and
rows D_i that come to them, these are the join of the A_i + D_i without that of the A_i: a
combination of the enlarged input has a new row, or is there.

| module | idea |
|---|---|
| `rows` | messages, those of a file first, as a correction's rows; what is wrong with them |
| `topics` | what a topic holds that no correction has read |
| `closed` | which sessions can be corrected |
| `kept` | their revisions in the tables |
| `task` | what runs in Spark's workers: rows of one part of the hashes in, results out |
| `leaves` | which rows of a tree's leaves meet |
| `trees` | how they are joined, by Spark SQL |
| `job` | the driver: has rows joined, keeps them, commits their results |
| `shown` | what a correction came to, for people |

Importing this package imports neither Spark nor deltalake (workers import it too).
"""
