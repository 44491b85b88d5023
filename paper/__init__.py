"""The paper, judged: its figures and tables as settings (TOML), run, cached and drawn.

`experiments` reads the settings files; `jobs` does the work in them, and keeps the results;
`measurements` and `audits` measure what is no training run. `drawings` turns results into records,
of which `figures` makes the plots, tables and facts that `figures.toml` describes; `claims` judges
what `claims.toml` has, by `rules` and `calculations`; `document` makes the page and the Markdown;
`reproduce` does what the command `python -m paper` asks for, and writes and reads `results.json`.

`methods` has the paper's appended noise with a proof, and what the paper may also mean by alpha and
by its noise.

Of other papers: `projections` (the Sketched Gaussian Mechanism, Gaussian mixing). What only audits
here need: `inversion`.
"""

import os

# Each job has a core to itself. OpenBLAS, which reads this when NumPy is imported, would otherwise
# start a thread for each core in every process, and they would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from diffsketch.app.settings import allow_method

METHODS = {
    "diffsketch-proven": "diffsketch", "diffsketch-reading": "diffsketch",
    "sketch-laplace-signed": "sketch-laplace",
}  # fmt: skip
"""Methods of this package that runs may have, each with the library's that it is a form of.

`paper.methods` registers them.
"""

for _name in METHODS:
    allow_method(_name)
