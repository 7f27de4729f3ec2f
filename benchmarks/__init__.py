"""Benchmarks: the bars of the performance contract (docs/speed.md), and other libraries beside us. Run by `make bench`.

    __main__.py   the command: which parts, quick or full, where the results go
    contenders.py what is measured: ours, torch's, and the peers' functions, all forward and without gradients
    bars.py       time of ours over torch's, each with its bar
    peers.py      ours and every peer in turn on one problem
    accuracy.py   error of ours over torch's, against float64, with its bar
    memory.py     peak extra memory, each contender in a process of its own
    high_water.py how the peak is measured there
    imports.py    time to import steadysum over the time to import torch
    training/     all of it again for the loss with its gradients
    gpu/          kernel `triton` beside torch and other libraries on a GPU: a command of its own
    results.py    a measured ratio or size with its bar and verdict; tables and JSON

How time is measured is the package's own business: steadysum.timing.
"""
