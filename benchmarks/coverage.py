"""How often do the 95% intervals of private answers contain the truth?

    python -m benchmarks.coverage            # 1,000 runs of each question
    python -m benchmarks.coverage --runs 100 --question means

The truth is that of the same data, bounded in the same way, without noise and without a sketch. The
data changes from run to run. The share has a standard error of its own: runs have several intervals
each, of which those of quantiles depend on each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from diffsketch import Answer, private_counts, private_mean, private_quantiles, private_top_k

Run = Callable[[np.random.Generator], tuple[Answer, Sequence[float]]]


def means(rng: np.random.Generator) -> tuple[Answer, Sequence[float]]:
    data = {name: rng.normal(50, 20, 1000).clip(0, 120) for name in "abcd"}
    answer: Answer = private_mean(data, bounds=(0, 120), epsilon=1.0)
    return answer, [float(values.mean()) for values in data.values()]


def counts(rng: np.random.Generator) -> tuple[Answer, Sequence[float]]:
    keys = rng.zipf(1.5, 3000).clip(max=1000)
    asked = [1, 2, 3, 50, 999]
    return private_counts(None, keys, asked=asked, epsilon=1.0), [
        float((keys == key).sum()) for key in asked
    ]


def sketches(rng: np.random.Generator) -> tuple[Answer, Sequence[float]]:
    keys = rng.zipf(1.5, 3000).clip(max=1000)
    answer = private_counts(
        None, keys, asked=range(1, 1001), epsilon=1.0, trust="distributed", message_bytes=1200
    )
    picked = [0, 1, 2, 49, 998]  # all of one table would depend on each other
    truth = np.bincount(keys, minlength=1001)[1:]
    part = Answer(
        "", tuple(answer.names[i] for i in picked), answer.estimates[picked], answer.low[picked],
        answer.high[picked], answer.epsilon, answer.claim, answer.people, "",
    )  # fmt: skip
    return part, truth[picked].tolist()


def top(rng: np.random.Generator) -> tuple[Answer, Sequence[float]]:
    # Texts of two bytes: one step of the tree, as its intervals come from the last group alone.
    keys = np.array([f"{rank:02}" for rank in rng.zipf(1.8, 5000).clip(max=99)])
    answer = private_top_k(
        None, keys, 5, epsilon=4.0, trust="distributed", message_bytes=600, max_bytes=2
    )
    return answer, [float((keys == name).sum()) for name in answer.names]


def quantiles(rng: np.random.Generator) -> tuple[Answer, Sequence[float]]:
    values = rng.normal(50, 15, 3000).clip(0, 120)
    levels = [0.1, 0.5, 0.9]
    answer = private_quantiles(values, levels, bounds=(0, 120), epsilon=1.0)
    return answer, np.quantile(values, levels).tolist()


QUESTIONS: dict[str, Run] = {
    "means": means, "counts": counts, "sketches": sketches, "top": top, "quantiles": quantiles,
}  # fmt: skip


def covered(question: str, seed: int) -> float:
    """Share of the intervals of a run that contain the truth; the noise is the system's own."""
    answer, truth = QUESTIONS[question](np.random.default_rng(seed))
    inside = (answer.low <= truth) & (truth <= answer.high)
    return float(inside.mean())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--question", choices=list(QUESTIONS))
    options = parser.parse_args(argv)
    for question in [options.question] if options.question else QUESTIONS:
        shares = np.array([covered(question, seed) for seed in range(options.runs)])
        error = shares.std() / np.sqrt(len(shares))
        print(f"{question:<10} {shares.mean():.3f} +- {error:.3f} of {options.runs:,} runs")


if __name__ == "__main__":
    main()
