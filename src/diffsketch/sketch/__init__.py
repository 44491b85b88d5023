"""The Count Sketch: hash families, and the class.

`hashing` defines the hash families, `count_sketch` the public class, `kernels` the computation.
Imports nothing of ours but `errors`.
"""

from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import Family, HashSeed, SketchKey

__all__ = ["Combine", "CountSketch", "Family", "HashSeed", "SketchKey"]
