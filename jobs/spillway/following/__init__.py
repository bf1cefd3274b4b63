"""Following `results`: each of its rows once, whatever is done to its files meanwhile.

| module | idea |
|---|---|
| `position` | what a follower has, and what it takes next: pure |
| `rows` | the tables' edge: looks, and reads a step's rows |
"""
