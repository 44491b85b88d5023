"""The server's side: a strategy that sums messages around the user's own."""

from __future__ import annotations

import copy
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from diffsketch.errors import ArgumentError, MismatchError, check, check_positive
from diffsketch.files import locked_beside, prepare_output, replace_file
from diffsketch.flower import records
from diffsketch.flower.accounts import ClientRegistry
from diffsketch.flower.aggregation import (
    ANY_SEED,
    Round,
    RoundReport,
    UsualSize,
    check_strategy,
    mean_metrics,
    plain_sum,
)
from diffsketch.flower.keys import MAKE_A_KEY, NodeKeys, simulation_keys
from diffsketch.flower.plan import CLOSED_DOOR, FlowerPlan
from diffsketch.flower.records import NO_MODEL, RECORD, SUM_RECORD, Reply, Request
from diffsketch.flower.secure_server import SecureAggregation, TwoAggregators
from diffsketch.logs import OnRound, RoundSummary
from diffsketch.methods.base import is_finite
from diffsketch.methods.gate import check_release, release_noise
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim, Trust
from diffsketch.secure_sum import OneShotHelper, VoidError
from diffsketch.sketch import SketchKey
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_WAIT = 60.0  # seconds for another server that writes the same record
_DELTA = 1e-5  # of the epsilon that is logged, where no budget has one
_FAR = 10.0  # times the median norm of messages: honest ones differ by their data, by a few times
_FAR_WEIGHT = 100.0  # times the median weight: numbers of examples differ more than norms do
_OVER_BUDGET = "budget: it is a client whose budget was spent when it was asked as an unknown node"


class SketchStrategy(Strategy):
    """Wrapper of a strategy, with messages of a method instead of dense arrays, both ways.

    `SketchStrategy(FedAvg(...), plan, key=key)` in place of `FedAvg(...)`. The wrapped strategy
    picks the nodes and their configuration; of more than `plan.cohort`, where the method has one,
    a random choice of `plan.cohort` is asked. Nodes are sent what they lack of the model; their
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
            identities are looked up (`NodeKeys`), where the plan has them, or the public key of the
            helper.
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

    Attributes:
        on_round: Set it to a function that is called with the `RoundSummary` of each round.

    Raises:
        ArgumentError: Options do not go together.
    """

    on_round: OnRound | None = None

    def __init__(
        self,
        strategy: Strategy,
        plan: FlowerPlan,
        *,
        key: SketchKey | None = None,
        budget: Budget | None = None,
        aggregation: SecureAggregation | TwoAggregators | None = None,
        trusted_server: bool = False,
        record_file: str | Path | None = None,
        keep_local: Collection[str] = (),
        limit: float | None = None,
    ) -> None:
        check_strategy(strategy)
        if limit == math.inf:
            _LOG.warning("limit=inf: messages of any norm and weight are summed")
        elif limit is not None:
            check_positive("limit", limit)
        if aggregation is None and plan.has_helper:
            aggregation = TwoAggregators()
        elif aggregation is None and plan.secure_sum:
            members = NodeKeys().identities if plan.identities else None
            public = None if members is None else members.values()
            aggregation = SecureAggregation(identities=public)
        kind = {False: type(None), "two": TwoAggregators}.get(plan.secure_sum, SecureAggregation)
        needed = 'be a SecureAggregation for secure_sum="one", TwoAggregators for "two", else None'
        check(isinstance(aggregation, kind), "aggregation", needed, type(aggregation).__name__)
        if isinstance(aggregation, SecureAggregation) and aggregation.signed != plan.identities:
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
        self._local, self._begun = records.local_names(keep_local), False
        self._counts_by = ""  # metric by which clients count; empty if they count alike
        self._index, self._timeout = 0, 3600.0
        self._round: Round | None = None
        self._totals: list[tuple[int, bytes]] = []
        self._clips: dict[int, float] = {}  # of rounds that were published
        self._counted: dict[int, int] = {}  # last round that a node's message is in
        self._nonce, self._told_closed = b"", False
        weighs = f"not have {self._weight!r}, by which the wrapped strategy weighs clients"
        check(self._weight not in plan.metrics, "metrics", weighs, [*plan.metrics])

    @property
    def totals(self) -> tuple[tuple[int, bytes], ...]:
        """All rounds that counted, and what they published."""
        return tuple(self._totals)

    @property
    def clip(self) -> float | None:
        """Clip of the next round, for methods whose clip moves; else None."""
        return self._method.round_clip if self._begun else None

    @property
    def claim(self) -> Claim | None:
        """Claim of the whole run; None before it."""
        return self._registry.claim if self._begun else None

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon that the run has cost the client who was asked most often, with its basis."""
        if not self._begun:
            raise ArgumentError("epsilon has no value before the first round is configured")
        return self._registry.epsilon(delta)

    def summary(self) -> None:
        """Log what is run."""
        _LOG.info("\t├──> DiffSketch: %s", self.plan)
        _LOG.info("\t│\t├── the server %s", "decodes" if self._key else "has no key: it only sums")
        wrapped, how = copy.copy(self.strategy), f"by {self._counts_by!r}"
        if not self._counts_by:
            how = "alike: weights would tell how many examples each has"
            if hasattr(wrapped, "weighted_by_key"):
                wrapped.weighted_by_key = "nothing: all clients count alike"
        _LOG.info("\t│\t└── clients count %s", how)
        wrapped.summary()

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
        stack = ExitStack()
        if any(base.__name__ == "InMemoryGrid" for base in type(grid).__mro__):
            self._equip_simulation(grid.run.run_id, stack)
        if evaluate_fn is not None and self._key is None:
            raise ArgumentError(
                f"evaluate_fn needs the model, and a server without a key has none: {MAKE_A_KEY}. "
                "Or leave evaluate_fn out: then the server only sums"
            )
        self._timeout = timeout
        with stack:
            self._begin(initial_arrays)
            result = super().start(
                grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config,
                evaluate_fn,
            )  # fmt: skip
        if (spent := self._spent()) is not None:
            _LOG.info("the run has cost a client at most %s", spent)
        return result

    def _spent(self) -> Epsilon | None:
        """Epsilon so far, at the budget's delta, or at 1e-5; None if nothing is promised."""
        delta = _DELTA if self._budget is None else self._budget.delta
        return None if self.plan.is_bare else self.epsilon(delta)

    def _equip_simulation(self, run_id: int, stack: ExitStack) -> None:
        """Make the keys that cannot be found, and lend them to the clients of a simulation."""
        made, aggregation = None, self._aggregation
        if self._key is None and NodeKeys().sketch is None:
            self._key = made = SketchKey(secrets.token_bytes(32))
            _LOG.info("this simulation has made a key for itself. For a deployment: %s", MAKE_A_KEY)
        helper = aggregation.public if isinstance(aggregation, TwoAggregators) else None
        if isinstance(aggregation, TwoAggregators) and helper is None:
            memory = stack.enter_context(TemporaryDirectory())
            members = NodeKeys().identities if self.plan.identities else None
            local = OneShotHelper(secrets.token_bytes(32), memory, identities=members)
            self._aggregation, helper = TwoAggregators(local), local.public
        if made or helper:
            stack.enter_context(simulation_keys(run_id, made.secret if made else None, helper))

    def _begin(self, arrays: ArrayRecord) -> None:
        """Set up what depends on the model's length, with the first arrays of the run."""
        if self._begun:
            return
        # Random: clients tell by it the rounds and versions of different runs apart.
        plan, self._series = self.plan, secrets.token_bytes(8)
        if isinstance(self._aggregation, TwoAggregators) and self._aggregation.public is None:
            raise ArgumentError(
                "aggregation must have the helper's public key, which its operator hands out: "
                "TwoAggregators(key), or DIFFSKETCH_HELPER_FILE"
            )
        dim = records.length_of(arrays, self._local)
        self._method, self._plan_text = plan.build(dim), plan.describe(dim, self._local)
        planned = self._claim_of(plan.min_replies, 0)
        check_release(self._method, planned, budget=self._budget)
        if records.needs_trust(planned) and not self._trusted:
            raise ArgumentError(f"method={self._method.name!r}: {records.NEEDS_TRUST}")
        self._counts_by = self._weight if plan.is_bare else ""
        # Where only the sum's noise hides a client, whom the server refuses must not depend on its
        # message: no bound then follows from the messages of the round.
        private_sum = not isinstance(planned, NoClaim) and planned.scope.trust is not Trust.LOCAL
        self._substitutes = private_sum and not plan.secure_sum  # zeros for what is too long
        bounded = self._limit is None and not private_sum
        self._usual_norm = UsualSize(_FAR if bounded else math.inf)
        self._usual_weight = UsualSize(_FAR_WEIGHT if bounded else math.inf)
        self._registry = ClientRegistry(self._budget, planned)
        self._history = records.ModelHistory(arrays, keyed=self._key is not None)
        self._written = ""  # to the record, as this server has read or written it last
        if self._record is not None and self._record.exists():
            self._written = self._record.read_text(encoding="utf-8")
            self._registry.load_text(self._written)
        self._begun = True

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the strategy's own messages, with what each node needs instead of the arrays."""
        self._round = None
        self._begin(arrays)
        if self.ended:
            _LOG.error("no further round: %s", self.ended)
            return []
        self._history.replace(arrays)
        current, aggregation = self._open(grid), self._aggregation
        clients = aggregation.clients(current) if isinstance(aggregation, TwoAggregators) else grid
        model = self._history.arrays
        asked = self._select(self.strategy.configure_train(server_round, model, config, clients))
        current.claim, current.nodes = self._paying(list(asked), clients)
        if not current.nodes:
            return []
        self._index += 1
        instructions = dict[int, ConfigRecord]()
        if aggregation is not None:
            try:
                instructions = aggregation.prepare(current)
            except VoidError as failure:  # before a message was requested: nobody pays for it
                current.void = str(failure)
                self._log(current, None)
                return []
        messages = [asked[node] for node in current.nodes]
        current.arrays_key, size = self._fill(
            messages, current.nonce, current.round_index, instructions
        )
        current.bytes_down += size
        # Before anything is requested: whatever becomes of the server, the round is paid for.
        self._registry.begin_round(current.claim, current.nodes)
        self._write_record()
        self._round = current
        return messages

    def _open(self, grid: Grid) -> Round:
        """Open the next round, whose nodes are still to be chosen."""
        return Round(
            self.plan, self._method, self._claim_of(self.plan.min_replies, self._index),
            self._index, self._fingerprint(self._index), grid, self._timeout,
            nonce=secrets.token_bytes(16), weight=self._counts_by,
            limit=math.inf if self._limit is None else self._limit,
            usual=self._usual_norm, substitutes=self._substitutes,
        )  # fmt: skip

    def _fingerprint(self, round_index: int) -> bytes | None:
        """Fingerprint of a round's hashes; None if the server has no key."""
        return None if self._key is None else self._key.seed(round_index).fingerprint

    def _claim_of(self, present: int, round_index: int) -> Claim:
        """Claim of a round with `present` messages, without the noise of the corrupt."""
        seed = ANY_SEED if self._key is None else self._key.seed(round_index)
        return self.plan.claim_for(self._method, present, seed)

    def _select(self, requests: Iterable[Message]) -> dict[int, Message]:
        """Keep as many requests as the method's cohort has room for, by their nodes.

        All nodes have the same chance, in every round anew. No claim counts on the choice.
        """
        messages = list(requests)
        asked = {message.metadata.dst_node_id: message for message in messages}
        if len(asked) != len(messages):
            nodes = sorted(message.metadata.dst_node_id for message in messages)
            raise ArgumentError(f"strategy must ask each node once in a round, got {nodes}")
        cohort = self._method.most_messages or len(asked)
        if self._claim_of(self.plan.min_replies, self._index).scope.trust is Trust.CENTRAL:
            # More could overflow the sum before it has its noise, which would tell of the data.
            cohort = min(cohort, self._method.max_summands)
        if len(asked) <= cohort:
            return asked
        _LOG.warning("%d nodes, and a cohort of %d: not all are asked", len(asked), cohort)
        chosen = set(secrets.SystemRandom().sample(list(asked), cohort))
        return {node: message for node, message in asked.items() if node in chosen}

    def _affordable(self, nodes: list[int]) -> tuple[Claim, list[int], str]:
        """Claim of the next round, nodes that can pay it, and why the last one left out cannot.

        With fewer than `min_replies` the nodes are those left when there were too few.
        """
        least, reason = self.plan.min_replies, ""
        while True:
            # A secure sum fails with fewer than `least`: whatever comes of it, this is affordable.
            most = self._method.most_messages or len(nodes)
            present = least if self.plan.secure_sum else max(min(len(nodes), most), 1)
            claim = self._claim_of(present, self._index)
            poor = self._registry.unaffordable(claim, nodes)
            nodes = [node for node in nodes if node not in poor]
            reason = next(iter(poor.values()), reason)
            if not poor or len(nodes) < least:
                return claim, nodes, reason
            # Fewer share the noise: what each pays may be more, so look again.

    def _paying(self, nodes: list[int], grid: Grid) -> tuple[Claim, tuple[int, ...]]:
        """Claim of the round, and the nodes that can pay for it; none, if too few can."""
        least = self.plan.min_replies
        claim, able, reason = self._affordable(nodes)
        spent = len(nodes) - len(able)
        if spent and len(able) >= least:
            _LOG.info("%d of %d nodes are left out: their budget is spent", spent, len(nodes))
        if not spent or len(able) >= least:
            return claim, tuple(able)
        why = f"{len(able)} of {len(nodes)} nodes can pay, and {least} are needed"
        if len(self._affordable(list(grid.get_node_ids()))[1]) >= least:
            _LOG.warning("no round with the nodes that were selected: %s", why)
        else:
            self.ended = f"{why}: {reason}"
            _LOG.error("no further round: %s", self.ended)
        return claim, ()

    def _fill(
        self,
        messages: Iterable[Message],
        nonce: bytes,
        round_index: int,
        instructions: Mapping[int, ConfigRecord],
    ) -> tuple[str, int]:
        """Put into each message what its node needs instead of the arrays.

        Returns the name of the model's record, and the bytes of all messages.
        """
        name, size, sizes, history = "", 0, dict[int, int](), self._history
        key_check = self._fingerprint(0) or b""
        for message in messages:
            node, content = message.metadata.dst_node_id, message.content
            if len(content.array_records) != 1:
                count = len(content.array_records)
                raise MismatchError(f"strategy must send one ArrayRecord, the model, got {count}")
            (name,) = content.array_records
            parts = {key: record for key, record in content.items() if key != name}
            arrays, start, totals = history.download(self._registry.version_of(node))
            statement, digests = self._registry.statement_for(node)
            rounds = [index for index, _ in totals]
            parts[RECORD] = Request(
                series=self._series, nonce=nonce, round_index=round_index, plan=self._plan_text,
                key_check=key_check, arrays=name,
                base=NO_MODEL if arrays is None else start, version=history.version,
                first=start + 1, totals=[total for _, total in totals], rounds=rounds,
                digest=b"" if self._key is None else history.digest,
                statement=statement, known=digests,
                clip=self._clips[rounds[0]] if rounds else self._method.round_clip or 0.0,
                weight=self._counts_by, counted=self._counted.get(node, -1),
            ).to_record()  # fmt: skip
            if node in instructions:
                parts[SUM_RECORD] = instructions[node]
            if arrays is not None:
                parts[name] = arrays
            message.content = RecordDict(parts)
            size += records.content_bytes(message.content, sizes)
        return name, size

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum, publish, decode, and let the wrapped strategy go on from the mean."""
        current, self._round = self._round, None
        if current is None:
            return None, None
        registry = self._registry
        for message in replies:
            reply = current.add(message)
            if reply is not None:
                self._update(message.metadata.src_node_id, reply)
        if current.claim.scope.trust is not Trust.LOCAL:
            # A client with two messages would move the sum twice as far as the claim says.
            members = set[str]()
            for node, reply in current.replies.items():
                if node not in current.refused and reply.member in members:
                    current.refused[node] = "another node of its client is in the sum"
                members.add(reply.member)
        over = registry.over_budget(current.claim)
        current.refused.update(dict.fromkeys(over, _OVER_BUDGET))
        self._refuse_far_weights(current)
        valid = {n: reply for n, reply in current.replies.items() if n not in current.refused}
        add_up = plain_sum if self._aggregation is None else self._aggregation.total
        add_up(current, valid)
        # All who were asked pay, for what so few messages leave of the claim.
        present, claim = len(current.present), current.claim
        if present:
            claim = self._claim_of(present, current.round_index)
        if registry.over_budget(claim) - over:
            # Fewer came than planned, and their noise is not enough: it may not be published.
            self.ended = f"a round of {present} messages would exceed the budget"
            registry.settle_round()
        else:
            registry.settle_round(claim)
        self._write_record()
        arrays, metrics = self._advance(server_round, current)
        self._log(current, claim)
        return arrays, metrics

    def _update(self, node: int, reply: Reply) -> None:
        """Record who a node says that it is, and which model it has."""
        # With the code "model" it cannot go on from the version that it has.
        usable = NO_MODEL <= reply.version <= self._history.version and reply.code != "model"
        version = reply.version if usable else NO_MODEL
        self._registry.update(node, member=reply.member, version=version, statement=reply.statement)

    def _refuse_far_weights(self, current: Round) -> None:
        """Refuse replies whose weights are far beyond those of the others."""
        replies = current.replies.items()
        weights = {n: reply.weight for n, reply in replies if n not in current.refused}
        bound = self._usual_weight.bound(weights.values())
        for node, weight in weights.items():
            if weight > bound:
                current.refused[node] = (
                    f"weight must be at most {bound:.4g} here, {_FAR_WEIGHT:g} times the median, "
                    f"got weight={weight}"
                )

    def _advance(
        self, server_round: int, current: Round
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Publish the total and compute the new model; or set `void` to why there is none."""
        total, present, least = current.total, len(current.present), self.plan.min_replies
        if total is None or present < least:
            current.void = current.void or f"{present} messages, and {least} are needed"
            return None, None
        if self.ended:
            current.void = self.ended
            return None, None
        method, history, index = self._method, self._history, current.round_index
        noise = release_noise(method, current.claim)
        total = replace(total, cells=method.publish(total.cells, noise))
        weight = sum(map(current.weight_of, current.present)) if current.weight else 0
        # Decoded from the bytes that nodes are sent: all have the same bits.
        published = records.weighted_total(total.to_bytes(), weight)
        values = {**mean_metrics(current), **self._private_metrics(current)}
        metrics = MetricRecord(values) if values else None
        new = plain = None
        if self._key is not None:
            mean, _ = records.decode_total(published, index, method=method, key=self._key)
            plain = records.moved(history.arrays, mean, self._local)
            if not is_finite(records.flat(plain)):
                current.void = "the new model would not be finite: training diverges"
                return None, None
            # The wrapped strategy gets one reply that stands for all.
            reply = copy.copy(current.messages[min(current.present)])  # for its metadata
            combined = MetricRecord({**values, self._weight: weight or present})
            reply.content = RecordDict({current.arrays_key: plain, "metrics": combined})
            arrays, metrics = self.strategy.aggregate_train(server_round, [reply])
            if arrays is None:
                current.void = "the strategy inside gave no arrays"
                return None, metrics
            new = records.cast_like(arrays, history.arrays)
            if not is_finite(records.flat(new)):
                current.void = "the strategy's model would not be finite: training diverges"
                return None, metrics
        self._totals.append((index, published))
        if new is None or plain is None or records.digest_of(new) == records.digest_of(plain):
            history.add(published, index, new)
        else:  # the strategy's own rule, which nodes cannot compute
            history.replace(new)
        self._clips[index] = method.round_clip or 0.0
        self._method = method.after(total.cells, count=total.count)
        self._counted.update(dict.fromkeys(current.present, index))
        return new, metrics

    def _private_metrics(self, current: Round) -> dict[str, float]:
        """Means of the plan's metrics over those whose messages count, with their noise."""
        method, total = self.plan.metric_method, current.metrics
        if method is None or total is None:
            return {}
        noised = method.publish(total.cells, release_noise(method, current.claim))
        return self.plan.restored_metrics(method.decode(noised, ANY_SEED, count=total.count))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the strategy's own messages, with what each node needs instead of the arrays.

        None with a private plan, unless it opens that door: clients would refuse.
        """
        self._begin(arrays)
        if not self.plan.opens("evaluation"):
            would = getattr(self.strategy, "fraction_evaluate", 1.0) > 0
            if would and not self._told_closed:
                _LOG.info("clients are not asked to evaluate: %s", CLOSED_DOOR.format("evaluation"))
            self._told_closed = True
            return []
        self._history.replace(arrays)
        model = self._history.arrays
        messages = list(self.strategy.configure_evaluate(server_round, model, config, grid))
        self._nonce = secrets.token_bytes(16)
        self._fill(messages, self._nonce, self._index, {})
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate the replies of those who had the model."""
        kept = []
        for message in replies:
            if message.has_content():
                try:
                    reply = Reply.find(message)
                    if reply.nonce != self._nonce:
                        raise WireError("reply is to another request")
                    self._update(message.metadata.src_node_id, reply)
                    if reply.code:
                        raise WireError(f"{reply.code}: {reply.reason}")
                except WireError as error:
                    _LOG.warning("a node did not evaluate: %s", error)
                    continue
                del message.content[RECORD]
            kept.append(message)
        return self.strategy.aggregate_evaluate(server_round, kept)

    def _write_record(self) -> None:
        """Write the accounts, with what another server has written to the same file meanwhile.

        What this one has written itself is left alone: a round that is under way is in it under the
        names that its nodes had then.
        """
        if self._record is None:
            return
        prepare_output(self._record.parent)
        with locked_beside(self._record, wait=_WAIT):
            if self._record.exists():
                text = self._record.read_text(encoding="utf-8")
                if text != self._written:
                    self._registry.load_text(text)
            self._written = self._registry.to_text()
            replace_file(self._record, self._written.encode())

    def _log(self, current: Round, claim: Claim | None) -> None:
        report = current.report(claim, self._spent())
        self.reports.append(report)
        if self.on_round is not None:
            summary = RoundSummary(
                len(self.reports),
                bytes_up=sum(done.bytes_up for done in self.reports),
                bytes_down=sum(done.bytes_down for done in self.reports),
                epsilon=report.epsilon,
                refused={f"node {node}": reason for node, reason in report.refused.items()},
            )
            self.on_round(summary)
        _LOG.log(logging.ERROR if report.void else logging.INFO, "%s", report)
        for node, reason in report.refused.items():
            _LOG.warning("node %d does not count: %s", node, reason)
