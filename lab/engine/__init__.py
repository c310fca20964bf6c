"""A fake GPU engine on a real socket: what vLLM answers, at the pace that the modelled hardware would keep."""
