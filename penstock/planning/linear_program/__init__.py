"""The planner: demand by origin and traffic class to shares over permitted regions, as a min-cost flow.

`flow` is the door. What a tick asks is a `problem`; what a share table costs is in `cost`; what must stay free for the
loss of a region is in `losses`; `master` is the linear program as HiGHS keeps it between ticks, and `solve` grows it
until its answer is optimal. `steadiness` keeps shares from turning round for a whim. `shortfall` says what capacity is
missing where, `failover` where demand goes at a loss.
"""
