"""What a slot keeps: sorted runs in memory, and the manifest that names them.

| module | idea |
|---|---|
| `runs` | one input's rows, sorted, in one file that is mapped |
| `slices` | rows of windowed joins apart by time |
| `arrangement` | the runs of a session, and what was dropped from them |
| `merging` | when runs become larger ones: decisions only |
| `statefiles`, `digests` | the manifest, its folder and its garbage; who wrote it |
| `loading` | the state as the manifest names it |
| `kept` | the newest spilled generations, which may come back |
"""
