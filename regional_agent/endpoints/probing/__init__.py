"""What the agent asks of engines: health, loaded models, load."""
