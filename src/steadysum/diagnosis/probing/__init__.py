"""What is asked of a suspected operator, and what it answers: from runs in its own process to evidence.

A map of the files:

    catalogue       the probes, as a table
    tally           runs of one kind, counted over as many processes as they took
    comparing       kept outputs against the plain result and against a reference;  outline: by how much they differ
    evidence        a probe's tally beside the plain runs, as evidence
    session         plain reruns until their question is answered, then the probes, within a budget
"""
