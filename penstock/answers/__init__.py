"""The answer parser: reads what engines respond, as it arrives and by place, in bounded memory."""
