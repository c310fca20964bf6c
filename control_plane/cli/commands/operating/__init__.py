"""Commands that change what a live fleet does, for a while: overrides, rollouts, drills."""
