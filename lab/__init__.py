"""A fleet on one machine: fake GPU engines, an emulated WAN, traces, replay, and the residency witness."""
