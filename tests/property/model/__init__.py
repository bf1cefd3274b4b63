"""A randomised model of the epoch protocol: the true functions of `jobs.protocol`, a made-up world.

What runs for real: `driver.step` and all it calls (claim, redo, plan, obey, restore, entry, fold,
seal), with its events and instructions. What is simulated, as plainly as possible: Kafka, the
files of the warehouse and their durability, Delta tables with application transactions, the
journal, hosts with tmpfs, the slots' step, Spark's tasks, cleanup, vacuum, compaction, and the
dropping of what finished days need no longer.

Everything that waits for something else in reality is a generator here that yields; one random
number generator decides who goes on, who dies, who freezes and who wakes up. One seed is one
schedule. At the end the results must be those of a brute-force join of every sealed session.

    world.py      Kafka, files, tables, journal, hosts: what exists and what survives
    slot.py       one task of one slot: the engine's contract with dicts and lists
    shell.py      a driver process: carries out instructions, runs jobs as parallel tasks
    keepers.py    cleanup, vacuum, compaction, dropping
    rules.py      every rule of DESIGN.md that the simulated parts keep: what plants replace
    schedule.py   one seed -> one schedule -> its outcome; the faults' rates
    check.py      the brute-force join and what must hold at the end
    plants.py     rules left out, one by one: each must be caught

Known limitations: a result's content is its coordinates (rows, types and hash collisions are the
engine's tests); memory has no size, spills are random; groups are never moved (no plan does so
yet), though cuts nest as if they had been split and merged.
"""
