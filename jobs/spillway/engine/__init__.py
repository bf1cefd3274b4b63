"""The join engine: one slot's part of an epoch, and cleanup. No Spark.

| room | idea | may import |
|---|---|---|
| `groups` | partition groups: prefixes of a key's hash | |
| `join` | the join itself | `groups` |
| `state` | what a slot keeps | `join` |
| `wire` | what crosses the shuffle, and files that tables name | `state` |
| `spill` | what leaves memory, and the results that this leaves out | `wire`, `statistics` |
| `statistics` | figures of a group | `state` |
| `step` and the rest | one slot's part of one epoch | all |
"""
