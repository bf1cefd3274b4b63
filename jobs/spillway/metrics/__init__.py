"""`/metrics` for Prometheus, served by the stream's driver.

    stream's threads --on_start, on_epoch--> Gatherer --ScrapeFigures--> families --> HTTP

The stream hands each journaled entry over and goes on (`gathering`: one append to a list). A
thread of its own adds entries up with the same tally that `spillway status` uses, asks Kafka and
the tables now and then, and leaves one immutable `ScrapeFigures`. A scrape turns that into text: it
waits for no epoch and no epoch waits for it, and it reads neither Kafka nor a table.

Counters are sums over the journal, not over the life of a process: they go on where they were when
the stream is started again, here or on another host, and agree with the tables.

A figure that is not known now is not served, never 0: lag while Kafka does not answer, a delay
before the first result.
"""
