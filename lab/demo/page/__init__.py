"""The report as a self-contained page: a map that plays the run back, a timeline, who served whom, the verdict."""
