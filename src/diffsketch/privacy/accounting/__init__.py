"""What rounds add up to.

`events` says what was done to the data, `composition` what that amounts to (by `gaussian_curve`,
`losses` or `renyi`), `accountant` keeps count within a budget (with `lookahead`), `ledger` does so
in a file, `calibration` finds the noise for a target, and `sampler` draws Poisson samples.

The names are exported by `diffsketch.privacy`; claims use `composition`, the accountant uses
claims, so nothing is imported here.
"""
