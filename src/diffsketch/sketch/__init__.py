"""The Count Sketch: hash families, the class, a table as a value.

`hashing` defines the hash families, `count_sketch` the public class, `value` a table that knows
where it belongs, `kernels` the computation. Imports nothing of ours but `errors`.
"""

from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import Family, HashSeed, SketchKey
from diffsketch.sketch.value import Sketch

__all__ = ["Combine", "CountSketch", "Family", "HashSeed", "Sketch", "SketchKey"]
