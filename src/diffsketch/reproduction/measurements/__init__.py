"""What is measured for the paper's figures that is no training run: one module for each kind.

A measurement is a function `(settings, *, seed, on_progress) -> dict` of JSON data; `on_progress`
is told the share that is done and may raise to interrupt it. `registry` has them by name.
"""
