"""Which modules pytest skips when it looks for doctests."""

from importlib.util import find_spec

# Triton comes with PyTorch's CUDA builds only; without it this module cannot be imported.
collect_ignore_glob = [] if find_spec("triton") else ["src/diffsketch/sketch/kernels/gpu*.py"]

# Flower is an extra.
if not find_spec("flwr"):
    collect_ignore_glob += ["src/diffsketch/flower/*.py", "tests/flower/*.py"]
