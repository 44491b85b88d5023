"""Runs: settings, directories, checkpoints and comparisons."""
