"""Cleanup: it appends a sealed session's missing results, each once.

| module | idea |
|---|---|
| `plan` | pure: what is to be done, and why it may not be done yet |
| `work` | what there is to do, as the journal and the tables say it |
| `ahead` | `--plan`: the same for people, before anything runs |
| `deferred` | rows that slots had lost, read again in Kafka first |
| `lease` | of several cleanups of a session the one that works |
| `task` | what runs in workers: numpy and pyarrow, no deltalake |
| `workers` | where that is: processes of this host, or a Spark cluster's |
| `job` | the driver: surveys, computes ranges in parallel, commits them in order |
| `progress` | how far it is: a bar, or lines in a log |

Importing this package imports neither Spark nor deltalake (workers import it too).
"""
