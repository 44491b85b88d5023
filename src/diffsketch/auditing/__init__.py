"""Audits: attacks that bound a mechanism's epsilon from below, with a stated confidence.

`audit` runs one `Case`: a protocol, two neighbours, an adversary and the claim under test. Ready
cases are in `catalogue`: `bare` sketches, `releases` of the registry's methods, `exploits` of the
engines, and the `planted` errors of both. `Release` makes one of any method, and `Case` of anything
that sends messages. `inversion` shows what a server sees of an image. Sits above engines and
methods, whose code it drives; only the command line and the experiments import it. `pictures` alone
imports matplotlib.
"""

from diffsketch.auditing.adversaries import Adversary, Game, Neighbours, Protocol, every_trial
from diffsketch.auditing.cases import Case
from diffsketch.auditing.releases import Release
from diffsketch.auditing.run import AuditResult, Verdict, audit

__all__ = [
    "Adversary", "AuditResult", "Case", "Game", "Neighbours", "Protocol", "Release", "Verdict",
    "audit", "every_trial",
]  # fmt: skip
