"""What leaves memory: which groups, their files, and the results that this leaves for cleanup.

| module | idea |
|---|---|
| `spilling` | which groups leave, and where their rows lie |
| `spillfile` | rows of one cut in a file, to be read by hash range |
| `source` | where spilled rows are, and the rows of a hash range |
| `pieces` | the rows of ranges, loaded in pieces that fit into memory |
| `cleanup` | the results of a range that spilling has left out, each once |
| `crossing` | combinations of rows of several generations |
| `unmatched` | of an outer join, the results that lack optional rows |
| `counting` | how many results cleanup will add, without making one |
| `generations` | to which generation a row belongs; cuts that were taken back |
| `returning` | spilled generations read back |
"""
