"""Private statistics of people: means, counts, top lists and quantiles.

* `items`: what people hold, and bounds on what each contributes.
* `release`: one release of a sum, its noise and its answer.
* `columns`, `counts`, `top`: the four questions (means and quantiles are about columns).
* `queries`: the same of tables larger than memory: `files` (DuckDB), `spark` (data frames).
"""

from diffsketch.analytics.columns import private_mean, private_quantiles
from diffsketch.analytics.counts import private_counts
from diffsketch.analytics.files import PeopleFile
from diffsketch.analytics.items import Items
from diffsketch.analytics.release import Answer, Terms
from diffsketch.analytics.top import private_top_k

__all__ = [
    "Answer",
    "Items",
    "PeopleFile",
    "Terms",
    "private_counts",
    "private_mean",
    "private_quantiles",
    "private_top_k",
]
