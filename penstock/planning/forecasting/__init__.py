"""Expected demand: from measurements, announced events and external signals."""
