"""The join itself: what one is, hashes of keys, and the kernel. Knows neither files nor epochs.

| module | idea |
|---|---|
| `spec` | what a join is: its key columns and its inputs |
| `tree` | a query's joins, and the way of rows from one to the next |
| `planning` | from a query's text to that tree |
| `hashing` | the hash of a key, as Spark computes it |
| `probe` | which hashes produce, and where their rows lie |
| `kernel` | rows in, results out |
| `boxes` | results as plain cross products |
| `batches` | from boxes and their rows to batches of results |
| `results` | the `results` table's schema and columns |
"""
