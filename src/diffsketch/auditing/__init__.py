"""Audits: attacks that bound a mechanism's epsilon from below, with a stated confidence.

`audit` runs one `Case`: a protocol, two neighbours, an adversary and the claim under test. `cases`
has ready ones: bare sketches, releases of the registry's methods, exploits of the engines, and the
planted errors of both. `Release` makes one of any method, and `Case` of anything that sends
messages.
"""

from diffsketch.auditing.audits import (
    Adversary,
    AuditResult,
    Case,
    Game,
    Neighbours,
    Protocol,
    Verdict,
    audit,
    every_trial,
)
from diffsketch.auditing.releases import Release

__all__ = [
    "Adversary", "AuditResult", "Case", "Game", "Neighbours", "Protocol", "Release", "Verdict",
    "audit", "every_trial",
]  # fmt: skip
