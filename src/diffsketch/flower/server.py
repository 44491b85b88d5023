"""The server's side: a strategy that sums messages around the user's own."""

from __future__ import annotations

import copy
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check_positive
from diffsketch.files import prepare_output, replace_file
from diffsketch.flower import records
from diffsketch.flower.accounts import ClientRegistry
from diffsketch.flower.aggregation import (
    AggregationResult,
    Exchange,
    OpenRound,
    RoundContext,
    RoundReport,
    UsualSize,
    check_strategy,
    mean_metrics,
    plain_sum,
)
from diffsketch.flower.plan import (
    CLOSED_DOOR,
    MAKE_A_KEY,
    FlowerPlan,
    find_identities,
    find_sketch_key,
    predicted_error,
    simulation_key,
)
from diffsketch.flower.records import NO_MODEL, RECORD, SUM_RECORD, Refusal, Reply, Request
from diffsketch.flower.secure import SecureAggregation
from diffsketch.methods import Method
from diffsketch.methods.base import is_finite
from diffsketch.methods.gate import check_release, release, release_noise
from diffsketch.privacy.accounting.account import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, Trust
from diffsketch.secure_sum import VoidError
from diffsketch.sketch import SketchKey
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import SERVER, WireError
from diffsketch.wire import Message as WireMessage

_LOG = logging.getLogger("flwr.diffsketch")
_ANY_SEED = HashSeed(bytes(32))  # the claims of methods that are sent do not depend on it
_DELTA = 1e-5  # of the epsilon that is logged, where no budget has one
_TOO_NOISY = (
    "a round's mean of %d vectors, as long as the clip, has a predicted relative error of %.3g: "
    "above 1 it is worse than no update. `diffsketch plan` finds settings for a budget"
)
_FAR = 10.0  # times the median norm of messages: honest ones differ by their data, by a few times
_FAR_WEIGHT = 100.0  # times the median weight: numbers of examples differ more than norms do
_OVER_BUDGET = "budget: it is a client whose budget was spent when it was asked as an unknown node"


class ServerState:
    """Server-side state of a SketchStrategy, from its first model on."""

    def __init__(
        self,
        plan: FlowerPlan,
        arrays: ArrayRecord,
        *,
        key: SketchKey | None,
        budget: Budget | None,
        trusted: bool,
        keep_local: frozenset[str],
        weight: str,
        weighted: bool | None,
        limit: float | None,
    ) -> None:
        self._key, self._series = key, secrets.token_bytes(8)
        self.counted: dict[int, int] = {}  # last round that a node's message is in
        dim = records.length_of(arrays, keep_local)
        self.method = plan.build(dim)  # of the next round
        self._clips: dict[int, float] = {}  # of rounds that were published
        self._plan, self._text = plan, plan.describe(dim, keep_local)
        planned = self.claim_of(plan.min_replies, 0)
        check_release(self.method, planned, budget=budget)
        try:
            records.check_trust(planned, trusted_server=trusted)
        except Refusal as error:
            raise ArgumentError(f"method={self.method.name!r}: {error}") from error
        # Where only the sum's noise hides a client, whom the server refuses must not depend on it.
        private_sum = not isinstance(planned, NoClaim) and planned.scope.trust is not Trust.LOCAL
        self._substitutes = private_sum and not plan.secure_sum
        self._limit = math.inf if limit is None else limit
        bounded = limit is None and not private_sum
        self._usual_norm = UsualSize(_FAR) if bounded else None
        self._usual_weight = UsualSize(_FAR_WEIGHT) if bounded else None
        self.alike = _why_alike(plan, weighted)
        self.weight = "" if self.alike else weight  # metric that clients count by
        self.registry = ClientRegistry(budget, planned)
        self.history = records.ModelHistory(arrays, keyed=key is not None)

    def claim_of(self, present: int, round_index: int) -> Claim:
        """Claim of a round with so many messages, without the noise of the corrupt."""
        seed = _ANY_SEED if self._key is None else self._key.seed(round_index)
        return self._plan.claim_for(self.method, present, seed)

    def context(self, round_index: int, nonce: bytes, claim: Claim) -> RoundContext:
        """Context of a round whose messages are still to come."""
        method = self.method
        return RoundContext(
            self._plan, method, round_index, self.fingerprint(round_index), nonce,
            self._limit, self._usual_norm,
            partial(_zeros, method, claim) if self._substitutes else None,
        )  # fmt: skip

    def metric_context(
        self, about: RoundContext, method: Method, *, claim: Claim, fingerprint: bytes
    ) -> RoundContext:
        """The same for the messages of the plan's metrics, with the hashes of the others."""
        substitute = about.substitute and partial(_zeros, method, claim)
        return replace(
            about, method=method, fingerprint=fingerprint, limit=math.inf, usual=None,
            substitute=substitute,
        )  # fmt: skip

    def far_weights(self, weights: Mapping[int, int]) -> dict[int, str]:
        """Nodes whose weights are far beyond the others', and why they are refused."""
        if self._usual_weight is None:
            return {}
        bound = self._usual_weight.bound(weights.values())
        return {
            node: f"weight must be at most {bound:.4g} here, {_FAR_WEIGHT:g} times the median, "
            f"got weight={weight}"
            for node, weight in weights.items() if weight > bound
        }  # fmt: skip

    def affordable(self, nodes: list[int], round_index: int) -> tuple[Claim, list[int]]:
        """Nodes that can pay a round, and what it claims; if too few can, those who could."""
        least = self._plan.min_replies
        while True:
            # A secure sum fails with fewer: so whatever comes of the round, this is affordable.
            most = self.method.most_messages or len(nodes)
            present = least if self._plan.secure_sum else max(min(len(nodes), most), 1)
            claim = self.claim_of(present, round_index)
            able = self.registry.affordable(claim, nodes)
            if len(able) == len(nodes) or len(able) < least:
                return claim, able
            nodes = able  # fewer share the noise: what each pays may be more

    def fingerprint(self, round_index: int) -> bytes | None:
        """Fingerprint of a round's hashes, if the server can know it."""
        return None if self._key is None else self._key.seed(round_index).fingerprint

    def advance(self, total: WireMessage) -> None:
        """Move on to the method of the next round after a total was published."""
        self._clips[total.round_index] = self.method.round_clip or 0.0
        self.method = self.method.after(total.cells, count=total.count)

    def select(self, messages: list[Message]) -> list[Message]:
        """Keep as many as the method's cohort has room for: all, or some picked at random.

        All nodes have the same chance, in every round anew. No claim counts on the choice.
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

    def fill(
        self,
        messages: list[Message],
        *,
        nonce: bytes,
        round_index: int,
        instructions: Mapping[int, ConfigRecord],
    ) -> tuple[str, int]:
        """Put into each message what its node needs instead of the arrays.

        Returns the name of the model's record, and the bytes of all messages.
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
            parts = {key: one for key, one in content.items() if key != name}
            download = self.history.download(self.registry.version_of(node))
            statement, digests = self.registry.statement_for(node)
            rounds = [index for index, _ in download.totals]
            parts[RECORD] = Request(
                series=self._series,
                nonce=nonce,
                round_index=round_index,
                plan=self._text,
                key_check=self.fingerprint(0) or b"",
                arrays=name,
                base=download.base,
                version=self.history.version,
                first=download.first,
                totals=[total for _, total in download.totals],
                rounds=rounds,
                digest=b"" if self._key is None else self.history.digest,
                statement=statement,
                known=digests,
                clip=self._clips[rounds[0]] if rounds else self.method.round_clip or 0.0,
                weight=self.weight,
                counted=self.counted.get(node, -1),
            ).to_record()
            if node in instructions:
                parts[SUM_RECORD] = instructions[node]
            if download.arrays is not None:
                parts[name] = download.arrays
            message.content = RecordDict(parts)
            size += records.content_bytes(message.content, known)
        return name, size

    def update(self, node: int, reply: Reply) -> None:
        """Record who a node says that it is, and what it has."""
        good = NO_MODEL <= reply.version <= self.history.version and reply.code != "model"
        version = reply.version if good else NO_MODEL  # with "model" it cannot go on from there
        self.registry.update(node, member=reply.member, version=version, statement=reply.statement)


def _zeros(method: Method, claim: Claim) -> Tensor:
    """Message of a vector of zeros, with the noise that a client adds to its own."""
    released = release(torch.zeros(1, method.dim), method, _ANY_SEED, claim, charge=None)
    assert released.encoded is not None  # noqa: S101 (for the type checker: zeros are finite)
    return released.encoded.messages[0]


def _why_alike(plan: FlowerPlan, weighted: bool | None) -> str:
    """Say why clients count alike; empty if they count by their examples."""
    if weighted is False:
        return "weighted=False"
    if plan.is_bare:
        return ""
    why = f"weights would tell how many examples each has, and method={plan.method!r} is private"
    if weighted:
        raise ArgumentError(
            f"weighted must not be True: {why}. For weights that all may know, use the importance "
            "of sketch_mod"
        )
    return why


class SketchStrategy(Strategy):
    """A strategy of yours, with messages of a method instead of dense arrays, both ways.

    `SketchStrategy(FedAvg(...), plan, key=key)` in place of `FedAvg(...)`. The wrapped strategy
    picks the nodes and their configuration; of more than `plan.cohort`, where the method has one,
    so many are asked, at random. Nodes are sent what they lack of the model; their
    messages are summed, published and decoded; and the wrapped strategy gets one reply with the
    model plus the mean, so that its own rule (momentum, Adam) goes on from there.

    *Without a key* the server sums and passes totals on, and has no model but the first one: it
    cannot evaluate, the rule is plain averaging, and `result.arrays` stays empty. `totals` and
    `replay_totals` give the model to whoever has the key. In Flower's simulation, all of which is
    on one machine, a key is made for the run where none can be found.

    *Weights.* With `none` and `sketch`, which promise no privacy, clients count by their examples,
    as with the wrapped strategy: by the metric that its `weighted_by_key` names, which they state
    themselves. With other methods that number would tell something, and they count alike.

    *Whom it trusts.* The server sees every message. A claim under local trust holds against it; one
    under central trust is about those who see what it publishes; one under distributed trust needs
    a plan with `secure_sum` and is refused without, unless `trusted_server` says that it will not
    look. Under a secure sum the server sees nothing but the sum.

    *What clients are asked for.* To train; and to evaluate, as the wrapped strategy wants it, with
    `none` and `sketch` or where the plan opens that door. The plan's `metrics` come to the wrapped
    strategy as means with noise.

    *Void rounds.* With fewer than `plan.min_replies` messages, or if a secure sum fails, or the sum
    is beyond float32, or the model would not be finite, nothing is published and the model stays.
    That is logged as an error; and the round is paid for by whoever was asked for a message, since
    it may have sent one.

    Guarantees (`tests/flower/test_server.py`): the rounds of a simulation with the same keys, to
    rounding; FedAvg's weighted mean with bare methods; nodes that apply the totals have the
    server's bits; whoever is asked has paid before, even if the server then dies.
    `tests/flower/test_hostile.py`: replies of another round, node, method or version, repeated or
    damaged ones change nothing but a count, and the mean is that of the others; nor do messages
    that are too long, or weights that are too large. `tests/flower/test_non_interference.py`: what
    a trusted server reports does not depend on a client's data.

    Args:
        strategy: Your own: FedAvg, FedAdam, ... It gets one reply that stands for all; one that
            needs those of single clients, such as Krum or a median, is refused (`check_strategy`).
        plan: The method; clients have the same.
        key: The clients' common key, for a server that decodes.
        budget: Most that a client may spend. One who cannot pay a further round is not asked, and
            the run ends when fewer than `plan.min_replies` can. Only proven claims can be within
            one, and those whose doors were opened.
        aggregation: The secure sum, for a plan with `secure_sum`. If nothing is given, its
            identities are looked up (`find_identities`), where the plan has them.
        trusted_server: As for `sketch_mod`.
        record_file: File that keeps accounts and statements from run to run; a round is in it
            before any request is sent. Without one, they are of one run, and so are `epsilon` and
            the budget.
        keep_local: As for `sketch_mod`: the server's own stay as they are in the first model.
        limit: Largest norm of a message, over its weight. Longer ones are refused, as are those
            that no honest client sends by the method's own clip and noise (`Method.honest_norm`).
            If not given, it is ten times the median norm of the round's messages, and weights are
            bounded by a hundred times their median (`UsualSize`); `math.inf` is for no bound.
            Where only the noise of the sum hides a client, that is, under central trust or with a
            `trusted_server`, there is no median, and messages that are too long count as zeros:
            whom a server refuses is seen, and would depend on data. Under a secure sum it is the
            sum that is looked at.
        weighted: Whether clients count by their examples; if not given, with `none` and `sketch`.

    Raises:
        ArgumentError: Options do not go together.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: FlowerPlan,
        *,
        key: SketchKey | None = None,
        budget: Budget | None = None,
        aggregation: SecureAggregation | None = None,
        trusted_server: bool = False,
        record_file: str | Path | None = None,
        keep_local: Collection[str] = (),
        limit: float | None = None,
        weighted: bool | None = None,
    ) -> None:
        check_strategy(strategy)
        if limit == math.inf:
            _LOG.warning("limit=inf: messages of any norm and weight are summed")
        elif limit is not None:
            check_positive("limit", limit)
        if aggregation is None and plan.secure_sum:
            known = find_identities() if plan.identities else None
            aggregation = SecureAggregation(identities=known)
        if (aggregation is not None) != plan.secure_sum:
            raise ArgumentError(
                "aggregation must be a SecureAggregation where the plan has secure_sum, and only "
                f"there, got {type(aggregation).__name__} and secure_sum={plan.secure_sum}"
            )
        if aggregation is not None and aggregation.signed != plan.identities:
            raise ArgumentError(
                "aggregation must have identities, all members' public keys (SecureAggregation("
                "identities=...), or DIFFSKETCH_IDENTITIES_FILE), where the plan has, and only "
                f"there, got {'some' if aggregation.signed else 'none'} and a plan with identities="
                f"{plan.identities}. FlowerPlan(identities=False) is for a server that follows the "
                "protocol"
            )
        self.strategy, self.plan = strategy, plan
        self.reports: list[RoundReport] = []
        self.ended = ""
        self._key, self._budget, self._limit = key, budget, limit
        self._aggregation = aggregation
        self._trusted = trusted_server or aggregation is not None
        self._record = None if record_file is None else Path(record_file)
        self._local, self._weighted = records.local_names(keep_local), weighted
        self._made: SketchKey | None = None  # in a simulation without a key
        self._index, self._nonce, self._timeout = 0, b"", 3600.0
        self._started: ServerState | None = None
        self._round: OpenRound | None = None
        self._totals: list[tuple[int, bytes]] = []
        self._evaluation_bytes, self._told_closed = [0, 0], False
        if self._weight in plan.metrics:
            raise ArgumentError(
                f"metrics must not have {self._weight!r}, by which the wrapped strategy weighs "
                f"clients, got {', '.join(plan.metrics)}"
            )

    @property
    def bytes_up(self) -> int:
        """Bytes sent by nodes so far, as Flower serialises them."""
        return sum(one.bytes_up for one in self.reports) + self._evaluation_bytes[0]

    @property
    def bytes_down(self) -> int:
        """Bytes sent to nodes so far."""
        return sum(one.bytes_down for one in self.reports) + self._evaluation_bytes[1]

    @property
    def totals(self) -> tuple[tuple[int, bytes], ...]:
        """All rounds that counted, and what they published."""
        return tuple(self._totals)

    @property
    def clip(self) -> float | None:
        """Clip of the next round, for methods whose clip moves; else None."""
        return None if self._started is None else self._started.method.round_clip

    @property
    def claim(self) -> Claim | None:
        """Claim of the whole run; None before it."""
        return None if self._started is None else self._started.registry.claim

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon that the run has cost the client who was asked most often, with its basis."""
        return self._state().registry.epsilon(delta)

    def summary(self) -> None:
        """Log what is run."""
        _LOG.info("\t├──> DiffSketch: %s", self.plan)
        _LOG.info("\t│\t├── the server %s", "decodes" if self._key else "has no key: it only sums")
        alike = "" if self._started is None else self._started.alike
        how = f"alike: {alike}" if alike else f"by {self._weight!r}"
        _LOG.info("\t│\t└── clients count %s", how)
        inside = copy.copy(self.strategy)
        if alike and hasattr(inside, "weighted_by_key"):
            inside.weighted_by_key = "nothing: all clients count alike"
        inside.summary()

    @property
    def _weight(self) -> str:
        """Name of the metric by which the wrapped strategy weighs its clients."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

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
        """Run the rounds, as Flower does, and log the epsilon at the budget's delta, or at 1e-5.

        Raises:
            ArgumentError: There is something to evaluate and no key to have the model with; or
                the plan's claim cannot be held here; or the model has running statistics.
        """
        simulated = any(base.__name__ == "InMemoryGrid" for base in type(grid).__mro__)
        if self._key is None and simulated and find_sketch_key() is None:
            self._key = self._made = SketchKey(secrets.token_bytes(32))
            _LOG.info("this simulation has made a key for itself. For a deployment: %s", MAKE_A_KEY)
        if evaluate_fn is not None and self._key is None:
            raise ArgumentError(
                f"evaluate_fn needs the model, and a server without a key has none: {MAKE_A_KEY}. "
                "Or leave evaluate_fn out: then the server only sums"
            )
        self._state(initial_arrays)
        self._timeout = timeout
        with simulation_key(grid.run.run_id, self._made) if self._made else nullcontext():
            result = super().start(
                grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config,
                evaluate_fn,
            )  # fmt: skip
        if self.claim is not None and not self.plan.is_bare:
            delta = _DELTA if self._budget is None else self._budget.delta
            _LOG.info("the run has cost a client at most %s", self.epsilon(delta))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the strategy's own messages, with what each node needs instead of the arrays."""
        self._round = None
        state = self._state(arrays)
        if self.ended:
            _LOG.error("no further round: %s", self.ended)
            return []
        state.history.replace(arrays)
        model = state.history.arrays
        messages = list(self.strategy.configure_train(server_round, model, config, grid))
        index, nonce = self._index, secrets.token_bytes(16)
        claim, messages = self._paying(state, state.select(messages), grid)
        nodes = tuple(message.metadata.dst_node_id for message in messages)
        if not nodes:
            return []
        found = predicted_error(state.method, claim, len(nodes)) if index == 0 else None
        if found is not None and found > 1:
            _LOG.warning(_TOO_NOISY, len(nodes), found)
        self._index += 1
        about = state.context(index, nonce, claim)
        exchange = Exchange(grid, timeout=self._timeout)
        instructions, left = dict[int, ConfigRecord](), dict[int, str]()
        if self._aggregation is not None:
            try:
                instructions, left = self._aggregation.prepare(nodes, about, exchange=exchange)
            except VoidError as error:  # before a message was requested: so nobody pays for it
                gone = {node: f"dropped out: {one.value}" for node, one in error.dropped.items()}
                report = RoundReport(
                    index, nodes, (), gone, bytes_down=exchange.bytes_down,
                    bytes_up=exchange.bytes_up, void=str(error),
                )  # fmt: skip
                self._log(report)
                return []
            nodes = tuple(node for node in nodes if node in instructions)
            messages = [one for one in messages if one.metadata.dst_node_id in instructions]
        name, size = state.fill(messages, nonce=nonce, round_index=index, instructions=instructions)
        weight = state.weight
        self._round = OpenRound(about, nodes, claim, name, size, exchange, left, weight=weight)
        # Before anything is requested: whatever becomes of the server, the round is paid for.
        state.registry.begin_round(claim, nodes)
        self._write_record(state)
        return messages

    def _paying(
        self, state: ServerState, messages: list[Message], grid: Grid
    ) -> tuple[Claim, list[Message]]:
        """The round's claim, and messages to nodes that can pay for it; none, if too few can."""
        nodes, least = [message.metadata.dst_node_id for message in messages], self.plan.min_replies
        claim, able = state.affordable(nodes, self._index)
        if len(able) == len(nodes):
            return claim, messages
        if len(able) >= least:
            spent = len(nodes) - len(able)
            _LOG.info("%d of %d nodes are left out: their budget is spent", spent, len(nodes))
            return claim, [one for one in messages if one.metadata.dst_node_id in able]
        why = f"{len(able)} of {len(nodes)} nodes can pay, and {least} are needed"
        if len(state.affordable(list(grid.get_node_ids()), self._index)[1]) >= least:
            _LOG.warning("no round with the nodes that were selected: %s", why)
            return claim, []
        try:
            state.registry.check_budget(claim, nodes)
        except BudgetExceeded as error:
            self.ended = f"{why}: {error}"
            _LOG.error("no further round: %s", self.ended)
        return claim, []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum, publish, decode, and let the wrapped strategy go on from the mean."""
        current, self._round = self._round, None
        if current is None:
            return None, None
        state, registry = self._state(), self._state().registry
        for message in replies:
            answer = current.add(message)
            if answer is not None:
                state.update(message.metadata.src_node_id, answer)
        over = registry.over_budget(current.claim)
        paid = {
            node: reply for node, reply in current.replies.items()
            if not reply.code and node not in over
        }  # fmt: skip
        weights = {node: weight for node, weight in current.weights.items() if node in paid}
        current.refused.update(state.far_weights(weights))
        parts = {node: each for node, each in paid.items() if node not in current.refused}
        result = self._summed(state, current, parts)
        current.refused.update(result.refused)
        current.refused.update(dict.fromkeys(over, _OVER_BUDGET))
        # All who were asked pay, for what so few messages leave of the claim.
        present, claim = len(result.present), current.claim
        if present:
            claim = state.claim_of(present, current.about.round_index)
        if registry.over_budget(claim) - over:
            # Fewer came than planned, and their noise is not enough: it may not be published.
            self.ended = f"a round of {present} messages would exceed the budget"
            registry.settle_round()
        else:
            registry.settle_round(claim)
        self._write_record(state)
        arrays, metrics, void = self._advance(state, server_round, current, result)
        self._log(current.report(result.present, claim, void))
        return arrays, metrics

    def _summed(
        self, state: ServerState, current: OpenRound, replies: Mapping[int, Reply]
    ) -> AggregationResult:
        """Sum the messages; and the plan's metrics, of the same nodes."""
        parts, about = {node: each.message for node, each in replies.items()}, current.about
        if self._aggregation is not None:
            return self._aggregation.total(parts, about, exchange=current.exchange)
        result = plain_sum(parts, about, current.weights)
        method = self.plan.metric_method
        if method is None or result.total is None:
            return result
        metrics = plain_sum(
            {node: replies[node].metrics for node in result.present},
            state.metric_context(about, method, claim=current.claim,
                                 fingerprint=result.total.fingerprint),
        )  # fmt: skip
        current.metrics = metrics.total
        if metrics.refused:  # both are of the same nodes, or their claim would be of neither
            good = {node: parts[node] for node in metrics.present}
            again = plain_sum(good, replace(about, usual=None))
            result = replace(again, refused={**result.refused, **metrics.refused})
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the strategy's own messages, with what each node needs instead of the arrays.

        None with a private plan, unless it opens that door: clients would refuse.
        """
        state = self._state(arrays)
        if not self.plan.opens("evaluation"):
            would = getattr(self.strategy, "fraction_evaluate", 1.0) > 0
            if would and not self._told_closed:
                _LOG.info("clients are not asked to evaluate: %s", CLOSED_DOOR.format("evaluation"))
            self._told_closed = True
            return []
        state.history.replace(arrays)
        model = state.history.arrays
        messages = list(self.strategy.configure_evaluate(server_round, model, config, grid))
        self._nonce = secrets.token_bytes(16)
        _, size = state.fill(messages, nonce=self._nonce, round_index=self._index, instructions={})
        self._evaluation_bytes[1] += size
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate the replies of those who had the model."""
        kept = []
        for message in replies:
            if message.has_content():
                self._evaluation_bytes[0] += records.content_bytes(message.content)
                try:
                    reply = Reply.find(message.content, self._nonce)
                except WireError as error:
                    _LOG.warning("evaluation refused: %s", error)
                    continue
                self._state().update(message.metadata.src_node_id, reply)
                if reply.code:
                    _LOG.warning("a node did not evaluate (%s): %s", reply.code, reply.reason)
                    continue
                del message.content[RECORD]
            kept.append(message)
        return self.strategy.aggregate_evaluate(server_round, kept)

    def _state(self, arrays: ArrayRecord | None = None) -> ServerState:
        """The state, which the first arrays begin."""
        if self._started is None:
            if arrays is None:
                raise ArgumentError("nothing is known before the first round is configured")
            self._started = ServerState(
                self.plan,
                arrays,
                key=self._key,
                budget=self._budget,
                trusted=self._trusted,
                keep_local=self._local,
                weight=self._weight,
                weighted=self._weighted,
                limit=self._limit,
            )
            if self._record is not None and self._record.exists():
                self._started.registry.load_text(self._record.read_text(encoding="utf-8"))
        return self._started

    def _write_record(self, state: ServerState) -> None:
        if self._record is not None:
            prepare_output(self._record.parent)
            replace_file(self._record, state.registry.to_text().encode())

    def _advance(
        self, state: ServerState, server_round: int, current: OpenRound, result: AggregationResult
    ) -> tuple[ArrayRecord | None, MetricRecord | None, str]:
        """Publish the total and compute the new model, or say why there is none."""
        present, least = len(result.present), self.plan.min_replies
        if result.void:
            return None, None, result.void
        if result.total is None or present < least:
            return None, None, f"{present} messages, and {least} are needed"
        if self.ended:
            return None, None, self.ended
        index, history = current.about.round_index, state.history
        noise = release_noise(state.method, current.claim)
        total = WireMessage(
            result.total.format,
            state.method.publish(result.total.cells, noise),
            round_index=index,
            fingerprint=result.total.fingerprint,
            sender=SERVER,
            count=result.total.count,
        )
        nodes = sorted(result.present)
        weights = [current.weights.get(node, 1) for node in nodes]
        whole = sum(weights) if current.weight else 0
        # Once, as the bytes that nodes are sent.
        published = records.weighted_total(total.to_bytes(), whole)
        contents = [current.contents[node].content for node in nodes]
        metrics = mean_metrics(contents, weights, current.weight)
        if private := self._private_metrics(current):
            metrics = MetricRecord({**(metrics or {}), **private})
        new, plain = None, None
        if self._key is not None:
            mean, _ = records.decode_total(published, index, method=state.method, key=self._key)
            plain = records.moved(history.arrays, mean, self._local)
            if not is_finite(records.flat(plain)):
                return None, None, "the new model would not be finite: training diverges"
            # The wrapped strategy gets one reply that stands for all.
            values = MetricRecord({**(metrics or {}), self._weight: whole or present})
            reply = copy.copy(current.contents[min(result.present)])  # for its metadata
            reply.content = RecordDict({current.arrays_key: plain, "metrics": values})
            arrays, metrics = self.strategy.aggregate_train(server_round, [reply])
            if arrays is None:
                return None, metrics, "the strategy inside gave no arrays"
            new = records.cast_like(arrays, history.arrays)
            if not is_finite(records.flat(new)):
                return None, metrics, "the strategy's model would not be finite: training diverges"
        self._totals.append((index, published))
        if new is None or plain is None or records.digest_of(new) == records.digest_of(plain):
            history.add(published, index, new)
        else:
            history.replace(new)
        state.advance(total)
        state.counted.update(dict.fromkeys(nodes, index))
        return new, metrics, ""

    def _private_metrics(self, current: OpenRound) -> dict[str, float]:
        """Means of the plan's metrics over those whose messages count, with their noise."""
        method, total = self.plan.metric_method, current.metrics
        if method is None or total is None:
            return {}
        noised = method.publish(total.cells, release_noise(method, current.claim))
        mean = method.decode(noised, _ANY_SEED, count=total.count)
        return self.plan.restored_metrics(mean)

    def _log(self, report: RoundReport) -> None:
        self.reports.append(report)
        _LOG.log(logging.ERROR if report.void else logging.INFO, "%s", report)
        for node, reason in report.refused.items():
            _LOG.warning("node %d does not count: %s", node, reason)
