"""The paper, judged: its figures and tables as settings (TOML), run, cached and drawn.

`experiments` reads the settings files; `jobs` does the work in them, and keeps the results;
`measurements` and `audits` measure what is no training run. `figures`, `figures_trained` and
`figures_private` draw; `claims` judges what `claims.toml` has, by `rules`; `document` makes the
page, the Markdown and `results.json`, which `recorded` reads back; `reproduce` does what
the command `python -m paper` asks for.

`repaired` has the paper's appended noise with a proof, and with it the method `diffsketch-proven`,
`rotated` has cpSGD with its rotation, `readings` what the paper may also mean by alpha, and
Gaussian noise; `python -m paper.run` is `diffsketch run` with all of them. `bounds` has
Lemma 1 and Theorem 2.

Of other papers: `projections` (the Sketched Gaussian Mechanism, Gaussian mixing) with its audits in
`projection_cases`. What only audits here need: `inversion` and `secret_hashes`.
"""

from diffsketch.app.settings import allow_method

METHODS = {
    "diffsketch-proven": "diffsketch", "cpsgd-rotated": "cpsgd", "diffsketch-reading": "diffsketch",
    "sketch-laplace-signed": "sketch-laplace",
}  # fmt: skip
"""Methods of this package that runs may have, each with the library's that it is a form of.

`repaired`, `rotated` and `readings` register them.
"""

for _name in METHODS:
    allow_method(_name)
