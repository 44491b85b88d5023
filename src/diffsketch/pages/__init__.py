"""Pages of plots and tables: what they consist of, and how they become HTML, pictures and CSV.

`exhibits` has the parts as plain data; the rest draws them. Imports nothing of ours but errors,
files and privacy, so that anything can be shown: the paper's figures, or a user's own runs.
"""
