"""Private, compressed means of distributed vectors: one method in each file.

`base` is the protocol, `registry` knows the methods by name, `mean` is a whole round in one call.
Imports `sketch`, `privacy` and `wire`; learning and engines import it.
"""

from diffsketch.methods.base import Encoded, Method
from diffsketch.methods.cpsgd import CpSgd
from diffsketch.methods.diffsketch import DiffSketch
from diffsketch.methods.diffsketch_proven import ProvenDiffSketch
from diffsketch.methods.laplace import RawLaplace
from diffsketch.methods.mean import PrivateMean, private_mean
from diffsketch.methods.none import Uncompressed
from diffsketch.methods.projunit import ProjUnitMean
from diffsketch.methods.registry import METHODS, build_method, settings_of
from diffsketch.methods.sketch import PlainSketch, TableMethod
from diffsketch.methods.sketch_gaussian import SketchGaussian
from diffsketch.methods.sketch_laplace import SketchLaplace
from diffsketch.methods.sketch_skellam import SketchSkellam

__all__ = [
    "METHODS",
    "CpSgd",
    "DiffSketch",
    "Encoded",
    "Method",
    "PlainSketch",
    "PrivateMean",
    "ProjUnitMean",
    "ProvenDiffSketch",
    "RawLaplace",
    "SketchGaussian",
    "SketchLaplace",
    "SketchSkellam",
    "TableMethod",
    "Uncompressed",
    "build_method",
    "private_mean",
    "settings_of",
]
