"""Commands that change the behaviour of a live fleet: overrides, rollouts, drills, revoked keys."""
