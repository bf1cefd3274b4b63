"""The command line's commands, a file each: options, one call, what is printed, the exit code.

| module | idea |
|---|---|
| `given` | what a command was given: settings with flags, options that several share |
| `terminal` | lines for people: answers on stdout, errors on stderr, no secret in either |

What is heavy (Spark, deltalake, pandas) is imported inside the commands, so that `--help` answers
at once. What a command does stands in the package of its subject.
"""
