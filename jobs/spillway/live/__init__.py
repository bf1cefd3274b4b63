"""What the page in Airflow shows: kept up to date in the background, cut to a bounded size.

| module | idea |
|---|---|
| `views` | the models that the page gets, and how they follow from a look (pure) |
| `groups` | all partition groups as columns: a map of at most 1,024 cells, a searchable table |
| `watch` | one thread that looks while somebody asks; requests only serialise what it saw |

Nothing here imports Spark, and nothing writes: what people do goes through the command line.
"""
