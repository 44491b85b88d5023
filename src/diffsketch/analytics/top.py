"""The most frequent keys, by plain counts with a threshold or by a tree of prefixes.

In the tree no server sees anybody's key.

Keys are cut into digits of some bits, most significant first: 64-bit numbers into 16, 12, 12, 12
and 12, texts byte by byte in the same way. People are dealt at random into disjoint groups. Each
step of the tree has some groups, one for each row of a Count Sketch: everyone in them sends the
sketch of its prefix, a single cell of 1 or -1. From the sum of their tables the frequent prefixes
are found, and only these are continued in the next step. A last group counts the keys that are
left, a cell for each. So everybody sends one table, once: one person's data moves the sum of one
group, and the whole costs what one table costs (parallel composition). The groups follow from the
places of the people and public random numbers, never from keys: else a key could tell its group.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diffsketch.analytics.counts import named_counts
from diffsketch.analytics.items import Floats, Items
from diffsketch.analytics.release import NORMAL_95, Answer, TableNoise, Terms
from diffsketch.errors import ArgumentError, check_whole
from diffsketch.privacy.accounting.events import GaussianEvent
from diffsketch.privacy.claim import ProvenClaim, Trust
from diffsketch.privacy.clipping import WholeTables
from diffsketch.sketch import CountSketch, HashSeed, SketchKey
from diffsketch.sketch.hashing import columns_and_signs, mix64

Words = npt.NDArray[np.uint64]

_FIRST, _DIGIT = 16, 12  # bits of the first digit of a key, and of the others
_ROWS = 5
_COUNTERS = 0.35  # share of the people that count the keys which are left in the end
_FALSE = 0.01  # probability that any key is named which nobody among the counters has
_ROUNDS = 14  # of picking the largest estimates and taking them off the table
_RIDGE = 0.5
_POOL = 32  # words that are looked at more than once, for each that is kept


def private_top_k(
    people: Any,
    keys: Any = None,
    k: int = 20,
    *,
    epsilon: float,
    keys_per_person: int = 1,
    message_bytes: int = 4096,
    max_bytes: int = 16,
    **terms: Any,
) -> Answer:
    """Find the keys that most people have, with counts. Keys need not be known beforehand.

    Under central trust: plain counts with a threshold (`private_counts`), for keys of any kind.
    Under distributed and local trust: a tree of prefixes over disjoint groups of people (see this
    module), where everyone sends one message for one of its keys, drawn at random if it has more.

    A key is named only if its count stands out: no key that none of the counting people has is
    named, but with a probability of 1% for the whole list. So flat distributions, few people or
    much noise give fewer answers, not false ones.

    *Limits of the tree.* Whole numbers have 64 bits. Texts are known by their first `max_bytes`
    bytes of UTF-8; longer ones are counted with all that begin alike. Each 12 bits take a part of
    the people: with 10^6 people and epsilon 1, 64-bit keys from some 0.1% of the people on are
    found (`python -m benchmarks.heavy_hitters`); texts of 16 bytes take twice as many steps, and so
    more people for the same.

    Guarantees (`tests/analytics/test_top.py`): one person moves the sums of one group, by no more
    than the noise is made for; groups do not depend on keys; no false names beyond the stated
    probability.

    Args:
        people: The person of each row; None where each row is one. Or a sparse matrix or `Items`.
        keys: The key of each row: whole numbers or texts.
        k: The most names in the answer.
        epsilon: The most that the answer may tell of one person.
        keys_per_person: Under central trust, the most keys of a person.
        message_bytes: Bytes of one person's message, at most, where people send messages.
        max_bytes: Bytes by which texts are known, where people send messages.
        **terms: Those of `Terms`: `delta`, `trust`, `relation`, `account`.

    >>> cities = ["Rome"] * 2000 + ["Bath"] * 999 + ["Ys"]
    >>> private_top_k(None, cities, k=5, epsilon=1.0).names
    ('Rome', 'Bath')
    """
    check_whole("k", k, least=1)
    items, promise = Items.of(people, keys), Terms(epsilon, **terms)
    if promise.trust == Trust.CENTRAL:
        return named_counts(items, keys_per_person, None, promise, f"top {k}", k)
    if keys_per_person != 1:
        raise ArgumentError("keys_per_person must be 1 where people send one message of one key")
    # Who has no key sends noise like all others: the number of senders is public.
    key = np.full(items.people, -1)
    for piece in items.pieces(1):
        key[piece.person] = piece.key
    is_text = items.names.dtype.kind not in "iub"
    widths = widths_of(max_bytes if is_text else 8)
    digits = digits_of(items.names, widths)
    tree = PrefixTree.of(promise, items.people, widths, k, message_bytes)
    return tree.answer(key, digits, k, is_text=is_text)


def widths_of(length: int) -> tuple[int, ...]:
    """Bits of each digit of keys of `length` bytes."""
    check_whole("max_bytes", length, least=2, most=256)
    rest = 8 * length - _FIRST
    return (_FIRST, *(min(_DIGIT, rest - start) for start in range(0, rest, _DIGIT)))


def digits_of(names: npt.NDArray[Any], widths: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Digits of each name, most significant first: one array for each step of the tree."""
    length = sum(widths) // 8
    if names.dtype.kind in "iub":
        raw = names.astype(np.uint64 if names.dtype.kind == "u" else np.int64)
        data = raw.astype(f">{raw.dtype.kind}8").view(np.uint8).reshape(len(names), 8)
    else:
        texts = [str(name).encode()[:length].ljust(length, b"\0") for name in names.tolist()]
        data = np.frombuffer(b"".join(texts), np.uint8).reshape(len(names), length)
    digits, start = [], 0
    for width in widths:
        value = np.zeros(len(data), np.int64)
        for bit in range(start, start + width):
            value = 2 * value + (data[:, bit // 8] >> (7 - bit % 8) & 1)
        digits.append(value)
        start += width
    return digits


def name_of(digits: Sequence[int], widths: Sequence[int], *, is_text: bool) -> Any:
    """The key that has these digits, of these widths in bits."""
    value = 0
    for digit, width in zip(digits, widths, strict=True):
        value = value << width | digit
    if not is_text:
        return value - (1 << 64) if value >> 63 else value
    return value.to_bytes(sum(widths) // 8, "big").rstrip(b"\0").decode(errors="replace")


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Groups, tables and noise of a search.

    Attributes:
        widths: Bits of each digit of a key: of each step of the tree, with `_ROWS` groups.
        cols: Cells of a message.
        bits: Bits of a cell, which holds the sum of a group without wrapping.
        kept: Prefixes that are continued.
        noise: Of a group's sum of sketches.
        counting: Of the last group's counts.
    """

    people: int
    widths: tuple[int, ...]
    cols: int
    bits: int
    kept: int
    noise: TableNoise
    counting: TableNoise

    @classmethod
    def of(
        cls, terms: Terms, people: int, widths: tuple[int, ...], k: int, message_bytes: int
    ) -> PrefixTree:
        """Deal the people into groups, and calibrate the noise."""
        check_whole("message_bytes", message_bytes, least=64)
        steps = len(widths)
        group = int(people * (1 - _COUNTERS)) // (steps * _ROWS)
        counters = people - group * steps * _ROWS
        if group < 1:
            raise ArgumentError(f"people must be more than {steps * _ROWS * 2}, got {people}")
        # Everybody of a group may be in one cell, with either sign, and noise beside.
        bits = max(16, math.ceil(math.log2(2 * group + 2)))
        cols = 8 * message_bytes // bits
        kept = min(max(300, 4 * k), cols * _ROWS // 8, cols // 2)
        if k > kept:
            raise ArgumentError(f"k must be at most {kept} for these message_bytes, got {k}")
        # A cell of 1 or -1: another person's may be the same cell with the other sign. Counts of
        # 0 and 1 are nearer to each other: in cells of their own.
        noise = TableNoise.of(terms, WholeTables(cols, 1.0, 2.0), people=group)
        counting = TableNoise.of(terms, WholeTables(kept, 1.0, math.sqrt(2)), people=counters)
        return cls(people, widths, cols, bits, kept, noise, counting)

    def answer(
        self,
        key: npt.NDArray[np.int64],
        digits: list[npt.NDArray[np.int64]],
        k: int,
        *,
        is_text: bool,
    ) -> Answer:
        """Search, count, and name what stands out.

        Args:
            key: Of each person, the place of its key among the digits; -1 for none.
            digits: Of all keys.
            k: The most names.
            is_text: Whether digits are of texts.
        """
        # Every person is in one group, so the whole costs no more than the dearer of both kinds.
        claim = min((self.noise.claim, self.counting.claim), key=_multiplier)
        self.noise.charge(claim)
        *groups, counters = self.deal()
        public, left = SketchKey(secrets.token_bytes(32)), iter(groups)
        candidates = np.zeros((1, 0), np.int64)  # digits of each
        parents = np.zeros(1, np.uint64)
        for step, width in enumerate(self.widths):
            seed = public.seed(step)
            tables = []
            for row in range(_ROWS):
                held = key[next(left)]
                words = prefix_words([part[held[held >= 0]] for part in digits[: step + 1]])
                tables.append(self.row_table(words, seed, row))
            extensions = np.arange(1 << width)
            words = extended(np.repeat(parents, len(extensions)),
                             np.tile(extensions, len(parents)))  # fmt: skip
            best = self._largest(np.stack(tables), words, seed)
            candidates = np.concatenate(
                [candidates[best // len(extensions)], (best % len(extensions))[:, None]], axis=1
            )
            parents = words[best]
        return self._count(key[counters], digits, candidates, parents, claim, k, is_text)

    def deal(self) -> list[npt.NDArray[np.int64]]:
        """Deal the people at random into groups of one size each, and those who count."""
        order = np.random.default_rng().permutation(self.people)
        ends = self.noise.people * np.arange(1, len(self.widths) * _ROWS + 1)
        return np.split(order, ends)

    def row_table(self, words: Words, seed: HashSeed, row: int) -> Floats:
        """Sum the messages of the group of a row, who have these prefixes, and add the noise."""
        columns, signs = self._cells(words, seed)
        total = np.zeros(self.cols, np.int64)
        np.add.at(total, columns[row], signs[row].astype(np.int64))
        return self.noise.release_part(total)

    def _cells(self, words: Words, seed: HashSeed) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        layout = CountSketch(1 << 64, _ROWS, self.cols, "pairwise")
        return columns_and_signs(words, seed, layout=layout)

    def _largest(self, tables: Floats, words: Words, seed: HashSeed) -> npt.NDArray[np.int64]:
        """Places of the words with the largest counts in these tables `(rows, cols)`.

        Some at a time: the largest estimates are taken for real, all that were taken are fitted to
        the tables together (least squares with a little ridge), and what they explain is taken off,
        so that the next ones no longer collide with them.
        """
        from scipy.sparse import csr_matrix

        columns, signs = self._cells(words, seed)
        rows = np.arange(_ROWS)
        # Most words are far below: only the others are looked at again. By the median, as the mean
        # of all that share one cell with the most frequent key is large.
        seen = np.stack([tables[row][columns[row]] * signs[row] for row in rows])
        most = min(_POOL * self.kept, len(words))
        near = np.median(seen, axis=0)
        pool = np.argpartition(-near, most - 1)[:most]
        columns, signs = columns[:, pool], signs[:, pool]
        rest, taken = tables.copy(), np.zeros(0, np.int64)
        weights: Floats = np.zeros(0)
        goal = min(self.kept, len(words))
        fresh = np.ones(len(pool), bool)
        batch = -(-goal // _ROUNDS)
        while len(taken) < goal:
            seen = np.stack([rest[row][columns[row]] * signs[row] for row in rows])
            # The median is not misled by what is still in the table; the mean is sharper without.
            part = len(taken) / goal
            score = (1 - part) * np.median(seen, axis=0) + part * seen.mean(axis=0)
            score[~fresh] = -np.inf
            count = min(batch, goal - len(taken))
            picked = np.argpartition(-score, count - 1)[:count]
            fresh[picked] = False
            taken = np.concatenate([taken, picked])
            # Sparse, as a word has one cell in each row: most of the time would else go to zeros.
            cells = (rows[:, None] * self.cols + columns[:, taken]).ravel()
            words_of_cells = np.tile(np.arange(len(taken)), _ROWS)
            design = csr_matrix(
                (signs[:, taken].ravel().astype(np.float64), (cells, words_of_cells)),
                shape=(tables.size, len(taken)),
            )
            gram = (design.T @ design).toarray() + _RIDGE * np.eye(len(taken))
            weights = np.asarray(np.linalg.solve(gram, design.T @ tables.ravel()), np.float64)
            rest = tables - (design @ weights).reshape(tables.shape)
        taken = pool[taken]
        return taken[np.argsort(-weights, kind="stable")]

    def _count(
        self,
        key: npt.NDArray[np.int64],
        digits: list[npt.NDArray[np.int64]],
        candidates: npt.NDArray[np.int64],
        words: Words,
        claim: ProvenClaim,
        k: int,
        is_text: bool,
    ) -> Answer:
        """Count the keys that are left with the last group: a cell for each, no collisions."""
        order = np.argsort(words)
        mine = prefix_words([part[key[key >= 0]] for part in digits])
        at = np.searchsorted(words[order], mine).clip(max=len(words) - 1)
        hits = order[at][words[order][at] == mine]
        total = np.zeros(self.kept, np.int64)
        total[: len(words)] = np.bincount(hits, minlength=len(words))
        counters, noise = len(key), self.counting
        sums = noise.release_part(total, count=counters)[: len(words)]
        margin = 0.0
        while len(words) * noise.tail_bound(margin) > _FALSE:
            margin += max(1.0, noise.std / 8)
        scale = self.people / counters
        shown = np.flatnonzero(sums > margin)
        shown = shown[np.argsort(-sums[shown], kind="stable")][:k]
        counts = sums[shown] * scale
        # Noise, and that some of the people count for all: drawn without replacement.
        variance = (noise.std * scale) ** 2 + np.maximum(counts, 0) * (scale - 1)
        half = NORMAL_95 * np.sqrt(variance)
        names = [name_of(candidates[i].tolist(), self.widths, is_text=is_text) for i in shown]
        how = (
            f"a tree of {len(self.widths)} steps, each with {_ROWS} groups of "
            f"{self.noise.people:,} people who send {self.cols:,} cells of {self.bits} bits; "
            f"{counters:,} people count "
            f"the {len(words)} keys that are left: a standard deviation of "
            f"{noise.std * scale:.3g} from noise; named from {margin * scale:,.0f} on"
        )
        return Answer(
            f"top {k}", tuple(names), counts, counts - half, counts + half,
            claim.epsilon(delta=noise.terms.delta, rounds=1), claim, self.people, how,
            message_bytes=-(-self.cols * self.bits // 8),
        )  # fmt: skip


def prefix_words(digits: list[npt.NDArray[np.int64]]) -> Words:
    """A 64-bit word of each prefix, for prefixes of any length: extended digit by digit."""
    words = np.zeros(len(digits[0]), np.uint64)
    for digit in digits:
        words = extended(words, digit)
    return words


def extended(words: Words, digit: npt.NDArray[np.int64]) -> Words:
    """The words of prefixes with one more digit."""
    return mix64(words, np.uint64(0x9E3779B97F4A7C15), digit.astype(np.uint64) + np.uint64(1))


def _multiplier(claim: ProvenClaim) -> float:
    event = claim.event
    return event.noise_multiplier if isinstance(event, GaussianEvent) else 0.0
