"""Mechanisms: each one clips, adds noise and states what that proves, all from one object.

`mechanism.release(vectors, noise, encode=...)` is what may be sent; `mechanism.claim` is what that
guarantees.
"""

from diffsketch.privacy.clipping import CoordinateBound, NormBound, Quantizer
from diffsketch.privacy.mechanisms.additive import GaussianMechanism, LaplaceMechanism
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    SkellamMechanism,
)
from diffsketch.privacy.mechanisms.other_papers import BinomialMechanism, PrivUnitG, ProjUnit
from diffsketch.privacy.mechanisms.padding import PaddedGaussian, table_noise_like_padding

__all__ = [
    "BinomialMechanism",
    "CoordinateBound",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "GaussianMechanism",
    "LaplaceMechanism",
    "NormBound",
    "PaddedGaussian",
    "PrivUnitG",
    "ProjUnit",
    "Quantizer",
    "SkellamMechanism",
    "table_noise_like_padding",
]
