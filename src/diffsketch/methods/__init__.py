"""Private, compressed means of distributed vectors.

`base` is the protocol, `registry` knows the methods by name, `mean` is a whole round in one call,
`release` has the noise of everything that leaves a machine.
"""

from diffsketch.methods.base import Encoded, Method
from diffsketch.methods.client_noise import GaussianMean, SkellamMean, SketchGaussian, SketchSkellam
from diffsketch.methods.cpsgd import CpSgd
from diffsketch.methods.diffsketch import DiffSketch, ProvenDiffSketch
from diffsketch.methods.laplace import RawLaplace, SketchLaplace
from diffsketch.methods.mean import PrivateMean, private_mean
from diffsketch.methods.plain import PlainSketch, TableMethod, Uncompressed
from diffsketch.methods.projunit import ProjUnitMean
from diffsketch.methods.registry import METHODS, build_method, parse_settings, settings_of

__all__ = [
    "METHODS",
    "CpSgd",
    "DiffSketch",
    "Encoded",
    "GaussianMean",
    "Method",
    "PlainSketch",
    "PrivateMean",
    "ProjUnitMean",
    "ProvenDiffSketch",
    "RawLaplace",
    "SkellamMean",
    "SketchGaussian",
    "SketchLaplace",
    "SketchSkellam",
    "TableMethod",
    "Uncompressed",
    "build_method",
    "parse_settings",
    "private_mean",
    "settings_of",
]
