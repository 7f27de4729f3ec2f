"""What counts and times say about an operator, while they are being collected and after.

question.py     "does it deviate at that rate?", and the lines at which that is answered
walk.py         what a sequential test does at a given rate, exactly
sequential.py   the test: stops as soon as the question is answered
anytime.py      an interval that holds whenever one stops
planning.py     runs and time, said before the start
several.py      correction for several probes
difference.py   how much two rates differ
slowdown.py     how much two sets of times differ;  mitigation.py  both, of a mitigation beside its baseline
"""
