"""Profiles, measured: what share of calls is right under armed faults, and what that costs, beside what was promised.

promises.py   what the field report promises, and when a measurement may say that it holds
campaign.py   calls with faults, counted: device and kernel alike
emulated.py   such calls on the emulated device;  faults.py  which faults, and where they act
native.py     such calls of the native kernel;  strikes.py  the build whose values can be struck
costs.py      what clean calls cost
plan.py       what is measured, and how often;  measure.py  the measurement, part by part
document.py   as JSON;  report.py  as tables
"""
