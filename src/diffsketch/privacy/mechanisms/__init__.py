"""Mechanisms: each one clips, adds noise and states what that proves, all from one object.

`mechanism.release(vectors, noise, encode=...)` is what may be sent; `mechanism.claim` is what that
guarantees. One file a mechanism; `bounds` (clipping and sensitivity) and `quantize` (whole numbers)
are shared by them. Imports the rest of `diffsketch.privacy` and the sketch.
"""

from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.cpsgd import BinomialMechanism
from diffsketch.privacy.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from diffsketch.privacy.mechanisms.discrete_laplace import DiscreteLaplaceMechanism
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism
from diffsketch.privacy.mechanisms.padding import PaddedGaussian, table_noise_like_padding
from diffsketch.privacy.mechanisms.privunit import PrivUnitG, ProjUnit
from diffsketch.privacy.mechanisms.quantize import Quantizer
from diffsketch.privacy.mechanisms.skellam import SkellamMechanism

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
