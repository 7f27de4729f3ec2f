"""`steadysum emulate` as functions: many calls of the operator on the emulated device, and what became of them.

A map of the files:

    plan        what is run: operands, device, faults, calls; arguments: the words of a command line for it
    judge       one call's outputs against the fault-free call's; pattern: how deviating calls look, in words
    campaign    all calls, one after the other; tally: what is collected of them, in bounded memory
    waits       how long syncs took, over all calls; field: the field report's own loop on such a device
    file        the calls as lines of a file; replay: the same calls again, from their schedules
    report      the result as tables; document: as JSON, with the schema
"""
