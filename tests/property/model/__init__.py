"""A randomised model of the epoch protocol: the true functions of `spillway.protocol`, a made-up
world.

What runs for real: `driver.step` and all it calls (claim, redo, plan, obey, restore, entry, fold,
seal), with its events and instructions; the tasks that `spillway.stream.tasks` makes of a plan;
which rows belong to which session and which were held (`spillway.stream.decoding`); what the engine
keeps, drops, flushes, demands and deletes (`arrangement`, `spilling`, `intake`, `statefiles`); what
is garbage (`spillway.tables.garbage`). What is simulated, as plainly as possible: Kafka, the files
of the warehouse and their durability, Delta tables with application transactions, the journal,
hosts with tmpfs, Spark's tasks, the join itself, cleanup, vacuum, compaction, and the dropping of
what finished days need no longer.

Everything that waits for something else in reality is a generator here that yields; one random
number generator decides who goes on, who dies, who freezes and who wakes up. One seed is one
schedule. At the end the results must be those of a brute-force join of every sealed session. The
query is one join, or a tree of two or three: then epochs have probes, rows above the leaves are
made again by the joins below, and cleanup goes from the leaves to the root.

    world.py      Kafka, files, tables, journal, hosts: what exists and what survives
    slot.py       one task of one slot, a probe, a step: the engine's rules on lists of rows
    shell.py      a driver process: carries out instructions, runs jobs as parallel tasks
    keepers.py    cleanup, vacuum, compaction, dropping
    rules.py      the product's functions, and the edges' rules: what plants replace
    schedule.py   one seed -> one schedule -> its outcome; the faults' rates
    check.py      the brute-force join and what must hold at the end
    plants.py     rules left out, one by one: each must be caught

A stream whose topic was refilled, or has lost rows to retention, need not finish: it must either be
exact or end, and what it wrote until then must be right.

Known limitations: a result's content is its coordinates (rows, types and hash collisions are the
engine's tests); memory has no size, spills are random.
"""
