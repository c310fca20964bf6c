"""The linear program: demand by origin and traffic class to shares over permitted regions, as a min-cost flow.

`flow_planner` is the planner. `problem_builder` makes one `problem` per model and tick, or one of several models where
they share slots; `program` its columns and rows, and `solver` keeps that program in HiGHS. `plan_cost` is the
objective, `n_minus_one` the capacity to keep free for the loss of a region, `planned_shortfall` the capacity that is
missing.
"""
