"""What crosses the shuffle, and files that tables name.

| module | idea |
|---|---|
| `blocks` | rows of an epoch for one slot, as one binary value |
| `datafile` | a Parquet file and its `FileRecord` |
| `quarantine` | rejected rows |
"""
