"""What runs and is printed when the demo's fleet is kept after the story: a light load, addresses, keys, a tour."""
