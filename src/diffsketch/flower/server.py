"""The server's side: a strategy that sums messages around the user's own."""

from __future__ import annotations

import copy
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.typing import MetricRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from diffsketch.errors import ArgumentError, MismatchError, check_positive
from diffsketch.files import prepare_output, replace_file
from diffsketch.flower.accounts import Members
from diffsketch.flower.aggregation import (
    Exchange,
    OpenRound,
    PlainSum,
    Summation,
    Summed,
    SumRound,
    reply_in,
    unopened,
)
from diffsketch.flower.client import mean_of
from diffsketch.flower.plan import Plan, find_identities
from diffsketch.flower.records import (
    NO_MODEL,
    RECORD,
    SUM_RECORD,
    Refusal,
    Reply,
    Request,
    cast_like,
    check_trust,
    content_bytes,
    digest_of,
    flat,
    length_of,
    local_names,
    moved,
    without_words,
)
from diffsketch.flower.secure import SecureSum
from diffsketch.methods.base import is_finite
from diffsketch.methods.release import check_release, release_noise
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon, ProvenClaim, Trust
from diffsketch.secure_sum import VoidError
from diffsketch.sketch import SketchKey
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import SERVER, WireError
from diffsketch.wire import Message as WireMessage

_CHOOSES = (
    "it chooses among the clients' models, and a sum has none: use FedAvg, and leave messages that "
    "no honest client sends to SketchStrategy, which refuses them",
    ("Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg"),
)
_WEIGHS = (
    "it weighs clients by their losses, which are not sent: use FedAvg, or the importance of "
    "sketch_mod",
    ("QFedAvg",),
)
_CLIPS = (
    "it clips the clients' models or adds noise for their number, and would do so to one mean: use "
    "a plan with a private method, such as sketch-gaussian or sketch-skellam, around FedAvg",
    ("DifferentialPrivacyFixedClippingBase", "DifferentialPrivacyAdaptiveBase"),
)
_TREES = (
    "it collects trees, which have no mean: run it without SketchStrategy",
    ("FedXgbBagging", "FedXgbCyclic"),
)


def check_inside(strategy: Strategy) -> None:
    """Raise unless the strategy can work on one reply that stands for all.

    That is so for one whose `aggregate_train` depends on nothing but the mean of the clients'
    models and its own memory, as in FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad and FedYogi.
    Those of Flower for which it is not, and whatever derives from them or has one in its
    `strategy`, are refused; of others it cannot be told.

    Raises:
        ArgumentError: It is no strategy, or one of those.
    """
    if not isinstance(strategy, Strategy):
        kind = type(strategy).__name__
        raise ArgumentError(f"strategy must be a Strategy of flwr.serverapp, got {kind}")
    kinds = {
        kind.__name__ for kind in type(strategy).__mro__ if kind.__module__.startswith("flwr.")
    }
    for why, names in (_CHOOSES, _WEIGHS, _CLIPS, _TREES):
        if kinds.intersection(names):
            raise ArgumentError(
                f"strategy must work on one mean of all clients, got {type(strategy).__name__}: "
                f"{why}"
            )
    within = getattr(strategy, "strategy", None)
    if isinstance(within, Strategy):
        check_inside(within)


def mean_metrics(contents: Sequence[RecordDict]) -> MetricRecord | None:
    """The plain mean of each number that all replies have; None if there is none.

    Clients count alike. Lists, and what is not finite, are left out.
    """
    found: list[dict[str, float]] = []
    for content in contents:
        values = [pair for record in content.metric_records.values() for pair in record.items()]
        found.append(
            {
                name: float(value)
                for name, value in values
                if isinstance(value, int | float) and math.isfinite(value)
            }
        )
    common = set.intersection(*(set(one) for one in found)) if found else set()
    if not common:
        return None
    return MetricRecord({name: sum(one[name] for one in found) / len(found) for name in common})


@dataclass(frozen=True, eq=False)
class RoundReport:
    """One round.

    Attributes:
        round_index: For the hashes; Flower's own rounds begin at 1.
        asked: Nodes that were asked for a message.
        present: Nodes whose message is in the sum.
        refused: Other nodes that answered, and why they do not count.
        silent: Nodes that did not answer in time.
        bytes_down: Of what was sent to the nodes, as Flower serialises it.
        bytes_up: Of what came back, wherefore ever.
        message_bytes: Of the methods' messages in `bytes_up`.
        claim: What the round guarantees to those who were asked.
        void: Why the model did not change; empty if it did.
    """

    round_index: int
    asked: tuple[int, ...]
    present: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    message_bytes: int = 0
    claim: Claim | None = None
    void: str = ""

    def __str__(self) -> str:
        """In a line."""
        fate = f"VOID: {self.void}; the model is unchanged" if self.void else "counts"
        return (
            f"round {self.round_index} {fate} ({len(self.present)} of {len(self.asked)} nodes, "
            f"{len(self.refused)} refused, {len(self.silent)} silent; {self.bytes_up:,} bytes up, "
            f"{self.bytes_down:,} bytes down)"
        )


@dataclass(frozen=True, eq=False)
class Download:
    """What a node needs to have the model.

    Attributes:
        arrays: The dense model, if it is sent.
        base: Its version; -1 if it is not sent.
        first: Version that the first of the totals makes.
        totals: Published totals, in order.
        rounds: Their rounds.
        version: After all of them.
        digest: Of the model then; empty if not known.
    """

    arrays: ArrayRecord | None
    base: int
    first: int
    totals: list[bytes]
    rounds: list[int]
    version: int
    digest: bytes


class History:
    """The dense model that there is, and the totals since.

    Guarantees (`tests/flower/test_flower_books.py`): a node that follows a download has the
    server's model; the smaller of the two ways is taken.

    Args:
        arrays: The first model.
        keyed: Whether the server has the key: its dense model is the current one then, and the
            first one for ever if not.
    """

    def __init__(self, arrays: ArrayRecord, *, keyed: bool) -> None:
        self._keyed = keyed
        self.arrays, self.base = arrays, 0
        self._first = 1  # version that the first kept total makes
        self._totals: list[bytes] = []
        self._rounds: list[int] = []
        self._dense_bytes = sum(len(one.data) for one in arrays.values())
        self._digest = digest_of(arrays)

    @property
    def version(self) -> int:
        """Rounds that changed the model."""
        return self._first - 1 + len(self._totals)

    def holds(self, arrays: ArrayRecord) -> bool:
        """Whether these arrays are the dense model here."""
        return digest_of(arrays) == self._digest

    def followed(self, total: bytes, round_index: int, arrays: ArrayRecord | None) -> None:
        """A round whose mean was added.

        Args:
            total: What it has published.
            round_index: The round.
            arrays: The model then, if the server can know it.
        """
        self._totals.append(total)
        self._rounds.append(round_index)
        if arrays is not None:
            self._take(arrays)
        while self._keyed and not self._is_smaller(0):  # nobody would be sent them all
            self._totals, self._rounds = self._totals[1:], self._rounds[1:]
            self._first += 1

    def replaced(self, arrays: ArrayRecord) -> None:
        """The model has become another one in a way that nodes cannot follow."""
        if not self._keyed:
            raise ArgumentError("arrays must stay as they are where the server has no key")
        self._first, self._totals, self._rounds = self.version + 2, [], []
        self._take(arrays)

    def download(self, version: int) -> Download:
        """For a node that has this version; -1 for none."""
        digest = self._digest if self._keyed else b""
        skip = version - (self._first - 1)
        can_follow = version != NO_MODEL and 0 <= skip <= len(self._totals)
        if can_follow and (not self._keyed or self._is_smaller(skip)):
            totals, rounds = self._totals[skip:], self._rounds[skip:]
            return Download(None, NO_MODEL, version + 1, totals, rounds, self.version, digest)
        first = self.base + 1
        totals = self._totals[self.base - (self._first - 1) :]
        rounds = self._rounds[len(self._rounds) - len(totals) :]
        return Download(self.arrays, self.base, first, totals, rounds, self.version, digest)

    def _is_smaller(self, skip: int) -> bool:
        return sum(map(len, self._totals[skip:])) < self._dense_bytes

    def _take(self, arrays: ArrayRecord) -> None:
        self.arrays, self.base = arrays, self.version
        self._digest = digest_of(arrays)


_LOG = logging.getLogger("flwr.diffsketch")
_ANY_SEED = HashSeed(bytes(32))  # the claims of methods that are sent do not depend on it


class Desk:
    """Of one strategy.

    Args:
        plan: The strategy's.
        arrays: The first model.
        key: The clients' common key, if the server has it.
        budget: Where to stop.
        trusted: Whether a claim under distributed trust may be used with the server's sums.
        keep_local: Names of arrays that clients keep to themselves.

    Raises:
        ArgumentError: The plan's claim cannot be held, or not be accounted for, here; or the model
            has running statistics that would be sent.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: ArrayRecord,
        *,
        key: SketchKey | None,
        budget: Budget | None,
        trusted: bool,
        keep_local: frozenset[str] = frozenset(),
    ) -> None:
        self._key, self._series = key, secrets.token_bytes(8)
        dim = length_of(arrays, keep_local)
        self.method = plan.build(dim)  # of the next round
        self._clips: dict[int, float] = {}  # of rounds that were published
        self._plan, self._text = plan, plan.text(dim) + without_words(keep_local)
        planned = self.claim_of(plan.min_replies, 0)
        check_release(self.method, planned)
        name = self.method.name
        try:
            check_trust(planned, trusted_server=trusted)
        except Refusal as error:
            raise ArgumentError(f"method={name!r}: {error}") from error
        if budget is not None and not isinstance(planned, ProvenClaim):
            raise ArgumentError(
                "budget must not be given where nothing is proven: the epsilon of "
                f"method={name!r} is {planned.basis} here ({planned})"
            )
        self.members = Members(budget, planned)
        self.history = History(arrays, keyed=key is not None)

    @property
    def clip(self) -> float:
        """The next round's, for methods whose clip moves; else 0."""
        return self.method.round_clip or 0.0

    def claim_of(self, present: int, round_index: int) -> Claim:
        """Of a round with so many messages, without the noise of those that may be corrupt."""
        seed = _ANY_SEED if self._key is None else self._key.seed(round_index)
        return self._plan.claim_for(self.method, present, seed)

    def published(self, total: WireMessage) -> None:
        """A round's total was published: from now on the method is that of the next round."""
        self._clips[total.round_index] = self.clip
        self.method = self.method.after(total.cells, count=total.count)

    def fingerprint(self, round_index: int) -> bytes | None:
        """Of a round's hashes, if the server can know it."""
        return None if self._key is None else self._key.seed(round_index).fingerprint

    def chosen(self, messages: list[Message]) -> list[Message]:
        """As many as the method's cohort has room for: all, or some that are picked at random.

        All nodes have the same chance, in every round anew. No claim counts on the choice.

        Raises:
            ArgumentError: A node is asked twice.
        """
        nodes = [one.metadata.dst_node_id for one in messages]
        if len(set(nodes)) != len(nodes):
            raise ArgumentError(f"strategy must ask each node once in a round, got {sorted(nodes)}")
        cohort = self.method.most_messages or len(nodes)
        if len(nodes) <= cohort:
            return messages
        _LOG.warning("%d nodes, and a cohort of %d: not all are asked", len(nodes), cohort)
        picked = set(secrets.SystemRandom().sample(nodes, cohort))
        return [one for one in messages if one.metadata.dst_node_id in picked]

    def at(self, arrays: ArrayRecord) -> History:
        """The history, at these arrays."""
        if not self.history.holds(arrays):
            self.history.replaced(cast_like(arrays, self.history.arrays))
        return self.history

    def address(
        self,
        messages: list[Message],
        *,
        nonce: bytes,
        round_index: int,
        more: Mapping[int, ConfigRecord],
    ) -> tuple[str, int]:
        """Put into each message what its node needs instead of the arrays.

        Args:
            messages: The strategy's. Changed.
            nonce: That replies have to repeat.
            round_index: The round.
            more: What a secure sum tells its nodes.

        Returns:
            The name of the model's record, and the bytes of all messages.
        """
        name, size, known = "", 0, dict[int, int]()
        for message in messages:
            node, content = message.metadata.dst_node_id, message.content
            names = list(content.array_records)
            if len(names) != 1:
                raise MismatchError(
                    f"strategy must send one ArrayRecord, the model, got {len(names)}"
                )
            name = names[0]
            download = self.history.download(self.members.version_of(node))
            records = {key: one for key, one in content.items() if key != name}
            request = self._request(node, download, nonce=nonce, index=round_index, name=name)
            records[RECORD] = request.to_record()
            if node in more:
                records[SUM_RECORD] = more[node]
            if download.arrays is not None:
                records[name] = download.arrays
            message.content = RecordDict(records)
            size += content_bytes(message.content, known)
        return name, size

    def hear(self, node: int, reply: Reply) -> None:
        """A node has said who it is and what it has."""
        good = NO_MODEL <= reply.version <= self.history.version
        version = reply.version if good else NO_MODEL
        if reply.code == "model":
            version = NO_MODEL  # whatever it has, it cannot go on from there
        self.members.heard(node, member=reply.member, version=version, statement=reply.statement)

    def _request(
        self, node: int, download: Download, *, nonce: bytes, index: int, name: str
    ) -> Request:
        statement, known = self.members.statement_for(node)
        return Request(
            series=self._series,
            nonce=nonce,
            round_index=index,
            plan=self._text,
            key_check=self.fingerprint(0) or b"",
            arrays=name,
            base=download.base,
            version=download.version,
            first=download.first,
            totals=download.totals,
            rounds=download.rounds,
            digest=download.digest,
            statement=statement,
            known=known,
            clip=self._clips[download.rounds[0]] if download.rounds else self.clip,
        )


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
            they are. Its identities are looked up (`diffsketch.flower.plan`) if the plan
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
