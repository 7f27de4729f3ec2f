"""Diagnosis: probes on an operator, what they show, and what that means.

A map of the files, from data to verdict:

    subject     what is checked: any callable with the promises it makes; subjects: our own kernels
    arguments   shapes, dtypes and thread counts from a command line; operands: random, or from safetensors files
    memory      what is available, and the refusal of a problem that needs more
    observe     runs a call again and again; digest: 128 bits of each run's outputs
    probes      the experiments, as data; compare: bits, ulps, absolute deviation, first row
    rates       exact intervals of rates, runs needed
    accuracy    error against float64 beside torch's; field_loop: what the field report's own loop sees
    verdicts    from evidence to verdict
    checking    all of it: `steadysum check` as a function; report: as tables; document: as JSON, with the schema
    speed       `steadysum bench` as a function
    doctor      `steadysum doctor` as a function; environment: its facts, as lines
"""
