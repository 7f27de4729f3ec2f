"""A user's operator, run in a process of its own, so that it can crash, hang or grow without taking the tool down.

A map of the files:

    target      the operator, from the text that names it; inputs: what it is called with, and where that comes from
"""
