"""Builds what a release consists of into `dist/` (`make release`). Not part of any wheel."""
