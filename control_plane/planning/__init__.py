"""The leader's planning loop: report intake, snapshot, planner, publishing, plan history."""
