"""Programs that a policy wrote, run where they can do no harm and judged where they cannot lie.

On this side: `cases` reads an item's tests, `bubblewrap` builds the sandbox, `trial` has a program tried, in a worker of
`pool`. Inside: `candidate` runs the program, `judge` the tests. These two and what they import are all of this package that
can be seen in there, so they use Python's own library alone.

    worker ── starts both, waits, kills
      ├─ sandbox: candidate   the program; answers calls with plain data
      └─ sandbox: judge       the tests; asks the candidate, compares, and tells the worker the verdict

The program never meets a test or an expected value: it sees the arguments of a call, or a standard input, and what it answers
is read as data. There is nothing in its process whose alteration could turn a verdict.
"""
