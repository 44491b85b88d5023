"""The paper's parameters of cpSGD: what they cost, and what cpSGD's theorem says about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from diffsketch.privacy.mechanisms.cpsgd import PAPER_SETTINGS, BinomialMechanism, PaperSetting
from diffsketch.reproduction.measurements.options import check_known, finite, number, whole, wholes

__all__ = ["least_trials", "measure"]

_MOST_TRIALS = 1 << 40


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """Each row of the paper's table, with so many workers in a secure sum. Nothing is random.

    Args:
        settings: `dim`; `cohorts`, a list of numbers of workers; `delta`; `limit` of a coordinate
            and `clip` of a vector's norm.
        seed: Not used.
        on_progress: Told the share that is done.
    """
    del seed
    check_known(settings, {"dim", "cohorts", "delta", "limit", "clip"})
    rows = []
    for place, setting in enumerate(PAPER_SETTINGS):
        mechanisms = [_mechanism(settings, setting, n) for n in wholes(settings, "cohorts")]
        bits = mechanisms[0].bits
        rows.append(
            {
                "claimed": setting.claimed,
                "bits": setting.bits,
                "levels": setting.levels,
                "trials": setting.trials,
                "bits_needed": bits,
                "compression": 32 / bits,
                "cohorts": [_with_cohort(each, setting) for each in mechanisms],
            }
        )
        on_progress((place + 1) / len(PAPER_SETTINGS))
    return {"delta": number(settings, "delta"), "rows": rows}


def _mechanism(
    settings: Mapping[str, Any], setting: PaperSetting, cohort: int
) -> BinomialMechanism:
    return BinomialMechanism(
        dim=whole(settings, "dim"),
        clip=number(settings, "clip"),
        limit=number(settings, "limit"),
        levels=setting.levels,
        trials=setting.trials,
        cohort=cohort,
        delta=number(settings, "delta"),
    )


def _with_cohort(mechanism: BinomialMechanism, setting: PaperSetting) -> dict[str, Any]:
    """What the theorem says of the sum of so many messages, and what it would take."""
    variance = mechanism.std**2 / mechanism.step**2
    epsilon = float(mechanism.claim.epsilon(delta=mechanism.delta, rounds=1))
    trials = least_trials(mechanism, setting.claimed)
    enough = None if trials is None else _with_trials(mechanism, trials)
    return {
        "cohort": mechanism.cohort,
        "variance": variance,
        "variance_needed": _variance_needed(mechanism),
        "epsilon": finite(epsilon),
        "sum_bits": mechanism.sum_bits,
        "sum_compression": 32 / mechanism.sum_bits,
        "trials_needed": trials,
        "bits_then": None if enough is None else enough.bits,
        "sum_bits_then": None if enough is None else enough.sum_bits,
    }


def _variance_needed(mechanism: BinomialMechanism) -> float:
    """The theorem's condition: `max(23 ln(10 d / delta), 2 Dinf)` in steps squared."""
    shift, _ = mechanism.shifts()
    return max(23 * math.log(10 * mechanism.length / mechanism.delta), 2 * shift.largest)


def least_trials(mechanism: BinomialMechanism, target: float) -> int | None:
    """The fewest trials of each worker for which the theorem gives an epsilon of at most `target`.

    The epsilon falls with the trials, so bisection finds them; None if none up to 2**40 suffice.
    """

    def suffices(trials: int) -> bool:
        enough = _with_trials(mechanism, trials)
        return float(enough.claim.epsilon(delta=enough.delta, rounds=1)) <= target

    if not suffices(_MOST_TRIALS):
        return None
    too_few, enough = 0, _MOST_TRIALS
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


def _with_trials(mechanism: BinomialMechanism, trials: int) -> BinomialMechanism:
    return replace(mechanism, trials=trials)
