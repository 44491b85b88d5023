"""From results to what is shown: one module for each kind of figure.

A drawing is a function `(experiment, results) -> Drawn`; `registry` has them by name. It is pure:
the same results give the same plots.
"""
