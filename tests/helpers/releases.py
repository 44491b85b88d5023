"""What was released, and whether any two messages share their noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from diffsketch.methods import Method, build_method
from diffsketch.privacy.clipping import centre
from diffsketch.sketch.hashing import HashSeed
from tests.helpers.silent import Silent

__all__ = ["DIM", "NOISED", "Releases", "noised"]

DIM = 40
TABLE: dict[str, Any] = {"rows": 2, "cols": 20}
CLIENT: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 1.0}
NOISED: dict[str, tuple[str, dict[str, Any]]] = {
    "sketch-gaussian": ("sketch-gaussian", {**TABLE, **CLIENT}),
    "sketch-gaussian central": ("sketch-gaussian", {**TABLE, **CLIENT, "trust": "central"}),
    "sketch-gaussian distributed": ("sketch-gaussian", {**TABLE, **CLIENT, "trust": "distributed"}),
    "sketch-skellam": ("sketch-skellam", {**TABLE, **CLIENT}),
    "gaussian": ("gaussian", CLIENT),
    "skellam": ("skellam", CLIENT),
    "laplace": ("laplace", {"per_round": 1.0, "clip": 1.0}),
    "sketch-laplace": ("sketch-laplace", {**TABLE, "per_round": 1.0, "clip": 1.0}),
    "cpsgd": ("cpsgd", {"levels": 4, "trials": 100_000, "clip": 1.0, "delta": 1e-3}),
    "claimed laplace": ("laplace", {"per_round": 1.0}),
    "diffsketch": ("diffsketch", {**TABLE, "per_round": 1.0}),
}
"""Methods with noise of 100 steps or more; of the claimed ones, noise in floating point."""


def noised(name: str, cohort: int, dim: int = DIM) -> Method:
    kind, settings = NOISED[name]
    return build_method(kind, dim=dim, cohort=cohort, settings=settings)


@dataclass
class Releases:
    """The noise of all messages of one method.

    Two messages share their noise where it is the same, up to rounding, in half of the cells. By
    chance two cells have noise within two steps with probability below 2%: half of 21 cells and
    more have in fewer than one in 10**12 pairs.
    """

    method: Method
    noises: list[Tensor] = field(default_factory=list)

    def add(self, message: Tensor, vector: Tensor, seed: HashSeed) -> None:
        """Keep the noise of a message: what it has beside that of the same vector without noise."""
        bare = self.method.encode(vector, seed, Silent()).messages
        noise = message - bare
        form = self.method.message_format
        if form.cells == "unsigned" and self.method.name != "cpsgd":
            noise = centre(noise, form.bits)
        self.noises.append(noise.double())

    def shared(self) -> int:
        """Pairs that share their noise."""
        found = 0
        near = 2.0 if self.method.exact else 1e-6
        for i, one in enumerate(self.noises):
            for other in self.noises[:i]:
                found += int(((one - other).abs() <= near).double().mean() >= 0.5)
        return found
