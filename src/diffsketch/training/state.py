"""What a simulation has to keep between rounds, and what a round tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffsketch.training.identity import difference
from diffsketch.errors import MismatchError
from diffsketch.training.aggregate import Aggregate, Diverged
from diffsketch.training.catchup import Synced
from diffsketch.training.participation import Participation
from diffsketch.training.server import Model, Published
from diffsketch.privacy.claim import Claim

__all__ = ["DivergedRound", "RoundResult", "RunState", "diverged"]

_ACCOUNTS = "participation."


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round did.

    Attributes:
        round_index: The round.
        cohort: Indices of the devices that were drawn.
        published: What the server made known: with `Simulation.advance`, all that a device needs.
        bytes_up: Sent by the devices, headers included.
        bytes_down: Sent to the devices, headers included.
        claim: What the round guarantees.
        left_out: Names of workers whose vectors were not finite: left out of the mean, or counted
            as zeros with their noise if the claim is proven.
        summed: What the cohort sent, and what its members know of their own privacy.
        drift: How far apart the workers' models are, if they may be (`relative_drift`).
        loss: None: `Simulation.evaluate` measures it.
        downloads: Devices that received something: as many vectors, if nothing were compressed.
    """

    round_index: int
    cohort: Tensor
    published: Published
    bytes_up: int
    bytes_down: int
    claim: Claim
    left_out: tuple[str, ...]
    summed: Aggregate
    drift: float | None = None
    loss: float | None = None
    downloads: int = 0

    @property
    def noised(self) -> float | None:
        """The share of workers that had to add noise, for methods that validate by Theorem 1."""
        noised = self.summed.noised
        return None if noised is None else float(noised.double().mean())

    @property
    def claimed_median(self) -> float | None:
        """Of what Theorem 1 claims for the workers' bare messages; infinite if it claims nothing.

        A statistic of private data, for whoever simulates; no server would know it.
        """
        claimed = self.summed.claimed
        return None if claimed is None else float(claimed.median())

    @property
    def claimed_max(self) -> float | None:
        """The largest of what Theorem 1 claims for the workers' bare messages."""
        claimed = self.summed.claimed
        return None if claimed is None else float(claimed.max())


class DivergedRound(Diverged):
    """The messages of a round were sent, and what they give is not finite. The round is paid for.

    Attributes:
        result: What the round did, but for a new model.
    """

    def __init__(self, message: str, result: RoundResult) -> None:
        super().__init__(message)
        self.result = result


def diverged(round_index: int, what: str) -> Diverged:
    """The error of a round whose messages were sent and came to something that is not finite."""
    return Diverged(
        f"round {round_index}: {what} would not be finite: training diverges; the model before "
        "this round is kept, and what was sent is counted. A smaller learning_rate, server_step or "
        "update_clip may help"
    )


@dataclass(frozen=True, eq=False)
class RunState:
    """All that a round changes. Replaced as a whole, so that a round happens or does not.

    Attributes:
        round_index: Rounds that changed the model.
        model: Weights, and what the server's rule remembers.
        average: The exponential average of the weights, before its bias is corrected.
        participation: The clients' accounts.
        synced: Rounds that each device's model contains.
        bytes_up: Sent by all devices so far.
        bytes_down: Sent to all devices so far.
        ended: Why there can be no further round, if so. The accounts have the round of which
            nothing came, and the model has not.
        clip: The next round's, for methods whose clip moves.
    """

    round_index: int
    model: Model
    average: Tensor | None
    participation: Participation
    synced: Synced
    bytes_up: int = 0
    bytes_down: int = 0
    ended: str = ""
    clip: float | None = None

    def pack(self, settings: str) -> dict[str, Any]:
        """As tensors, numbers and texts.

        Args:
            settings: What the state belongs to.
        """
        found: dict[str, Any] = {
            "settings": settings,
            "round_index": self.round_index,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "ended": self.ended,
            "weights": self.model.weights.clone(),
            "synced": torch.from_numpy(self.synced.copy()),
        }
        found |= {f"memory.{name}": value.clone() for name, value in self.model.memory.items()}
        if self.average is not None:
            found["average"] = self.average.clone()
        if self.clip is not None:
            found["clip"] = self.clip
        accounts = self.participation.state()
        return found | {f"{_ACCOUNTS}{name}": value for name, value in accounts.items()}

    def unpacked(self, state: Mapping[str, Any], settings: str) -> RunState:
        """What `pack` was called on, for a simulation with this as its state.

        Raises:
            MismatchError: It belongs to other settings, or is not all of it.
        """
        if state.get("settings") != settings:
            why = difference(settings, str(state.get("settings")))
            raise MismatchError(f"the state must be that of the same simulation, but {why}")
        own = self.pack(settings)
        needed = {name for name in own if not name.startswith(f"{_ACCOUNTS}paid.")}
        if missing := sorted(needed - state.keys()):
            raise MismatchError(f"the state must have {', '.join(missing)}")
        for name, value in own.items():
            if name in needed and isinstance(value, Tensor) and state[name].shape != value.shape:
                found, wanted = tuple(state[name].shape), tuple(value.shape)
                raise MismatchError(f"{name} must have the shape {wanted}, got {found}")
        target = self.model.weights.device
        memory = {name: state[f"memory.{name}"].to(target).clone() for name in self.model.memory}
        accounts = {
            name.removeprefix(_ACCOUNTS): value
            for name, value in state.items()
            if name.startswith(_ACCOUNTS)
        }
        return RunState(
            round_index=state["round_index"],
            model=Model(state["weights"].to(target).clone(), memory),
            average=None if self.average is None else state["average"].to(target).clone(),
            participation=self.participation.restored(accounts),
            synced=state["synced"].cpu().numpy().copy(),
            bytes_up=state["bytes_up"],
            bytes_down=state["bytes_down"],
            ended=state["ended"],
            clip=None if self.clip is None else state["clip"],
        )
