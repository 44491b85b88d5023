"""The client's side: a Flower mod that sends a method's message instead of arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check_positive
from diffsketch.flower import records
from diffsketch.flower.accounts import ClientAccount, ClientLedger
from diffsketch.flower.plan import FlowerPlan, find_client_key, find_sketch_key
from diffsketch.flower.records import (
    MOST_WEIGHT,
    NO_MODEL,
    RECORD,
    SUM_RECORD,
    Refusal,
    Reply,
    Request,
)
from diffsketch.flower.secure import ClientContext, SecureClientAggregation
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.methods.plain import RoundedTables
from diffsketch.methods.release import release_noise
from diffsketch.privacy.accounting.account import Budget
from diffsketch.privacy.claim import Claim, ProvenClaim
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_PRECONDITION = 6  # Flower's ErrorCode.MOD_FAILED_PRECONDITION
_VALUES, _MODEL, _OWN = "diffsketch.memory", "diffsketch.model", "diffsketch.own"
_UNSENT = "diffsketch.unsent"


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Memory of a client: read at the beginning of a message, and written before its reply."""

    series: bytes  # of the strategy, in which rounds and versions are counted
    version: int = NO_MODEL
    model: ArrayRecord | None = None
    answered: int = -1  # the last round that a message was sent for
    account: ClientAccount | None = None  # None if nothing is known of it
    own: ArrayRecord | None = None  # arrays that the client keeps to itself, as its app left them
    # With error feedback: its memory, and the last round with the table that counts as sent then.
    unsent: ArrayRecord | None = None

    @classmethod
    def read(cls, context: Context, series: bytes, budget: Budget | None) -> ClientMemory:
        """Read what is known. From another series only the account counts."""
        values: Any = context.state.config_records.get(_VALUES)
        if values is None:
            return cls(series)
        text = str(values["account"])
        account = ClientAccount.of_text(text, budget) if text else None
        if values["series"] != series:
            return cls(series, account=account)
        found = context.state.array_records
        model, own, unsent = (found.get(name) for name in (_MODEL, _OWN, _UNSENT))
        version = NO_MODEL if model is None else int(values["version"])
        return cls(series, version, model, int(values["answered"]), account, own, unsent)

    def write(self, context: Context) -> None:
        """Keep it for the next message."""
        context.state[_VALUES] = ConfigRecord(
            {
                "series": self.series,
                "version": self.version,
                "answered": self.answered,
                "account": "" if self.account is None else self.account.to_text(),
            }
        )
        for name, arrays in ((_MODEL, self.model), (_OWN, self.own), (_UNSENT, self.unsent)):
            if arrays is not None:
                context.state[name] = arrays
            elif name in context.state:  # of another series
                del context.state[name]


@dataclass(frozen=True, eq=False)
class sketch_mod:  # noqa: N801 - written like Flower's own mods, which are functions
    """Mod for `ClientApp(mods=[sketch_mod(plan)])`: the app trains as before.

    It gives the app the model where it expects it, takes the arrays of the app's reply, and sends
    the method's message of their difference: new less old, as one float32 vector. The arrays
    themselves never leave. With `none` and `sketch`, which promise no privacy, metrics pass, and
    clients count by their examples if the strategy says so. With other methods metrics do not leave
    either, which nothing would make private (`keep_metrics` names those that may), and all clients
    count alike, as a weight by the number of examples would tell it.

    *Its own account.* A client pays for every message in an account of its own
    (`diffsketch.flower.accounts`), and sends nothing that its budget does not allow, whatever
    the server says. It answers a round once, and only for the plan that it has itself.

    *Vectors that are not finite* count as zeros, with their noise, where the claim is proven, since
    anything else would tell about the data; elsewhere the client sits the round out.

    Guarantees (`tests/flower/test_client.py`): no array and no other metric is in a reply;
    requests of another version, plan, key or round are refused and say why; the budget holds
    against a server that forgets, over restarts; with error feedback nothing is lost, whichever
    rounds count.

    Args:
        plan: The method; or a function that makes it from the context, for settings in the run's
            configuration. (Those come from the server: then the client agrees to any.)
        key: The clients' common key; else it is looked up (`find_sketch_key`).
        budget: Most that this client may spend. Only proven claims can be within one. Without an
            account file, nor a server that keeps its record from run to run, it is for one run.
        account_file: File of the account, which keeps it over restarts; else `diffsketch-account`
            of the node's configuration. Without one, or if it is lost, there is the SuperNode's
            memory and what the server keeps, if there is a client's key (`find_client_key`).
        importance: Factor of the vector before it is encoded, for means in which clients count
            differently. It must not depend on the data.
        keep_metrics: Names of metrics that are sent as they are. No claim is about them.
        trusted_server: Whether the server is trusted not to look at single messages where a claim
            is under distributed trust. It is then about those who see only what is published.
        aggregation: The client's side of a secure sum. Without, a plan with `secure_sum` has
            `SecureClientAggregation()`, which looks up the client's identity and the others'.
        keep_local: Names of arrays, or what follows the last dot of them, that never leave: the
            app finds them as it left them, while the SuperNode runs. Running statistics must be
            among them. The strategy has the same.
        error_feedback: Keep what messages cannot carry, and send it later (`ErrorFeedback`), while
            the SuperNode runs. For `sketch`, `sketch-gaussian` and `sketch-skellam`.
        immediate: With error feedback, the share of a vector that is sent at once; by a rule if
            not given.

    Raises:
        ArgumentError: An argument is of another type.
    """

    plan: FlowerPlan | Callable[[Context], FlowerPlan]
    _: KW_ONLY
    key: SketchKey | None = None
    budget: Budget | None = None
    account_file: str | Path | None = None
    importance: float = 1.0
    keep_metrics: Collection[str] = ()
    trusted_server: bool = False
    aggregation: SecureClientAggregation | None = None
    keep_local: Collection[str] = ()
    error_feedback: bool = False
    immediate: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.plan, FlowerPlan) or callable(self.plan)):
            kind = type(self.plan).__name__
            raise ArgumentError(f"plan must be a FlowerPlan or a function, got {kind}")
        check_positive("importance", self.importance)
        object.__setattr__(self, "keep_metrics", frozenset(self.keep_metrics))
        object.__setattr__(self, "keep_local", records.local_names(self.keep_local))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message, as Flower calls mods."""
        kind = message.metadata.message_type.partition(".")[0]
        if kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        return _Session(message, context, self).answer(call_next, kind == MessageType.TRAIN)


class _Session:
    """One message: the server's request, and the client's side of it."""

    def __init__(self, message: Message, context: Context, options: sketch_mod) -> None:
        self._message, self._context, self._options = message, context, options
        plan, config = options.plan, context.node_config
        self._plan = plan if isinstance(plan, FlowerPlan) else plan(context)
        key, node = options.key, message.metadata.dst_node_id
        if key is None:
            key = find_sketch_key(config, run_id=context.run_id)
        self._client = ClientContext(context, self._plan, key, node)
        self._aggregation = options.aggregation
        if self._aggregation is None and self._plan.secure_sum:
            self._aggregation = SecureClientAggregation()
        self._instructions = message.content.config_records.get(SUM_RECORD)
        self._member = str(config.get("partition-id", context.node_id))
        self._memory = ClientMemory(b"")
        found = options.account_file or config.get("diffsketch-account")
        path = Path(str(found)) if found else None
        self._ledger = ClientLedger(self._member, options.budget, find_client_key(config), path)

    def answer(self, call_next: ClientAppCallable, train: bool) -> Message:
        """Reply to the message, whatever is wrong with it."""
        if self._aggregation is not None:
            answer = self._aggregation.answer(self._message, self._client)
            if answer is not None:
                return answer
        record = self._message.content.config_records.get(RECORD)
        if record is None:
            # The app may not go on: it would send its arrays as they are.
            reason = "the server does not use SketchStrategy, and this client sends nothing without"
            return Message(Error(_PRECONDITION, reason), reply_to=self._message)
        try:
            self._begin(Request.of(record))
            return self._trained(call_next) if train else self._evaluated(call_next)
        except (Refusal, WireError) as error:
            code = error.code if isinstance(error, Refusal) else "request"
            _LOG.warning("round refused (%s): %s", code, error)
            nonce, version = record.get("nonce"), self._memory.version
            nonce = nonce if isinstance(nonce, bytes) else b""
            reply = Reply(nonce, self._member, version, code, str(error)[:1000])
            return Message(RecordDict({RECORD: reply.to_record()}), reply_to=self._message)

    def _begin(self, request: Request) -> None:
        """Check the request against the client's own plan and key, and catch up with the model."""
        self._request, client, local = request, self._client, self._options.keep_local
        self._memory = ClientMemory.read(self._context, request.series, self._options.budget)
        key = client.require_key()
        if request.key_check not in (b"", key.seed(0).fingerprint):
            raise Refusal("key", "the server's key is another one than this client's")
        self._seed = key.seed(request.round_index)
        base, version = self._base_model()
        try:
            dim = records.length_of(base, local)
        except ArgumentError as error:
            raise Refusal("model", str(error)) from error
        client.check_plan(request.plan, dim, local)
        method = self._plan.build(dim)
        if request.clip or method.round_clip is not None:
            # The server may say what it likes: noise is in proportion to the clip, and the claim
            # is the same for each. The plan, which has to agree, says whether the clip moves.
            try:
                method = method.at_clip(request.clip)
            except ArgumentError as error:
                raise WireError(str(error)) from error
        if request.version != request.first - 1 + len(request.totals):
            raise WireError("the request's totals do not lead to its version")
        if len(request.rounds) != len(request.totals):
            raise WireError("the request's totals are not those of its rounds")
        skip = version - (request.first - 1)
        if not 0 <= skip <= len(request.totals):
            raise Refusal("model", f"version {version} is not one to go on from")
        totals = list(zip(request.rounds, request.totals, strict=True))
        model, self._method = records.replay_totals(
            base, totals, method=method, key=key, keep_local=local, skip=skip
        )
        if request.digest and records.digest_of(model) != request.digest:
            self._memory = ClientMemory(request.series, account=self._memory.account)
            raise Refusal("model", "the model after catching up is not the server's")
        self._memory = replace(self._memory, model=model, version=request.version)
        self._memory.write(self._context)

    def _base_model(self) -> tuple[ArrayRecord, int]:
        """The dense model of the message, or the last one that this client had; its version."""
        request = self._request
        if request.base != NO_MODEL:
            found = self._message.content.array_records.get(request.arrays)
            if found is None:
                raise WireError("the request says that it has a model, and there is none")
            return found, request.base
        if self._memory.model is None or self._memory.version < request.first - 1:
            raise Refusal("model", "this client has no model to go on from")
        return self._memory.model, self._memory.version

    def _evaluated(self, call_next: ClientAppCallable) -> Message:
        """Let the app evaluate, and pass its reply on: no claim is about what it measures."""
        reply = call_next(self._for_app(), self._context)
        if reply.has_content():
            own = Reply(self._request.nonce, self._member, self._memory.version)
            reply.content[RECORD] = own.to_record()
        return reply

    def _trained(self, call_next: ClientAppCallable) -> Message:
        """Let the app train, and send the message of what it has learnt."""
        request, seed, aggregation = self._request, self._seed, self._aggregation
        if request.round_index <= self._memory.answered:
            raise Refusal("answered", f"round {request.round_index} was already answered")
        claim = self._plan.claim_for(self._method, self._plan.min_replies, seed)
        if request.weight and not self._plan.is_bare:
            raise Refusal("weight", "a weight would tell how many examples this client has")
        feedback = self._feedback(claim) if self._options.error_feedback else None
        trusted = self._options.trusted_server or aggregation is not None
        records.check_trust(claim, trusted_server=trusted)
        if aggregation is not None:
            aggregation.check(self._instructions, request.round_index, client=self._client)
        self._ledger.after(claim, request, remembered=self._memory.account)
        reply = call_next(self._for_app(), self._context)
        if reply.has_error():
            return reply
        weight, vector = self._weight(reply), self._vector(reply)
        cells = self._encoded(vector * weight if weight else vector, claim, feedback)
        # Before anything is sent: whatever becomes of the reply, it is paid for.
        account = self._ledger.charge(claim, request, remembered=self._memory.account)
        self._memory = replace(self._memory, answered=request.round_index, account=account)
        self._memory.write(self._context)
        wire = WireMessage(
            self._method.message_format,
            cells,
            round_index=request.round_index,
            fingerprint=seed.fingerprint,
            sender=self._client.node,
        )
        if aggregation is None:
            data = wire.to_bytes()
        else:
            data = aggregation.protect(wire, self._instructions, client=self._client)
        statement = b"" if self._ledger.key is None else account.statement(self._ledger.key)
        version = self._memory.version
        own = Reply(
            request.nonce, self._member, version, message=data, statement=statement, weight=weight
        )
        content = RecordDict({RECORD: own.to_record()})
        for name, record in reply.content.metric_records.items():
            named = self._options.keep_metrics
            kept = {key: record[key] for key in record if self._plan.is_bare or key in named}
            if kept:
                content[name] = MetricRecord(kept)
        reply.content = content
        return reply

    def _for_app(self) -> Message:
        """The message as the app expects it, with the client's own arrays in the model."""
        content, memory = self._message.content, self._memory
        parts = {name: one for name, one in content.items() if name not in (RECORD, SUM_RECORD)}
        if memory.model is not None:
            own: Mapping[str, Array] = memory.own or {}
            parts[self._request.arrays] = ArrayRecord(
                {name: own.get(name, one) for name, one in memory.model.items()}
            )
        self._message.content = RecordDict(parts)
        return self._message

    def _vector(self, reply: Message) -> Tensor:
        """New less old. Arrays that the client keeps to itself are remembered."""
        found, local = list(reply.content.array_records.values()), self._options.keep_local
        model = self._memory.model
        if len(found) != 1 or model is None:
            raise Refusal("app", f"the app must reply with one ArrayRecord, got {len(found)}")
        try:
            records.check_layout(found[0], model)
        except MismatchError as error:
            raise Refusal("app", str(error)) from error
        ordered = ArrayRecord({name: found[0][name] for name in model})
        own = {name: one for name, one in ordered.items() if records.is_local(name, local)}
        if own:
            self._memory = replace(self._memory, own=ArrayRecord(own))
        change = records.flat(ordered, local) - records.flat(model, local)
        return change if self._options.importance == 1 else change * self._options.importance

    def _weight(self, reply: Message) -> int:
        """Number of examples that the app reports; 0 if clients count alike."""
        name = self._request.weight
        if not name:
            return 0
        found = [one[name] for one in reply.content.metric_records.values() if name in one]
        value = found[0] if len(found) == 1 else None
        if isinstance(value, list) or value is None or not 1 <= value <= MOST_WEIGHT or value % 1:
            raise Refusal(
                "app", f"the metric {name!r} must be a whole number in 1..2**40, by which this "
                f"client counts, got {value}. SketchStrategy(weighted=False) does without",
            )  # fmt: skip
        return int(value)

    def _feedback(self, claim: Claim) -> ErrorFeedback:
        """The memory of what was not sent yet, with the last round's if that does not count."""
        try:
            feedback = ErrorFeedback(self._method, claim, immediate=self._options.immediate)
        except ArgumentError as error:
            raise Refusal("feedback", str(error)) from error
        if self._memory.unsent is not None:
            unsent = self._memory.unsent
            found = {name: torch.from_numpy(one.numpy().copy()) for name, one in unsent.items()}
            feedback.memory = found["memory"]
            last = int(found["round"]) if "round" in found else self._request.counted
            if last != self._request.counted:
                feedback.restore(found["table"], self._client.require_key().seed(last))
            self._keep_unsent(memory=feedback.memory)
        return feedback

    def _keep_unsent(self, **parts: Tensor | None) -> None:
        found = {name: Array(one.numpy()) for name, one in parts.items() if one is not None}
        arrays = ArrayRecord(found)
        self._memory = replace(self._memory, unsent=arrays)

    def _encoded(self, vector: Tensor, claim: Claim, feedback: ErrorFeedback | None) -> Tensor:
        method, noise = self._method, release_noise(self._method, claim)
        mixed = vector if feedback is None else feedback.mixed(vector)
        try:
            cells = method.encode(mixed, self._seed, noise).messages
        except ArgumentError:
            # Either the vector is not finite, or this fails for zeros too and is another error.
            zeros = method.encode(torch.zeros_like(vector), self._seed, noise).messages
        else:
            if feedback is not None:
                table = method.mean_table(cells, 1) if isinstance(method, RoundedTables) else cells
                table = feedback.keep(vector, mixed, table, self._seed)
                number = torch.tensor(self._request.round_index)
                self._keep_unsent(memory=feedback.memory, table=table, round=number)
            return cells
        if not isinstance(claim, ProvenClaim):
            raise Refusal("not-finite", "the vector has NaN or infinite values")
        _LOG.warning("NaN or infinite values in the vector: it counts as zeros, with its noise")
        return zeros
