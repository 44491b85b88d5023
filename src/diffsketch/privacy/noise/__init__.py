"""Where noise comes from: private objects, never a global generator.

`fast` is for simulation: reproducible, and as exact as floating-point numbers are; `cohort` is the
same for a whole round of workers at once. `secure` is for real releases: randomness of the
operating system, exact samplers, whole numbers only, since noise in floating point can be attacked
through its rounding. Their samplers of whole numbers are in
`discrete_sampling` and `secure_sampling`.
"""

from diffsketch.privacy.noise.base import Noise
from diffsketch.privacy.noise.secure import SecureNoise
from diffsketch.privacy.noise.simulated import CohortNoise, FastNoise, NoiseKey

__all__ = ["CohortNoise", "FastNoise", "Noise", "NoiseKey", "SecureNoise"]
