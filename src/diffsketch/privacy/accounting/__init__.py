"""Accounting: the privacy that rounds add up to.

`events` describe releases, `composition` computes the epsilon that they amount to (with `losses`
for all but Gaussian noise), `accountant` keeps count within a budget, `ledger` does so in a file,
`calibration` finds the noise for a target, and `sampler` draws Poisson samples.
"""
