"""A planet on one machine: fake GPU engines, a WAN, traces, replay, and the witness that counts violations."""
