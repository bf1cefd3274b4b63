"""What crosses the shuffle, and files that tables name.

| module | idea |
|---|---|
| `blocks` | rows of an epoch for one slot, as one binary value |
| `datafile` | a Parquet file and its `FileRecord` |
| `footers` | whether what a damaged file says of itself can be looked at |
| `quarantine` | rejected rows |
"""
