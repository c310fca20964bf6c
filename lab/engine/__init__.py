"""A fake GPU engine that serves vLLM's HTTP API on a real socket, with the timing of the modelled hardware."""
