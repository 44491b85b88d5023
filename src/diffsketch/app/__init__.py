"""Runs: settings, directories, checkpoints, comparisons and the command line."""
