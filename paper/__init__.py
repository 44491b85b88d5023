"""The paper, judged: its figures and tables as settings (TOML), run, cached and drawn.

`experiments` reads the settings files; `jobs` does the work in them, and keeps the results;
`measurements` and `audits` measure what is no training run. `figures`, `figures_trained` and
`figures_private` draw; `claims` judges what `claims.toml` has, by `rules`; `document` makes the
page, the Markdown and `results.json`; `reproduce` does what the command `python -m paper` asks for.

Of other papers: `projections` (the Sketched Gaussian Mechanism, Gaussian mixing) with its audits in
`projection_cases`, and `projunit`. What only audits here need: `batches` and `secret_hashes`.
"""
