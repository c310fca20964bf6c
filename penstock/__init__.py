"""The decision core of Penstock: where a request may run, where it should, and which endpoint runs it.

Pure: no IO, no clock, no event loop, no globals. Time and randomness are arguments (`now`, `rng`), every answer
has its reasons, and the live router, the planner, `explain`, and the lab all call these same functions.
"""
