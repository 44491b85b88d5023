"""The planner: from a target and a budget to a method, its settings and its predicted error."""

from diffsketch.methods.forecast import RelativeError
from diffsketch.planning.bare import SketchSize, report_sizes, sketch_sizes
from diffsketch.planning.free import FreeSize, free_size, free_to_data, report_free
from diffsketch.planning.planner import Plan, plan
from diffsketch.planning.report import (
    explain,
    flower_plan,
    python_code,
    report,
    run_command,
    to_data,
)
from diffsketch.planning.search import SAMPLINGS, Option, PlanRequest
from diffsketch.privacy.claim import Relation, Trust, Unit

__all__ = [
    "SAMPLINGS",
    "FreeSize",
    "Option",
    "Plan",
    "PlanRequest",
    "Relation",
    "RelativeError",
    "SketchSize",
    "Trust",
    "Unit",
    "explain",
    "flower_plan",
    "free_size",
    "free_to_data",
    "plan",
    "python_code",
    "report",
    "report_free",
    "report_sizes",
    "run_command",
    "sketch_sizes",
    "to_data",
]
