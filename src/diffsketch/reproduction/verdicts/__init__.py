"""Rules that say whether a claim of the paper holds: one function for each claim.

A rule takes the claim as `claims.toml` has it and the facts that the drawings made, and gives a
`Verdict` with the numbers behind it. Its docstring states its thresholds. `verdict` has the types,
`panels` the facts of training figures, `registry` the rules by name. The rules of `sizes`,
`formulas` and `sketched` calculate; those of `audited`, `corrected`, `learned`, `noised`, `trained`
and `vectors` read facts.
"""
