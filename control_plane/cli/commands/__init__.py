"""The commands of `penstock`, a file for each group; `control_plane.cli.main` puts them together."""
