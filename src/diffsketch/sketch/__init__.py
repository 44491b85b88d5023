"""The Count Sketch: hash families, and the class.

`hashing` defines the hash families, `count_sketch` the public class, `keys` the keys of strings,
`kernels` the computation.
Imports nothing of ours but `errors`.
"""

from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import Family, HashSeed, SketchKey
from diffsketch.sketch.kernels.estimators import Combine
from diffsketch.sketch.keys import hash_keys

__all__ = ["Combine", "CountSketch", "Family", "HashSeed", "SketchKey", "hash_keys"]
