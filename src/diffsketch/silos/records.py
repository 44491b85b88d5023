"""A party's records: drawn in secret, and turned into the vectors that a message is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.methods.base import Method
from diffsketch.privacy.claim import Claim, Unit
from diffsketch.privacy.noise import Noise, SecureNoise
from diffsketch.silos.gradients import RecordGradients
from diffsketch.silos.messages import draw_records, record_method, release_records
from diffsketch.sketch.hashing import HashSeed


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records of one party; with `persons`, all records of a person count as one.

    The vector of a person is the mean of the gradients of their records, bounded once. The claim
    hides what this party has of a person. If a person has records in `s` parties, it still holds
    for each of these parts alone, and for all of them together with a noise multiplier `s` times
    smaller: `check_persons` refuses that where all parties' numbers can be seen.

    Args:
        inputs: `(records, ...)`.
        labels: `(records, ...)`.
        persons: `(records,)`, whole numbers: whose each record is. For `unit="person"`.
    """

    inputs: Tensor
    labels: Tensor
    persons: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "labels", "persons"):
            values = getattr(self, name)
            if values is None and name == "persons":
                continue
            tensor = isinstance(values, Tensor) and values.dim() > 0
            check(tensor, name, "be a tensor (records, ...)", type(values).__name__)
            if len(values) != len(self.inputs):
                raise MismatchError(
                    f"{name} must be {len(self.inputs)}, one for each record, got {len(values)}"
                )
        if self.persons is not None:
            whole = not self.persons.is_floating_point() and self.persons.dim() == 1
            check(whole, "persons", "be whole numbers (records,)", self.persons.dtype)

    @cached_property
    def _owners(self) -> Tensor:
        """Number of the person of each record: 0, 1, 2 and so on."""
        if self.persons is None:
            return torch.arange(len(self.inputs))
        _, owners = torch.unique(self.persons, return_inverse=True)
        return torch.as_tensor(owners)

    @cached_property
    def members(self) -> int:
        """Number of records that are drawn on their own; of persons, if there are `persons`."""
        return int(self._owners.max()) + 1 if len(self._owners) else 0

    def drawn(self, method: Method, noise: Noise) -> Tensor:
        """Draw a batch for one message: indices of records, those of one person together.

        Raises:
            ArgumentError: The method hides examples and there are `persons`, or the reverse.
        """
        unit = record_method(method).unit
        if (unit == Unit.PERSON) != (self.persons is not None):
            raise ArgumentError(
                f"persons must be given for unit='person', and only then, got unit={unit!s}: a "
                "claim about examples does not hide who has several of them"
            )
        members = draw_records(method, self.members, noise)
        chosen = torch.isin(self._owners, members).nonzero().flatten()
        return chosen[self._owners[chosen].argsort(stable=True)]

    def vectors(self, gradients: RecordGradients, drawn: Tensor) -> Iterator[Tensor]:
        """Compute the vectors of a batch, in pieces: of records, or of persons."""
        inputs, labels = self.inputs[drawn], self.labels[drawn]
        pieces = gradients.pieces(inputs, labels)
        return pieces if self.persons is None else self._merged(pieces, self._owners[drawn])

    def _merged(self, pieces: Iterator[Tensor], owners: Tensor) -> Iterator[Tensor]:
        """Merge the vectors of each person's records, in their order, to their mean."""
        rows = (row for piece in pieces for row in piece)
        _, counts = torch.unique_consecutive(owners, return_counts=True)
        for count in counts.tolist():
            # Added up as they come: a piece is written over the one before it.
            yield sum(islice(rows, count), start=torch.zeros(()))[None] / count

    def message(
        self,
        gradients: RecordGradients,
        method: Method,
        seed: HashSeed,
        claim: Claim,
        *,
        charge: Callable[[], object] | None,
        noise: Noise | None = None,
    ) -> Tensor:
        """Charge, draw a batch, and return its message: what leaves a silo in a round.

        Args:
            gradients: Computes the vectors, at the model of the round.
            method: With `unit="example"` or `"person"`.
            seed: The round's hashes.
            claim: What is claimed for the message, or for the sum of all members'.
            charge: Charges the party's account, and raises if it cannot be paid.
            noise: Simulated noise, from which the batch is drawn, too; else the operating system's.
        """
        source = SecureNoise() if noise is None else noise

        def pieces() -> Iterator[Tensor]:
            yield from self.vectors(gradients, self.drawn(method, source))

        return release_records(pieces(), method, seed, claim, charge=charge, noise=noise)


def check_persons(parties: Mapping[str, Records]) -> None:
    """Raise an `ArgumentError` if a person has records in several parties, and say what holds."""
    seen: dict[int, str] = {}
    for name, records in parties.items():
        for person in () if records.persons is None else sorted(set(records.persons.tolist())):
            if person in seen:
                raise ArgumentError(
                    f"persons must be in one party each, got {person} in {seen[person]!r} and "
                    f"{name!r}: every party bounds what it has of a person, so a claim hides one "
                    "party's part of their records. For all of s parties together it holds with a "
                    "noise multiplier s times smaller: give noise_multiplier times s"
                )
            seen[person] = name
