"""A run: its settings, its directory, checkpoints, resuming, comparing.

Imports `engines` and everything below it; only the command line imports it.
"""
