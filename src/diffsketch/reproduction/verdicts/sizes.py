"""Claims that are arithmetic: sizes, ratios, and places where the text contradicts itself."""

from __future__ import annotations

import itertools
import math

from diffsketch.reproduction.verdicts.verdict import Facts, Standing, Statement, Verdict, graded
from diffsketch.reproduction.verdicts.words import listed, percent, times
from diffsketch.sketch import CountSketch

__all__ = ["RULES", "bits", "full_bins", "histogram_text", "lemma_2", "table_sizes"]

_NEAR = 0.1  # as a part of the number that is stated


def table_sizes(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Each stated ratio must be within 10% of parameters over cells."""
    dim = int(statement.values["dim"])
    hits, texts = [], []
    for rows, cols, stated in statement.values["tables"]:
        ratio = CountSketch(dim, int(rows), int(cols)).compression
        hits.append(abs(ratio / stated - 1) <= _NEAR)
        texts.append(f"{rows} x {cols} is {times(ratio)} (stated {times(stated)})")
    none = str(statement.values.get("slip", "the ratios are others"))
    return graded(hits, f"For {dim:,} parameters: {listed(texts)}.", part="{hits} of {total}",
                  none=none)  # fmt: skip


def bits(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Each stated ratio must be within 10% of 32 bits over the bits of a number."""
    hits, texts = [], []
    for count, stated in statement.values["rows"]:
        ratio = 32 / count
        hits.append(abs(ratio / stated - 1) <= _NEAR)
        texts.append(f"{count} bits instead of 32 are {times(ratio)} (stated {times(stated)})")
    return graded(hits, f"{listed(texts)}.", part="{hits} of {total} ratios", none="other ratios")


def histogram_text(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The text and the caption of a figure must state the same requirement."""
    text, caption = statement.values["text"], statement.values["caption"]
    measured = (
        f"The requirement is {text:g} in the paragraph's first half and {caption:g} in its second "
        "half and in the caption (per round; claimed, coordinate unit, replace, local trust). We "
        f"show both."
    )
    return graded([text == caption], measured, none="the text says both")


def full_bins(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The probability that no bin of a row is empty must be 99% or more for every size."""
    chances = {
        (dim, cols): math.fsum(
            (-1) ** j * math.comb(cols, j) * (1 - j / cols) ** (dim - 1) for j in range(cols)
        )
        for dim, cols in statement.values["sizes"]
    }
    texts = [f"{percent(p)} for {dim:,} in {cols}" for (dim, cols), p in chances.items()]
    return graded([p >= 0.99 for p in chances.values()], f"Probability: {listed(texts)}.",
                  part="{hits} of {total} sizes", none="bins are empty too often")  # fmt: skip


def lemma_2(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Both quantities must be least at the most even filling, among all of a few sizes."""
    hits = []
    for items, bins in statement.values["sizes"]:
        fillings = [
            filling
            for filling in itertools.product(range(1, items + 1), repeat=bins)
            if sum(filling) == items
        ]
        for quantity in (_weight, _inverses):
            best = min(fillings, key=quantity)
            even = [each for each in fillings if max(each) - min(each) <= 1]
            hits.append(all(quantity(each) <= quantity(best) * (1 + 1e-12) for each in even))
    sizes = ", ".join(f"{items} in {bins}" for items, bins in statement.values["sizes"])
    measured = f"All fillings of a few sizes were tried (items in bins: {sizes})."
    if all(hits):
        return Verdict(Standing.HOLDS, measured)
    return Verdict(Standing.FAILS, measured, "an uneven filling gives less")


def _weight(filling: tuple[int, ...]) -> float:
    return math.prod(math.factorial(each) for each in filling) * math.sqrt(math.prod(filling))


def _inverses(filling: tuple[int, ...]) -> float:
    return math.fsum(1 / each for each in filling)


RULES = {
    "sizes-mnist": table_sizes,
    "sizes-shakespeare": table_sizes,
    "bits": bits,
    "histogram-text": histogram_text,
    "full-bins": full_bins,
    "lemma-2": lemma_2,
}
