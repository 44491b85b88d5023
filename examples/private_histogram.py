"""A private mean that is not learning: which of 5,000 error codes a fleet of sensors reports.

Each of many holders keeps a histogram: the share of each code among its sensor's last reports. A
few codes make up most of the fleet's mean histogram, and they are to be found, without giving away
what any single sensor reported.

Run it: `python examples/private_histogram.py`. For each method it prints how far the shares of the
fleet's ten most frequent codes are from the truth, what a message costs, and what is guaranteed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffsketch import build_method, private_mean

HOLDERS = 4_000
CODES = 5_000
REPORTS = 100
DELTA = 1e-6
TABLE: dict[str, object] = {"rows": 5, "cols": 200, "combine": "median"}
# A table's norm is at most about sqrt(rows) times the vector's, which is 1 at most.
NOISE: dict[str, object] = {"clip": 2.2, "noise_multiplier": 5.0}
METHODS: dict[str, dict[str, object]] = {
    # Nothing is private, and nothing is compressed.
    "none": {},
    # Compressed fivefold.
    "sketch": TABLE,
    # A server that all trust sees bare tables, and adds noise to their sum.
    "sketch-gaussian": TABLE | NOISE | {"trust": "central"},
    # Nobody sees a single table: each adds a little noise, and a secure sum all of it.
    "sketch-skellam": TABLE | NOISE,
}


def histograms(seed: int) -> Tensor:
    """Shares of codes `(HOLDERS, CODES)`: half of a sensor's reports have a code of its own."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, CODES + 1).double() ** -1.5
    drawn = torch.multinomial(weights, HOLDERS * REPORTS, replacement=True, generator=generator)
    codes = drawn.reshape(HOLDERS, REPORTS)
    codes[:, : REPORTS // 2] = codes[:, :1]
    counts = torch.zeros(HOLDERS, CODES).scatter_add_(1, codes, torch.ones(codes.shape))
    return counts / REPORTS


def main() -> None:
    """Estimate the fleet's histogram with each method."""
    vectors = histograms(seed=1)
    shares, frequent = vectors.mean(dim=0).topk(10)
    print(f"{HOLDERS:,} histograms of {CODES:,} codes; the most frequent ones have shares of")
    print(", ".join(f"{100 * float(share):.1f}%" for share in shares) + ".\n")
    for name, settings in METHODS.items():
        method = build_method(name, dim=CODES, cohort=HOLDERS, settings=settings)
        found = private_mean(vectors, method)
        errors = (found.mean[frequent] - shares).abs()
        print(f"{name}: {found.message_bytes:,} bytes a message, {method.compression:.1f}x less")
        print(f"    errors of {100 * float(errors.mean()):.2f} points on average")
        print(f"    {found.claim.epsilon(delta=DELTA, rounds=1)}")
        print(f"    {found.claim}\n")


if __name__ == "__main__":
    main()
