"""The server's side: a strategy around the user's own, which sums messages instead of arrays."""

from __future__ import annotations

import copy
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.typing import MetricRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from diffsketch.flower.desk import Desk
from diffsketch.flower.exchange import Exchange
from diffsketch.flower.following import mean_of
from diffsketch.flower.inside import check_inside
from diffsketch.flower.keys import find_identities
from diffsketch.flower.metrics import mean_metrics
from diffsketch.flower.plan import Plan
from diffsketch.flower.records import RECORD, content_bytes
from diffsketch.flower.replies import OpenRound, reply_in, unopened
from diffsketch.flower.report import RoundReport
from diffsketch.flower.secure import SecureSum
from diffsketch.flower.summing import PlainSum, Summation, Summed, SumRound
from diffsketch.flower.vectors import cast_like, digest_of, flat, local_names, moved
from diffsketch.errors import ArgumentError, check_positive
from diffsketch.files import prepare_output, replace_file
from diffsketch.methods.base import is_finite
from diffsketch.methods.release import release_noise
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon, Trust
from diffsketch.secure_sum import VoidError
from diffsketch.sketch import SketchKey
from diffsketch.wire import SERVER, WireError
from diffsketch.wire import Message as WireMessage

__all__ = ["SketchStrategy"]

_LOG = logging.getLogger("flwr.diffsketch")
_BEYOND = "budget: it is a member whose budget was spent when it was asked as an unknown node"


class SketchStrategy(Strategy):
    """A strategy of yours, with messages of a method instead of dense arrays, both ways.

    `SketchStrategy(FedAvg(...), plan, key=key)` in place of `FedAvg(...)`. The strategy inside
    picks the nodes and their configuration; of more than `plan.cohort`, where the method has one,
    so many are asked, at random. Nodes are sent what they lack of the model; their
    messages are summed, published and decoded; and the strategy inside gets one reply with the
    model plus the mean, so that its own rule (momentum, Adam) goes on from there.

    *Without a key* the server sums and passes totals on, and has no model but the first one: it
    cannot evaluate, the rule is plain averaging, and `result.arrays` stays empty. `totals` and
    `followed` give the model to whoever has the key.

    *Whom it trusts.* The server sees every message. A claim under local trust holds against it; one
    under central trust is about those who see what it publishes; one under distributed trust needs
    a plan with `secure_sum` and is refused without, unless `trusted_server` says that it will not
    look. Under a secure sum the server sees nothing but the sum.

    *Void rounds.* With fewer than `plan.min_replies` messages, or if a secure sum fails, or the sum
    is beyond float32, or the model would not be finite, nothing is published and the model stays.
    That is logged as an error; and the round is paid for by whoever was asked for a message, since
    it may have sent one.

    Guarantees (`tests/flower/test_flower.py`): the rounds of a simulation with the same keys, to
    rounding; nodes that follow have the server's bits. `tests/flower/test_flower_hostile.py`:
    replies of another round, node, method or version, repeated or damaged ones change nothing but
    a count, and the mean is that of the others; nor do messages that are too long.
    `tests/flower/test_flower_asked.py`: whoever is asked has paid before, even if the server then
    dies.

    Args:
        strategy: Your own: FedAvg, FedAdam, ... It gets one reply that stands for all; one that
            needs those of single clients, such as Krum or a median, is refused (`check_inside`).
        plan: The method; clients have the same.
        key: The clients' common key, for a server that decodes.
        budget: Where to stop asking. Only proven claims can be within one.
        summation: How messages are summed: by a `SecureSum` if the plan has `secure_sum`, else as
            they are. Its identities are looked up (`diffsketch.flower.keys`) if the plan
            has them and nothing is given.
        trusted_server: As for `sketch_mod`.
        record_file: Where to keep accounts and statements from run to run; it has a round before
            anybody is asked. Without one, they are of one run, and so are `epsilon` and the budget.
        keep_local: As for `sketch_mod`: the server's own stay as they are in the first model.
        limit: Largest norm of a message. Longer ones are refused, as are those that no honest
            client sends by the method's own clip and noise (`Method.honest_norm`); for methods
            without a clip, such as bare sketches, this is the only bound. Under a secure sum it is
            the sum that is looked at.

    Raises:
        ArgumentError: Options do not go together.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: Plan,
        *,
        key: SketchKey | None = None,
        budget: Budget | None = None,
        summation: Summation | None = None,
        trusted_server: bool = False,
        record_file: str | Path | None = None,
        keep_local: Collection[str] = (),
        limit: float | None = None,
    ) -> None:
        check_inside(strategy)
        if limit is not None:
            check_positive("limit", limit)
        self._limit = math.inf if limit is None else limit
        self.strategy, self.plan = strategy, plan
        self.reports: list[RoundReport] = []
        self.ended = ""
        self._key, self._budget = key, budget
        if summation is None:
            known = find_identities() if plan.secure_sum and plan.identities else None
            summation = SecureSum(identities=known) if plan.secure_sum else PlainSum()
        if isinstance(summation, SecureSum) != plan.secure_sum:
            raise ArgumentError(
                f"summation must be a SecureSum where the plan has secure_sum, and only there, got "
                f"{type(summation).__name__} and secure_sum={plan.secure_sum}"
            )
        if isinstance(summation, SecureSum) and summation.signed != plan.identities:
            raise ArgumentError(
                "summation must have identities, all members' public keys (SecureSum(identities="
                "...), or DIFFSKETCH_IDENTITIES_FILE), where the plan has, and only there, got "
                f"{'some' if summation.signed else 'none'} and a plan with identities="
                f"{plan.identities}. Plan(identities=False) is for a server that follows the "
                "protocol"
            )
        self._summation: Summation = summation
        self._trusted = trusted_server or Trust.DISTRIBUTED in self._summation.trusts
        self._record = None if record_file is None else Path(record_file)
        self._local = local_names(keep_local)
        self._index, self._nonce = 0, b""
        self._desk: Desk | None = None
        self._round: OpenRound | None = None
        self._timeout = 3600.0
        self._totals: list[tuple[int, bytes]] = []
        self._evaluation_bytes = [0, 0]

    @property
    def bytes_up(self) -> int:
        """Sent by nodes so far, as Flower serialises it."""
        return sum(one.bytes_up for one in self.reports) + self._evaluation_bytes[0]

    @property
    def bytes_down(self) -> int:
        """Sent to nodes so far."""
        return sum(one.bytes_down for one in self.reports) + self._evaluation_bytes[1]

    @property
    def totals(self) -> tuple[tuple[int, bytes], ...]:
        """All rounds that counted, and what they published."""
        return tuple(self._totals)

    @property
    def clip(self) -> float | None:
        """The next round's, for methods whose clip moves; else None."""
        return None if self._desk is None else self._desk.method.round_clip

    @property
    def claim(self) -> Claim | None:
        """What holds for the whole run; None before it."""
        return None if self._desk is None else self._desk.members.claim

    def epsilon(self, delta: float) -> Epsilon:
        """What the run has cost the client who was asked most often, with its basis."""
        return self._known().members.epsilon(delta)

    def summary(self) -> None:
        """Log what is run."""
        _LOG.info("\t├──> DiffSketch: %s", self.plan)
        _LOG.info("\t│\t└── the server %s", "decodes" if self._key else "has no key: it only sums")
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds, as Flower does.

        Raises:
            ArgumentError: There is something to evaluate and no key to have the model with; or
                the plan's claim cannot be held here; or the model has running statistics.
        """
        if evaluate_fn is not None and self._key is None:
            raise ArgumentError("evaluate_fn needs the model, and a server without a key has none")
        self._begun(initial_arrays)
        self._timeout = timeout
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's own messages, with what each node needs instead of the arrays."""
        self._round = None
        desk = self._begun(arrays)
        if self.ended:
            _LOG.error("no further round: %s", self.ended)
            return []
        model = desk.at(arrays).arrays
        messages = list(self.strategy.configure_train(server_round, model, config, grid))
        messages = desk.chosen(messages)
        nodes = tuple(one.metadata.dst_node_id for one in messages)
        if not nodes:
            return []
        index, nonce = self._index, secrets.token_bytes(16)
        # A secure sum fails with fewer: so whatever comes of the round, this is affordable.
        planned = self.plan.min_replies if self.plan.secure_sum else len(nodes)
        claim = desk.claim_of(planned, index)
        try:
            desk.members.afford(claim, nodes)
        except BudgetExceeded as error:
            self.ended = str(error)
            _LOG.error("no further round: %s", self.ended)
            return []
        self._index += 1
        fingerprint = desk.fingerprint(index)
        about = SumRound(self.plan, desk.method, index, fingerprint, nonce, self._limit)
        exchange = Exchange(grid, timeout=self._timeout)
        try:
            prepared = self._summation.prepare(nodes, about, exchange=exchange)
        except VoidError as error:
            self._log(unopened(about, nodes, exchange, error))
            return []
        if prepared.told is not None:
            nodes = tuple(node for node in nodes if node in prepared.told)
            messages = [one for one in messages if one.metadata.dst_node_id in prepared.told]
        more = prepared.told or {}
        key, size = desk.address(messages, nonce=nonce, round_index=index, more=more)
        left = dict(prepared.left)
        self._round = OpenRound(about, nodes, claim, key, size, exchange, left)
        # Before anything is asked: whatever becomes of the server, the round is paid for.
        desk.members.ask(claim, nodes)
        self._write_record(desk)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum, publish, decode, and let the strategy inside go on from the mean."""
        current, self._round = self._round, None
        if current is None:
            return None, None
        desk = self._known()
        for message in replies:
            reply = current.take(message)
            if reply is not None:
                desk.hear(message.metadata.src_node_id, reply)
        beyond = desk.members.beyond(current.claim)
        parts = {node: part for node, part in current.parts.items() if node not in beyond}
        summed = self._summation.total(parts, current.about, exchange=current.exchange)
        current.refused.update(summed.refused)
        current.refused.update(dict.fromkeys(beyond, _BEYOND))
        claim = self._charged(desk, current, len(summed.present), beyond)
        self._write_record(desk)
        arrays, metrics, void = self._advanced(desk, server_round, current, summed)
        self._log(current.report(summed.present, claim, void))
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's own messages, with what each node needs instead of the arrays."""
        desk = self._begun(arrays)
        model = desk.at(arrays).arrays
        messages = list(self.strategy.configure_evaluate(server_round, model, config, grid))
        self._nonce = secrets.token_bytes(16)
        _, size = desk.address(messages, nonce=self._nonce, round_index=self._index, more={})
        self._evaluation_bytes[1] += size
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The strategy's own, of those who had the model."""
        kept = []
        for message in replies:
            if not message.has_content():
                kept.append(message)
                continue
            self._evaluation_bytes[0] += content_bytes(message.content)
            try:
                reply = reply_in(message.content, self._nonce)
            except WireError as error:
                _LOG.warning("evaluation refused: %s", error)
                continue
            self._known().hear(message.metadata.src_node_id, reply)
            if reply.code:
                _LOG.warning("a node did not evaluate (%s): %s", reply.code, reply.reason)
                continue
            del message.content[RECORD]
            kept.append(message)
        return self.strategy.aggregate_evaluate(server_round, kept)

    def _begun(self, arrays: ArrayRecord) -> Desk:
        if self._desk is None:
            self._desk = Desk(
                self.plan,
                arrays,
                key=self._key,
                budget=self._budget,
                trusted=self._trusted,
                keep_local=self._local,
            )
            if self._record is not None and self._record.exists():
                self._desk.members.load_text(self._record.read_text(encoding="utf-8"))
        return self._desk

    def _known(self) -> Desk:
        if self._desk is None:
            raise ArgumentError("nothing is known before the first round is configured")
        return self._desk

    def _charged(
        self, desk: Desk, current: OpenRound, present: int, beyond: frozenset[int]
    ) -> Claim:
        """Let all who were asked pay, for what so few messages leave of the claim."""
        claim = desk.claim_of(present, current.index) if present else current.claim
        if desk.members.beyond(claim) - beyond:
            # Fewer came than planned, and their noise is not enough: it may not be published.
            self.ended = f"a round of {present} messages would exceed the budget"
            desk.members.settle()
        else:
            desk.members.settle(claim)
        return claim

    def _write_record(self, desk: Desk) -> None:
        if self._record is not None:
            prepare_output(self._record.parent)
            replace_file(self._record, desk.members.to_text().encode())

    def _advanced(
        self, desk: Desk, server_round: int, current: OpenRound, summed: Summed
    ) -> tuple[ArrayRecord | None, MetricRecord | None, str]:
        """The new model, or why there is none."""
        present, least = len(summed.present), self.plan.min_replies
        if summed.void:
            return None, None, summed.void
        if summed.total is None or present < least:
            return None, None, f"{present} messages, and {least} are needed"
        if self.ended:
            return None, None, self.ended
        total = self._published(desk, summed.total, current.claim)
        published = total.to_bytes()
        metrics = mean_metrics([current.contents[node].content for node in summed.present])
        if self._key is None:
            self._totals.append((current.index, published))
            desk.history.followed(published, current.index, None)
            desk.published(total)
            return None, metrics, ""
        model = desk.history.arrays
        mean, _ = mean_of(published, current.index, method=desk.method, key=self._key)
        plain = moved(model, mean, self._local)
        if not is_finite(flat(plain)):
            return None, None, "the new model would not be finite: training diverges"
        values = dict(metrics or {})
        arrays, metrics = self._inside(server_round, current, plain, values, summed.present)
        if arrays is None:
            return None, metrics, "the strategy inside gave no arrays"
        new = cast_like(arrays, model)
        if not is_finite(flat(new)):
            return None, metrics, "the strategy's model would not be finite: training diverges"
        self._totals.append((current.index, published))
        if digest_of(new) == digest_of(plain):
            desk.history.followed(published, current.index, new)
        else:
            desk.history.replaced(new)
        desk.published(total)
        return new, metrics, ""

    def _published(self, desk: Desk, total: WireMessage, claim: Claim) -> WireMessage:
        """Publish a total, once, as the bytes that nodes are sent."""
        return WireMessage(
            total.format,
            desk.method.publish(total.cells, release_noise(desk.method, claim)),
            round_index=total.round_index,
            fingerprint=total.fingerprint,
            sender=SERVER,
            count=total.count,
        )

    def _inside(
        self,
        server_round: int,
        current: OpenRound,
        arrays: ArrayRecord,
        metrics: dict[str, MetricRecordValues],
        present: frozenset[int],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy inside makes of one reply that stands for all."""
        weight = str(getattr(self.strategy, "weighted_by_key", "num-examples"))
        values = MetricRecord(metrics | {weight: len(present)})
        one = copy.copy(current.contents[min(present)])  # for its metadata
        one.content = RecordDict({current.arrays_key: arrays, "metrics": values})
        return self.strategy.aggregate_train(server_round, [one])

    def _log(self, report: RoundReport) -> None:
        self.reports.append(report)
        _LOG.log(logging.ERROR if report.void else logging.INFO, "%s", report)
        for node, reason in report.refused.items():
            _LOG.warning("node %d does not count: %s", node, reason)
