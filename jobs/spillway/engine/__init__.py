"""The join engine: one slot's part of an epoch, and cleanup. No Spark.

| room | idea | may import |
|---|---|---|
| `groups` | partition groups: prefixes of a key's hash | |
| `join` | one join, and the tree of them that a query is | `groups` |
| `state` | what a slot keeps | `join` |
| `wire` | what crosses the shuffle, and files that tables name | `state` |
| `spill` | what leaves memory, and the results that this leaves out | `wire`, `statistics` |
| `statistics` | figures of a group | `state` |
| `tracing` | through which groups results came | `statistics` |
| `replay` | rows of joins that were lost, made again | `wire` |
| `hotkeys` | the key with the most rows in a group | `spill` |
| `intake` | what came to a slot in an epoch | `spill` |
| `probe` | one slot's part of an epoch in the joins below the root | all above |
| `task` | what the plan says to one slot for one epoch | all |
| `upkeep` | runs written and merged, within the folder's room | all |
| `expiry` | what has expired leaves | all |
| `relocation` | groups that change their slot | all |
| `growth`, `least` | how groups have grown; the least budget for an epoch | all |
| `step` | one slot's part of one epoch: the root, and all that it keeps | all |
"""
