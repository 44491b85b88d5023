"""The planner: from a target and a budget to a method, its parameters and its predicted error.

`request` says what is wanted, `error_model` predicts, `levels` and `clips` find noise and clips,
the `candidates` try each method, `planner` chooses, and `advice`, `snippet` and `report` put it
into words. May import `privacy` and `sketch`; only the command line imports it.
"""

from diffsketch.plan.error_model import RelativeError
from diffsketch.plan.options import Method, Option
from diffsketch.plan.planner import Plan, plan
from diffsketch.plan.report import explain, report, to_data
from diffsketch.plan.request import PlanRequest
from diffsketch.plan.snippet import python_code
from diffsketch.privacy.claim import Relation, Trust, Unit

__all__ = [
    "Method",
    "Option",
    "Plan",
    "PlanRequest",
    "Relation",
    "RelativeError",
    "Trust",
    "Unit",
    "explain",
    "plan",
    "python_code",
    "report",
    "to_data",
]
