"""Accounting: the privacy that rounds add up to.

`events` describe releases and compose to an epsilon (with `losses` for all but Gaussian noise),
`budget` says what is within a budget, finds the noise that it needs and draws Poisson samples, and
`account` counts what a party has released, in a file.
"""
