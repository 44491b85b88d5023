"""The planner: from a target and a budget to a method, its settings and its predicted error."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from diffsketch.errors import ArgumentError, check_type, check_whole
from diffsketch.planning.search import TIE, TRUSTS, Option, PlanRequest, search
from diffsketch.privacy.claim import Trust, Unit
from diffsketch.wire.message import CHECKSUM_BYTES
from diffsketch.wire.sums import costs_more_than_dense, proposed_sum, round_bytes


class PlanWarning(UserWarning):
    """A plan that should not be relied on as it is, such as one worse than sending nothing."""


@dataclass(frozen=True)
class Plan:
    """A proposed method, its alternatives, and what to beware of.

    Attributes:
        request: What was asked.
        best: The method with the least predicted error.
        alternatives: The next ones, by their error.
        warnings: In plain words; empty if the prediction is better than sending nothing.
        advice: What would help, if there is a warning about the error.
        notes: What the prediction takes for granted.
    """

    request: PlanRequest
    best: Option
    alternatives: tuple[Option, ...]
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]


def plan(request: PlanRequest, *, alternatives: int = 5) -> Plan:
    """Choose the method of the registry, with all its settings, that should do best.

    Every method that needs no more trust than there is, fits the bytes and has a proof for the
    unit is tried, each with its best settings. Of methods whose errors are within 1% of each other
    the one that needs less trust, then the one with the smaller message, comes first. Methods
    without exact noise, which engines refuse, are listed only if there is no other.

    Guarantees (`tests/planning`): each option's epsilon, from its own claim, is at most the
    target; its bytes are those of its messages; predicted errors agree with simulations; its
    command runs.

    Args:
        request: What is wanted.
        alternatives: How many others to list, at most.

    Raises:
        ArgumentError: No method can do it, or `request` is not a `PlanRequest`.

    Warns:
        PlanWarning: For each of the plan's `warnings`.

    >>> wanted = PlanRequest(
    ...     dim=1000, cohort=500, rounds=1, target_epsilon=4.0, message_bytes=5000
    ... )
    >>> found = plan(wanted)
    >>> found.best.method.name, float(found.best.total) <= 4.0, found.best.error.total < 1
    ('gaussian', True, True)
    """
    check_type("request", request, PlanRequest)
    check_whole("alternatives", alternatives, least=0)
    # Engines refuse noise that is not drawn exactly.
    options = [option for option in search(request) if option.method.exact]
    if not options:
        what = f"epsilon {request.target_epsilon:g} over {request.paying_rounds} rounds"
        scope = f"the {request.unit} unit and {request.trust} trust"
        if request.delta == 0:
            raise ArgumentError(
                f"no method gives {what} without a delta for {scope}: allow a delta"
            )
        size = f"at delta {request.delta:g} within {request.message_bytes} bytes"
        raise ArgumentError(f"no method gives {what} {size} for {scope}")
    options.sort(key=lambda option: option.error.total)
    # Predictions are not better than a percent, so ties go to who must be trusted less.
    close = [o for o in options if o.error.total <= TIE * options[0].error.total]
    best = min(close, key=lambda o: (TRUSTS.index(o.trust), o.method.wire_bytes))
    options.remove(best)
    texts = (tuple(write(best, request)) for write in (_warnings, _advice, _notes))
    answer = Plan(request, best, tuple(options[:alternatives]), *texts)
    for text in answer.warnings:
        warnings.warn(text, PlanWarning, stacklevel=2)
    return answer


def _warnings(option: Option, request: PlanRequest) -> list[str]:
    """List what the user must know before relying on it; empty if all is well."""
    warned, error = [], option.error
    if error.total > 1:
        parts = f"{_brief(error.noise + error.rounding)} from the noise"
        if error.recovery:
            cells = option.method.message_format.cell_count
            where = f"{request.dim:,} coordinates in {cells:,} cells"
            parts = f"{_brief(error.recovery)} from {where}, {parts}"
        warned.append(
            "One round alone is worse than sending nothing: its predicted error is "
            f"{_brief(error.total)} times the squared norm of the mean ({parts}); an estimate of "
            "zero has 1."
        )
    if request.unit is Unit.COORDINATE:
        warned.append(
            "Only one coordinate of a client's vector is protected, not what a client holds: data "
            "that changes many coordinates can still be told apart."
        )
    if option.trust is Trust.DISTRIBUTED:
        layout = option.method.message_format
        more = costs_more_than_dense(proposed_sum(request.cohort), layout, request.cohort)
        warned += [f"Compression does not pay: {more}."] if more else []
    return warned


def _advice(option: Option, request: PlanRequest) -> list[str]:
    """List what would bring the error down to 1; empty if it is there."""
    error = option.error
    if error.total <= 1:
        return []
    averaged = f", {_brief(error.total / request.rounds)} over all of them" * (request.rounds > 1)
    advice = [
        "Averages over rounds: hashes and noise are fresh in each, so for a mean that stays the "
        f"same the error is that of one round divided by their number{averaged}."
    ]
    if error.recovery >= 1:
        advice.append(
            "Larger messages: no number of clients makes up for the sketch; with some "
            f"{_brief(CHECKSUM_BYTES + 4 * request.dim)} bytes the vector itself fits."
        )
    # The noise has what the sketch leaves of 1; where that is nothing, half as much as zero has.
    goal = 1 - error.recovery if error.recovery < 1 else 0.5
    factor = (error.noise + error.rounding) / goal
    if factor > 1:
        # Of a mean of n messages with noise in each, the variance falls with n; with noise in
        # their sum, with n^2.
        power = 1 if option.trust is Trust.LOCAL else 2
        count = math.ceil(request.drawn[1] * math.pow(factor, 1 / power))
        against = f" against the noise, down to {_brief(goal)}" if error.recovery >= 1 else ""
        what = "records a round in all silos" if request.of_records else "clients a round"
        advice.append(
            f"More {what}{against}: {_brief(count)} instead of {_brief(request.drawn[1])}; or a "
            "larger epsilon, or fewer rounds."
        )
        if request.trust is Trust.LOCAL and request.unit is not Unit.COORDINATE and request.delta:
            advice.append(
                "Distributed trust: if a secure sum hides single messages, noise is needed once "
                f"and not in each of them; its part falls by a factor of up to {request.cohort:,}."
            )
    return advice


def _notes(option: Option, request: PlanRequest) -> list[str]:
    """List what the prediction takes for granted."""
    notes = [
        f"Predicted for dense vectors of norm {request.vector_norm:g}, not longer (they would be "
        "clipped) nor shorter (the noise would be larger beside them): --norm sets it."
    ]
    if request.of_records:
        notes.append(
            "Vectors are gradients of single records: --spread says how much these differ. Sums "
            f"are divided by {request.drawn[1]:g}, whatever was drawn: the batch and its size "
            "stay secret."
        )
    if request.members > request.cohort:
        passes = -(-request.rounds // (request.members // request.cohort))
        every_round = (
            "All rounds count for every client, since one may be drawn in each of them; "
            f"--sampling shuffled would count {passes:,} of {request.rounds:,}."
        )
        by_sampling = {
            "shuffled": f"Each of the {request.members:,} clients takes part in {passes:,} of the "
            f"{request.rounds:,} rounds at most, and pays for these.",
            "poisson": "The guarantee counts on who takes part being secret, and on every client "
            f"being drawn on its own, with probability {request.cohort / request.members:.3g}.",
        }
        notes.append(by_sampling.get(request.sampling, every_round))
    if option.trust is Trust.DISTRIBUTED:
        party = "silos" if request.of_records else "clients"
        notes.append(
            f"The noise of all {request.cohort:,} {party} of a round counts: if fewer answer, the "
            "claim is weaker (Flower's min_replies makes up for it)."
        )
        how = proposed_sum(request.cohort)
        up, down = round_bytes(how, option.method.message_format, request.cohort)
        by = {"one": "one server and the members", "two": "two aggregators that do not collude"}
        notes.append(
            f"Summed by {by[how]}: each sends {up:,} bytes in a round, all exchanges together, "
            f"and receives {down:,} with the result; vectors without compression take "
            f"{4 * request.dim:,} each way."
        )
    return notes


def _brief(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 10**9 else f"{value:.3g}"
