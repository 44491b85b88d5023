"""Integer noise on rounded vectors and tables, packed into as few bits as the sum allows.

Under distributed trust a message takes part in a secure sum, so its cells must hold the sum. Under
local trust each message is decoded on its own, and needs room only for its own noise; under central
trust, where the server adds the noise to the sum, not even for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from diffsketch.errors import ArgumentError
from diffsketch.plan.candidates import finish, mean_variance, trusts_within
from diffsketch.plan.clips import Clip, clips
from diffsketch.plan.error_model import RelativeError, noise_error, rounding_variance
from diffsketch.plan.levels import NoiseLevels, least_multiplier
from diffsketch.plan.options import Draft, Layout, Method, Option, layouts, least_error
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Trust, Unit
from diffsketch.privacy.mechanisms.bounds import NormBound
from diffsketch.privacy.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.mechanisms.quantize import MAX_BITS, Quantizer
from diffsketch.privacy.mechanisms.skellam import SkellamMechanism

__all__ = ["MAX_SHARED_GAUSSIAN", "PEAK", "integer_options", "message_room"]

PEAK = 8.0
"""Room for cells that are so many times larger than the root mean square. Those of a dense vector
need 5; what exceeds the room wraps around and is lost."""

_OVERFLOW = 1e-4  # probability that noise makes any cell of a round wrap
_FEWEST_BITS, _MOST_BITS = 3, 28
_BITS_OVER_SUM = 14  # the most, if a sum of as many ones already takes many
_ROWS = (1,)  # to the mean over the rows, tables of as many cells are all alike
MAX_SHARED_GAUSSIAN = 10**5  # workers; beyond, its bound takes long to compute

_Kind = type[SkellamMechanism] | type[DiscreteGaussianMechanism]


def integer_options(request: PlanRequest, levels: NoiseLevels) -> Iterator[Option]:
    """Skellam and discrete Gaussian noise for secure sums; discrete Gaussian noise elsewhere."""
    if request.unit is Unit.COORDINATE or levels.gaussian is None:
        return
    for trust in trusts_within(request, Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL):
        kinds: list[_Kind] = [DiscreteGaussianMechanism]
        if trust is Trust.DISTRIBUTED:
            kinds.insert(0, SkellamMechanism)
            kinds = kinds if request.workers <= MAX_SHARED_GAUSSIAN else kinds[:1]
        for kind in kinds:
            search = _Search(request, levels, kind, trust)
            for raw in (True, False):
                option = search.best(raw=raw)
                if option is not None:
                    yield option


def message_room(request: PlanRequest, cols: int) -> float:
    """How large a cell of one worker's message may be before noise: `PEAK` times the usual."""
    count = request.examples
    size = math.sqrt((1 + request.spread / count) / (1 + request.spread))
    return PEAK * request.vector_norm / math.sqrt(cols) * count * size


@dataclass(frozen=True)
class _Search:
    request: PlanRequest
    levels: NoiseLevels
    kind: _Kind
    trust: Trust

    @property
    def multiplier(self) -> float:
        """Of the noise, near enough to compare shapes."""
        return self.levels.gaussian or math.inf

    @property
    def _bits(self) -> range:
        """What to try: more where the sum is over very many."""
        many = 0
        if self.trust is Trust.DISTRIBUTED:
            many = self.request.workers.bit_length()
        return range(_FEWEST_BITS, min(max(_MOST_BITS, many + _BITS_OVER_SUM), MAX_BITS) + 1)

    def best(self, *, raw: bool) -> Option | None:
        """Choose the bits for the whole budget first, then the size of the table and the clip."""
        whole = (draft for bits in self._bits for draft in self._drafts(bits, raw=raw, whole=True))
        widest = least_error(whole)
        if widest is None:
            return None
        draft = least_error(self._drafts(widest.bits, raw=raw, whole=False))
        return self._settled(draft or widest)

    def _drafts(self, bits: int, *, raw: bool, whole: bool) -> Iterator[Draft]:
        every = layouts(self.request, bits, rows=_ROWS)
        shapes = [layout for layout in every if (layout.rows is None) == raw]
        for layout in shapes[:1] if whole else shapes[::2]:
            found = list(clips(self.request, layout))
            for clip in found[:1] if whole else found:
                mechanism = self._mechanism(layout, clip, bits, self.multiplier)
                if mechanism is not None:
                    yield self._draft(layout, clip, bits, mechanism)

    def _settled(self, draft: Draft) -> Option | None:
        """The draft with exactly the noise that its own event needs."""
        layout, bits = draft.layout, draft.bits
        clip = next(clip for clip in clips(self.request, layout) if clip[0] == draft.bound)
        # The step depends on the noise, which depends on the step, but only a little.
        mechanism = self._calibrated(layout, clip, bits, self.multiplier)
        if mechanism is not None:
            mechanism = self._calibrated(layout, clip, bits, mechanism.noise_multiplier)
        if mechanism is None:
            return None
        final = self._draft(layout, clip, bits, mechanism)
        names = [Method.SKETCH_DISCRETE_GAUSSIAN, Method.RAW_DISCRETE_GAUSSIAN]
        if self.kind is SkellamMechanism:
            names = [Method.SKETCH_SKELLAM, Method.RAW_SKELLAM]
        method = names[layout.rows is None]
        return finish(
            self.levels, final, method, mechanism,
            std=mechanism.std, multiplier=mechanism.noise_multiplier,
        )  # fmt: skip

    def _calibrated(
        self, layout: Layout, clip: Clip, bits: int, multiplier: float
    ) -> IntegerMechanism | None:
        """With a step for about this noise, and then exactly the noise that the event needs."""
        fitted = self._mechanism(layout, clip, bits, multiplier)
        if fitted is None:
            return None

        def event(multiplier: float) -> Event:
            return replace(fitted, noise_multiplier=multiplier).claim.event

        try:
            needed = least_multiplier(self.request, event)
        except ArgumentError:  # the shares would be too small for a proof
            return None
        return None if needed is None else replace(fitted, noise_multiplier=needed)

    def _mechanism(
        self, layout: Layout, clip: Clip, bits: int, multiplier: float
    ) -> IntegerMechanism | None:
        """With the finest step that the bits allow; None if they allow none."""
        request, bound = self.request, clip[0]
        if not isinstance(bound, NormBound):
            return None
        largest, cohort = PEAK * request.vector_norm / math.sqrt(layout.cols), 1
        if self.trust is Trust.DISTRIBUTED:
            cohort = request.workers
            largest *= request.units * math.sqrt(request.mean_energy)
        try:
            if self.trust is Trust.CENTRAL:
                return self._for_server(layout, bound, bits, multiplier)
            mechanism = self.kind(
                Quantizer(bound, bound.limit / 8, layout.cells), multiplier,
                relation=request.relation, trust=self.trust, cohort=cohort, bits=bits,
            )  # fmt: skip
            return mechanism.with_granularity_for(_OVERFLOW, largest=largest)
        except ArgumentError:
            return None

    def _for_server(
        self, layout: Layout, bound: NormBound, bits: int, multiplier: float
    ) -> IntegerMechanism | None:
        """The bits are those of a message without noise; the server's sum has as many as it needs.

        A message is the sum of a worker's examples, each of which rounding may move by a step.
        What does not fit is cut off, which brings neighbours closer if anything; to wrap it, as a
        secure sum does after the noise, could take them apart.
        """
        request = self.request
        room = (1 << (bits - 1)) - 1 - request.examples
        if room < 1:
            return None
        step = message_room(request, layout.cols) / room
        return self.kind(
            Quantizer(bound, step, layout.cells), multiplier,
            relation=request.relation, trust=self.trust, cohort=request.workers, bits=MAX_BITS,
        )  # fmt: skip

    def _draft(self, layout: Layout, clip: Clip, bits: int, mechanism: IntegerMechanism) -> Draft:
        request, rows, step = self.request, layout.table_rows, mechanism.quantizer.granularity
        cell = request.vector_norm / math.sqrt(layout.cols)
        rounding = step**2 * rounding_variance(cell / step) / request.units
        noise = mean_variance(request, self.trust, mechanism.std)
        bound, recovery = clip
        error = RelativeError(
            recovery.error,
            noise_error(request, noise, rows=rows),
            noise_error(request, rounding, rows=rows),
            recovery.kept,
        )
        return Draft(layout, bits, bound, error)
