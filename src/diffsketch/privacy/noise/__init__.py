"""Sources of noise: private objects, never a global generator.

`simulated` is reproducible, and as exact as floating-point numbers are: for one message
(`FastNoise`) or a whole round of workers (`CohortNoise`). `secure` is for real releases: randomness
of the operating system, exact samplers, whole numbers only, since noise in floating point can be
attacked through its rounding.
"""

from diffsketch.privacy.noise.secure import SecureNoise
from diffsketch.privacy.noise.simulated import CohortNoise, FastNoise, Noise, NoiseKey

__all__ = ["CohortNoise", "FastNoise", "Noise", "NoiseKey", "SecureNoise"]
