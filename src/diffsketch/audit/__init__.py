"""Audits: attacks that bound a mechanism's epsilon from below, with a stated confidence.

`audit` runs one `Case`: a protocol, two neighbours, an adversary and the claim under test. Ready
cases are in `catalogue` (`bare` sketches, `proven` mechanisms, `planted` errors); `of_mechanism`
makes one of any mechanism, and `Case` of anything that sends messages. `inversion` shows what a
server sees of an image. May import `sketch`, `privacy`, `learning.data`, `files` and `errors`;
only the command line imports it. `pictures` alone imports matplotlib.
"""

from diffsketch.audit.adversaries import (
    Adversary,
    Game,
    Method,
    Neighbours,
    Protocol,
    every_round,
    every_worker,
)
from diffsketch.audit.cases import Case, of_mechanism
from diffsketch.audit.run import AuditResult, Verdict, audit

__all__ = [
    "Adversary", "AuditResult", "Case", "Game", "Method", "Neighbours", "Protocol", "Verdict",
    "audit", "every_round", "every_worker", "of_mechanism",
]  # fmt: skip
