"""Drills: safe exercises on a live fleet, as a state machine, with the conditions under which one may begin."""
