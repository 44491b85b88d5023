"""Private, communication-efficient distributed learning with sketches.

The names below are the front door; `diffsketch.ddp` and `diffsketch.flower` are those of the two
engines. Each is imported when it is first asked for: `import diffsketch` alone loads no PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError

if TYPE_CHECKING:
    from diffsketch import methods
    from diffsketch.analytics import (
        Answer,
        Items,
        private_counts,
        private_mean,
        private_quantiles,
        private_top_k,
    )
    from diffsketch.app.session import train
    from diffsketch.auditing import audit
    from diffsketch.methods import Method, build_method
    from diffsketch.planning import PlanRequest, plan
    from diffsketch.privacy import (
        Account,
        Budget,
        Claim,
        Epsilon,
        MeasuredClaim,
        NoClaim,
        NoiseKey,
        OpenClaim,
        PaperClaim,
        ProvenClaim,
        Relation,
        SecureNoise,
        SimulatedClaim,
        Trust,
        Unit,
    )
    from diffsketch.sketch import CountSketch, HashSeed, SketchKey
    from diffsketch.training.rounds import DistributedSGD, FedAvg
    from diffsketch.training.simulation import Simulation
    from diffsketch.training.tasks import Task

__version__ = "0.1.0"

__all__ = [
    "Account", "Answer", "ArgumentError", "Budget", "Claim", "CountSketch", "DataError",
    "DiffSketchError", "DistributedSGD", "Epsilon", "FedAvg", "HashSeed", "Items",
    "MeasuredClaim", "Method", "MismatchError", "NoClaim", "NoiseKey", "OpenClaim",
    "PaperClaim", "PlanRequest", "ProvenClaim", "Relation", "SecureNoise", "SimulatedClaim",
    "Simulation", "SketchKey", "Task", "Trust", "Unit", "audit", "build_method", "methods",
    "plan", "private_counts", "private_mean", "private_quantiles", "private_top_k",
    "train",
]  # fmt: skip

# The same names once more, for `__getattr__`: type checkers read the imports above instead.
_ROOMS = {
    "sketch": "CountSketch HashSeed SketchKey",
    "privacy": "Account Budget Claim Epsilon MeasuredClaim NoClaim NoiseKey OpenClaim PaperClaim "
    "ProvenClaim Relation SecureNoise SimulatedClaim Trust Unit",
    "methods": "Method build_method",
    "analytics": "Answer Items private_counts private_mean private_quantiles private_top_k",
    "planning": "PlanRequest plan",
    "auditing": "audit",
    "training.rounds": "DistributedSGD FedAvg",
    "training.simulation": "Simulation",
    "training.tasks": "Task",
    "app.session": "train",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name from its room when it is first used."""
    if name == "methods":
        return import_module("diffsketch.methods")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"diffsketch.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, those not imported yet among them."""
    return sorted(__all__)
