"""The same rows of the same Kafka through four programs, each in processes of its own.

    copy      Spark copies Kafka to Delta, without a join
    join      Spark's own stream-stream join on RocksDB, to Delta
    ample     spillway with all the memory that it wants
    quarter   spillway with a quarter of what it used, then seal, cleanup, verify

Model: topics are filled once; the programs run one after another, never at the same time; each
begins with nothing and reads everything. What a program says of itself is used for the rate of
its epochs only. Wall, CPU and memory are measured from outside (`watch`), and what it wrote is
read from its Delta table (`outcome`).

Invariant: figures are shown only when every join has the same results, in number and in content.

How time is counted, for all four alike:

* *total*: from the start of the process until it has ended;
* *start*: until its query could begin: the interpreter, the JVM, Spark's session (for spillway
  until its first journal entry of the term, which follows the session at once);
* *run*: from there to its last commit of a table. Factors compare runs.
"""
