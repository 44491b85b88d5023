"""Private, compressed means of distributed vectors: the protocol, the registry, the methods."""

from diffsketch.methods.base import (
    METHODS,
    Encoded,
    Method,
    build_method,
    parse_settings,
    register,
    settings_of,
)
from diffsketch.methods.client_noise import GaussianMean, SkellamMean, SketchGaussian, SketchSkellam
from diffsketch.methods.gate import PrivateMean, release, release_noise
from diffsketch.methods.paper import CpSgd, DiffSketch, RawLaplace, SketchLaplace
from diffsketch.methods.plain import PlainSketch, TableMethod, Uncompressed

__all__ = [
    "METHODS", "CpSgd", "DiffSketch", "Encoded", "GaussianMean", "Method", "PlainSketch",
    "PrivateMean", "RawLaplace", "SkellamMean", "SketchGaussian", "SketchLaplace",
    "SketchSkellam", "TableMethod", "Uncompressed", "build_method", "parse_settings",
    "register", "release", "release_noise", "settings_of",
]  # fmt: skip
