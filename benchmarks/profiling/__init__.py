"""Where an epoch's time goes: `make profile`.

Three looks at one run of the real streaming job (`spillway.stream.service`), none of which changes
its code:

* the *timeline* of an epoch: the driver's calls are timed where they are made (`driver`), and
  every decode and step task says when it began, waited, worked and ended (`inside`, brought
  into Spark's Python workers by a daemon of our own, `spark.python.daemon.module`);
* *CPU* of each process and of each kind of JVM thread, as the kernel counts it;
* the *functions* of decode and step, by cProfile in the workers, in a second run of its own
  (Spark's own profiler, `spark.python.profile`, knows nothing of `mapInArrow`).

Known limitation: the timeline needs tasks of one epoch to end before the next begins, which is
so on one machine; a cluster's clocks are not compared.
"""
