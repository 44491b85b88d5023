"""Accounting: the privacy that rounds add up to.

`events` describe releases and compose to an epsilon (with `losses` for all but Gaussian noise),
`account` counts what a party has released, within a budget and in a file, and `calibration` finds
the noise that a budget needs and draws Poisson samples.
"""
