"""The scene of batches: one in a region that stays, one in the region that is killed, beside all other scenes."""
