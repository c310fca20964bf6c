"""An open-loop client of many places: sends each request when it is due, come what may, and notes what became of it."""
