"""The planner: from a target and a budget to a method, its settings and its predicted error."""

from diffsketch.methods.forecast import RelativeError
from diffsketch.planning.bare import SketchSize, sketch_sizes
from diffsketch.planning.planner import Plan, PlanWarning, plan
from diffsketch.planning.search import SAMPLINGS, Option, PlanRequest
from diffsketch.privacy.claim import Relation, Trust, Unit

__all__ = [
    "SAMPLINGS", "Option", "Plan", "PlanRequest", "PlanWarning", "Relation", "RelativeError",
    "SketchSize", "Trust", "Unit", "plan", "sketch_sizes",
]  # fmt: skip
