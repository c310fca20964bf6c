"""The commands of `penstock`, one module for each group. `control_plane.cli.main` lists them."""
