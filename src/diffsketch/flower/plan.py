"""The agreement of server and clients before a run: method, settings, cohort."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from diffsketch.errors import (
    ArgumentError,
    check,
    check_positive,
    check_whole,
)
from diffsketch.methods import METHODS, Method, PlainSketch, Uncompressed, build_method
from diffsketch.methods.base import check_setting_names, parse_settings
from diffsketch.methods.client_noise import ClientNoise
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Claim, OpenClaim, ProvenClaim, Trust
from diffsketch.secure_sum import OneShotParams, default_threshold
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import MessageFormat

_AGGREGATORS = ", summed by two aggregators that do not collude,"
_HONEST_SERVER = ", against a server that follows the protocol,"
_LOST = "not have lost: min_replies is how many must answer, corrupt how many may tell theirs"
DOORS = ("evaluation", "metrics", "queries")
"""What clients may send without noise beside their messages, if the plan says so."""
CLOSED_DOOR = (
    "a reply would leave without noise, and the plan is private. Measure on public data at the "
    "server (evaluate_fn), or give FlowerPlan(metrics=...), which releases means with noise; "
    "FlowerPlan(open_doors=('{}',)) opens the door, and then the claim is not proven"
)


@dataclass(frozen=True)
class FlowerPlan:
    """A method without the length of the vectors, which the model decides.

    Args:
        method: Its name, as in `diffsketch.methods.METHODS`.
        settings: Its settings. With `unit="example"` or `"person"` clients reply with `SiloReply`.
        cohort: Clients of a round, at most, for methods that need to know.
        min_replies: A round with fewer messages is void: nothing is published, and the model stays.
            Where clients of a cohort share the noise, they account for this many.
        secure_sum: How messages are summed so that the server sees no single one: "one" (or True)
            is a protocol among the members, for up to about a hundred; "two" is for any number,
            by the server and a helper that another operator runs as one of the nodes, two
            aggregators that do not collude (`TwoAggregators`). Takes a method with whole numbers;
            and with "one" `min_replies` above half of the cohort. Where clients share the noise,
            `noise_multiplier` is then that of `min_replies` messages: each has
            `sqrt(cohort / min_replies)` times its share, so that the claim that was planned holds
            with as few.
        corrupt: Members of a secure sum that may pass all they have to the server. Their noise
            does not count: `claim_for(min_replies - corrupt)` is what clients account for. And
            with "one" thresholds are above half of the members and these together, as a malicious
            server takes: so `2 min_replies > cohort + corrupt` is needed.
        identities: Whether members of a secure sum sign, by long-term keys that they, or the
            helper, know from somewhere else than the server (`SecureClientAggregation`). With
            False a claim under distributed trust is one against a server that follows the
            protocol, and says so: it could be between any two members, or invent members.
        open_doors: What clients send without noise beside the messages of a private method, which
            is closed otherwise: "evaluation" (replies to requests for it), "metrics" (all that the
            app's replies to training have, as they are), "queries" (replies to messages of other
            kinds). The claim is then an `OpenClaim`: no longer proven, and it names the doors.
        metrics: Names of numbers in the app's replies to training, with their bounds. Their means
            over the clients are released with noise, and charged with the rest of the round: what
            is beyond a bound counts as the bound, what is missing or no number as their middle. For
            Gaussian and Skellam noise, without a secure sum.
        metric_noise: Standard deviation of that noise, in sensitivities of all `k` metrics
            together. The mean over `n` clients of one whose bounds are `w` apart is right to
            `metric_noise * w * sqrt(k) / n` (a standard deviation; times `sqrt(n)` under local
            trust, half of it for add-or-remove).

    Guarantees (`tests/flower/test_secure.py`): the claim of any number from `min_replies` to
    `cohort` is at least the planned one; any threshold of a plan withstands `corrupt`; both sides
    charge without their noise.

    Raises:
        ArgumentError: No such method or setting, or a number out of range.

    >>> FlowerPlan("sketch", {"rows": 7, "cols": 22}).build(7850).wire_bytes
    620
    >>> FlowerPlan.parse("gaussian", "clip=1.5 noise_multiplier=2 trust=central", cohort=3).settings
    {'clip': 1.5, 'noise_multiplier': 2, 'trust': 'central'}
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cohort: int = 1
    min_replies: int = 1
    secure_sum: bool | Literal["one", "two"] = False
    corrupt: int = 0
    identities: bool = True
    open_doors: tuple[str, ...] = ()
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    metric_noise: float | None = None
    _built: dict[int, Method] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        named = isinstance(self.settings, Mapping)
        check(named, "settings", "be a mapping from names to values", self.settings)
        object.__setattr__(self, "settings", dict(self.settings))
        check_setting_names(self.method, self.settings)
        check_whole("cohort", self.cohort, least=1)
        trust = self.settings.get("trust", getattr(METHODS[self.method], "trust", None))
        alone = trust == Trust.DISTRIBUTED and self.cohort == 1
        check(not alone, "cohort", "be 2 or more for distributed trust", self.cohort)
        check_whole("min_replies", self.min_replies, least=1)
        check_whole("corrupt", self.corrupt, least=0)
        how, modes = "one" if self.secure_sum is True else self.secure_sum, (False, "one", "two")
        check(how in modes, "secure_sum", 'be a bool, "one" or "two"', how)
        object.__setattr__(self, "secure_sum", how)
        if how:
            try:
                shortest = build_method(
                    self.method, dim=1, cohort=self.cohort, settings=dict(self.settings)
                )
            except ArgumentError:
                pass  # `build` says it, about the model's own length
            else:
                self._check_sum(shortest)
            lowest = self.corrupt + 1 if self.has_helper else self._least(self.cohort)
            least, most = max(lowest, 2), self.cohort
            withstood = not self.corrupt or least <= most  # by some threshold
            check(withstood, "corrupt", f"be below cohort={most}", self.corrupt)
            among = f" of which {self.corrupt} may be corrupt" if self.corrupt else ""
            needed = f"be in {least}..{max(most, 2)} for a secure sum of a cohort of {most}{among}"
            check(least <= self.min_replies <= most, "min_replies", needed, self.min_replies)
        else:  # a server that sees every message needs no member's help
            check(not self.corrupt, "corrupt", "be 0 without secure_sum", self.corrupt)
        check(not self.settings.get("lost"), "settings", _LOST, self.settings)
        self._check_doors()
        self._check_metrics()

    def _check_sum(self, method: Method) -> None:
        form, total = method.message_format, method.total_format
        if self.secure_sum and (form.cells != "unsigned" or form != total):
            raise ArgumentError(
                f"secure_sum must be False: method={self.method!r} with settings={self.settings} "
                "has no secure sum, which needs messages of whole numbers with room for their "
                f"sum; these are of {form.bits} bits, {form.cells}, for a sum of {total.bits}"
            )

    def _check_doors(self) -> None:
        doors = self.open_doors
        named = not isinstance(doors, str) and all(door in DOORS for door in doors)
        check(named, "open_doors", f"be a tuple of {', '.join(DOORS)}", doors)
        object.__setattr__(self, "open_doors", tuple(sorted(set(doors))))
        useless = f"be empty for method={self.method!r}, which promises no privacy: none is closed"
        check(not (doors and self.is_bare), "open_doors", useless, doors)

    def _check_metrics(self) -> None:
        metrics = {name: (float(low), float(high)) for name, (low, high) in self.metrics.items()}
        object.__setattr__(self, "metrics", metrics)
        for name, (low, high) in metrics.items():
            wanted = f"be two finite numbers for {name!r}, the lower one first"
            check(-math.inf < low < high < math.inf, "metrics", wanted, (low, high))
        together = bool(metrics) == (self.metric_noise is not None)
        given = "be given with metrics, and only then"
        check(together, "metric_noise", given, self.metric_noise)
        if self.metric_noise is not None:
            check_positive("metric_noise", self.metric_noise)
        noised = issubclass(METHODS[self.method], ClientNoise) and not self.secure_sum
        if metrics and (not noised or self.settings.get("unit", "client") != "client"):
            raise ArgumentError(
                "metrics must be empty but for methods with Gaussian or Skellam noise, the unit "
                f"client and no secure_sum, got method={self.method!r} and secure_sum="
                f"{self.secure_sum}: measure on public data at the server (evaluate_fn), or plan "
                "with local or central trust"
            )
        _ = self.metric_method  # checks the noise

    @cached_property
    def metric_method(self) -> Method | None:
        """Method of the second, small message: metrics as a vector with entries in [-1, 1]."""
        kind, count = METHODS[self.method], len(self.metrics)
        if not count or not issubclass(kind, ClientNoise):
            return None
        settings = {"clip": math.sqrt(count), "noise_multiplier": self.metric_noise}
        settings |= {n: self.settings[n] for n in ("trust", "relation") if n in self.settings}
        name = "skellam" if kind.law.adds_up else "gaussian"
        return build_method(name, dim=count, cohort=self.cohort, settings=settings)

    def scaled_metrics(self, reported: Mapping[str, object]) -> Tensor:
        """Clip the metrics to their bounds, and map these to -1 and 1."""
        scaled = []
        for name, (low, high) in self.metrics.items():
            value = reported.get(name)
            # Compared before anything is computed: whole numbers may be too large for a float.
            if not isinstance(value, int | float) or value != value:
                value = (low + high) / 2
            scaled.append(2 * (min(max(value, low), high) - low) / (high - low) - 1)
        return torch.tensor(scaled)

    def restored_metrics(self, mean: Tensor) -> dict[str, float]:
        """Map means of scaled metrics back; with their noise they may be beyond the bounds."""
        return {
            name: low + (high - low) * (value + 1) / 2
            for (name, (low, high)), value in zip(self.metrics.items(), mean.tolist(), strict=True)
        }

    @classmethod
    def parse(cls, method: str, settings: str, **options: Any) -> FlowerPlan:
        """Make a plan from a run's configuration: settings as `name=value` with spaces between."""
        return cls(method, parse_settings(settings), **options)

    def build(self, dim: int) -> Method:
        """Build the method for vectors of this length.

        Raises:
            ArgumentError: A setting is refused, or the method is none for a secure sum.
        """
        if dim in self._built:
            return self._built[dim]
        settings = dict(self.settings)
        method = build_method(self.method, dim=dim, cohort=self.cohort, settings=settings)
        self._check_sum(method)
        shared = self.secure_sum and getattr(method, "trust", None) is Trust.DISTRIBUTED
        if shared and "noise_multiplier" in settings:
            more = math.sqrt(self.cohort / self.min_replies)
            settings["noise_multiplier"] = float(settings["noise_multiplier"]) * more
            method = build_method(self.method, dim=dim, cohort=self.cohort, settings=settings)
        self._built[dim] = method
        return method

    @property
    def is_bare(self) -> bool:
        """True for methods that promise no privacy at all: vectors and tables as they are."""
        return issubclass(METHODS[self.method], Uncompressed | PlainSketch)

    def opens(self, door: str) -> bool:
        """Whether clients may send this without noise: always, where nothing is promised."""
        return self.is_bare or door in self.open_doors

    @property
    def has_helper(self) -> bool:
        """Whether messages are summed by two aggregators, the server and a helper."""
        return self.secure_sum == "two"

    def one_shot(
        self, layout: MessageFormat, *, run: bytes, place: tuple[int, bytes], helper: bytes
    ) -> OneShotParams:
        """Parameters of a round with two aggregators: its index and fingerprint are its `place`."""
        return OneShotParams(
            layout, run=run, round_index=place[0], fingerprint=place[1], helper=helper,
            min_present=self.min_replies, plan=self.describe(layout.dim), signed=self.identities,
        )  # fmt: skip

    def threshold(self, members: int) -> int:
        """Compute how many members of a secure sum must stay to the end.

        More than two thirds of them, or `min_replies` if that is less; and `2 threshold > members +
        corrupt` in any case, so that the server and those who are corrupt never have both secrets
        of another member.

        >>> coarse = {"levels": 4, "trials": 9}
        >>> plan = FlowerPlan("cpsgd", coarse, 10, 9, secure_sum=True)
        >>> plan.threshold(10), plan.threshold(9)
        (7, 7)
        >>> FlowerPlan("cpsgd", coarse, 10, 9, secure_sum=True, corrupt=4).threshold(10)
        8
        """
        return min(max(default_threshold(members), self._least(members)), self.min_replies)

    def claim_for(self, method: Method, present: int, seed: HashSeed) -> Claim:
        """Claim of a round with `present` messages, without the noise of the corrupt.

        It is about all that clients send: messages and metrics together, and open doors.
        """
        claim = method.claim_for(present - self.corrupt, seed)
        if not isinstance(claim, ProvenClaim):
            return claim
        if self.secure_sum and claim.scope.trust is Trust.DISTRIBUTED:
            for condition, holds in ((_AGGREGATORS, self.has_helper),
                                     (_HONEST_SERVER, not self.identities)):  # fmt: skip
                if holds:
                    claim = replace(claim, mechanism=claim.mechanism.rstrip(",") + condition)
        if self.metric_method is not None:
            metrics = self.metric_method.claim_for(present, seed)
            assert isinstance(metrics, ProvenClaim)  # noqa: S101 (for the type checker)
            event = events.composed(claim.event, metrics.event)
            mechanism = f"{claim.mechanism} (of metrics: {metrics.mechanism})"
            claim = replace(claim, event=event, mechanism=mechanism)
        if self.open_doors:
            return OpenClaim(claim.scope, claim.event, claim.mechanism, self.open_doors)
        return claim

    def describe(self, dim: int, keep_local: Collection[str] = ()) -> str:
        """Text of all that server and clients must agree on: plans are the same if these are."""
        how = ""
        if self.secure_sum:
            how = ", two aggregators" if self.has_helper else ", secure sum"
            how += " with identities" if self.identities else ""
        how += f", corrupt={self.corrupt}" if self.corrupt else ""
        how += f", without {', '.join(sorted(keep_local))}" if keep_local else ""
        how += f", open for {', '.join(self.open_doors)}" if self.open_doors else ""
        how += f", metrics={self.metrics} with {self.metric_noise}" if self.metrics else ""
        return f"{self.build(dim)}, min_replies={self.min_replies}{how}"

    def _least(self, members: int) -> int:
        """Lowest threshold that withstands a server with its accomplices."""
        return (members + self.corrupt) // 2 + 1
