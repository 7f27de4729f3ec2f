"""A user's operator, run in a process of its own, so that it can crash, hang or grow without taking the tool down.

A map of the files:

    target          the operator, from the text that names it; inputs: what it is called with, and where that comes from
    supervisor      the tool's side: starts the process, watches it, tells how its runs ended
    worker          the process; running: its loop over the runs
    journal         what each run gave, in memory that both see; kept: outputs as files; quick_digest: 128 bits of them
    conditions      what runs can be made under, as a table; arranged: what each has to give
    input_changes, ways, surroundings, operations, loads    the conditions
"""
