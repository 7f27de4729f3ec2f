"""Kernel `triton` beside torch and other libraries on a GPU: time, memory and bits. Run by `python -m benchmarks.gpu`.

    __main__.py   the command: which problems, where the results go, what happens without a GPU
    contenders.py what is measured: ours, torch's and the peers', forward, and with gradients
    device.py     the GPU: its name, its clock, its peak memory; and the stand-in for all of it in Triton's interpreter
    times.py      time over the bare product, with the bar
    memory.py     peak extra memory of a call
    bits.py       whether bits repeat, from run to run and when the batch is split

How to run it, and what was measured: docs/gpu.md.
"""
