"""Accounting: the privacy that rounds add up to.

`events` describe releases and compose to an epsilon (with `losses` for all but Gaussian noise),
`accountant` keeps count within a budget, calibrates noise and draws Poisson samples, and `ledger`
keeps count in a file.
"""
