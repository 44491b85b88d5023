"""Privacy: claims, the mechanisms that earn them, and the accounting of rounds.

* `claim`: basis, unit, relation and trust as types, and an epsilon that carries them.
* `clipping`: bounds and rounding, with the sensitivity that is left.
* `mechanisms`: clipping, noise and the claim, each mechanism from one object.
* `accounting`: events, their composition, budgets, and accounts, also in a file.
* `integer_table`: exact integer noise from random words; `noise` takes them from the operating
  system, or for simulation from a seeded generator.
* `theorems`: the paper's appended noise, and its theorem as a calculator: claimed, not proven.

`docs/privacy.md` is the introduction.
"""

from diffsketch.privacy.accounting.account import Account, AccountBusy
from diffsketch.privacy.accounting.budget import (
    Budget,
    BudgetExceeded,
    PoissonSampler,
    calibrate,
    gaussian_multiplier,
)
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    MeasuredClaim,
    NoClaim,
    OpenClaim,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
)
from diffsketch.privacy.clipping import (
    CoordinateBound,
    NormBound,
    Quantizer,
    clip_coordinates,
    clip_norm,
)
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    SkellamMechanism,
)
from diffsketch.privacy.noise import CohortNoise, FastNoise, Noise, NoiseKey, SecureNoise
from diffsketch.privacy.theorems import estimate_alpha, estimate_sigma, theorem1

__all__ = [
    "Account", "AccountBusy", "Basis", "BinomialMechanism", "Budget", "BudgetExceeded",
    "Claim", "CohortNoise", "CoordinateBound", "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism", "Epsilon", "FastNoise", "GaussianMechanism",
    "MeasuredClaim", "NoClaim", "Noise", "NoiseKey", "NormBound", "OpenClaim", "PaperClaim",
    "PoissonSampler", "ProvenClaim", "Quantizer", "Relation", "Scope", "SecureNoise",
    "SimulatedClaim", "SkellamMechanism", "Trust", "Unit", "calibrate", "clip_coordinates",
    "clip_norm", "estimate_alpha", "estimate_sigma", "gaussian_multiplier", "theorem1",
]  # fmt: skip
