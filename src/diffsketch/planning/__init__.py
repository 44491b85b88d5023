"""The planner: from a target and a budget to a method, its settings and its predicted error.

`request` says what is wanted, `search` finds the best settings of each method of the registry,
which predict their own errors (`diffsketch.methods.forecast`), `planner` chooses and advises, and
`report` puts it into words, a command and code. Only the command line imports it.
"""

from diffsketch.methods.forecast import RelativeError
from diffsketch.planning.planner import Plan, plan
from diffsketch.planning.report import (
    explain,
    flower_plan,
    python_code,
    report,
    run_command,
    to_data,
)
from diffsketch.planning.request import SAMPLINGS, PlanRequest
from diffsketch.planning.search import Option
from diffsketch.privacy.claim import Relation, Trust, Unit

__all__ = [
    "SAMPLINGS",
    "Option",
    "Plan",
    "PlanRequest",
    "Relation",
    "RelativeError",
    "Trust",
    "Unit",
    "explain",
    "flower_plan",
    "plan",
    "python_code",
    "report",
    "run_command",
    "to_data",
]
