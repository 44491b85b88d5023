"""Benchmarks: one script per question, peers and ours in the same run. Nothing imports this."""
