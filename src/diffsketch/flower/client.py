"""The client's side: a Flower mod that sends a method's message instead of arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import (
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

from diffsketch.errors import ArgumentError, DiffSketchError, check_positive
from diffsketch.flower.accounts import Account, AccountFile, Books
from diffsketch.flower.aggregation import Own, Sealing
from diffsketch.flower.plan import Plan, find_client_key, find_sketch_key
from diffsketch.flower.records import (
    NO_MODEL,
    RECORD,
    SUM_RECORD,
    Refusal,
    Reply,
    Request,
    check_layout,
    check_trust,
    digest_of,
    flat,
    is_local,
    length_of,
    local_names,
    moved,
    record_in,
    with_own,
    without_words,
)
from diffsketch.flower.secure import SecureSealing
from diffsketch.methods import Method
from diffsketch.methods.release import release_noise
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, ProvenClaim, Trust
from diffsketch.sketch import SketchKey
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import WireError


def mean_of(
    total: bytes, round_index: int, *, method: Method, key: SketchKey
) -> tuple[torch.Tensor, Method]:
    """The mean that a round has published, and the method of the next round.

    Raises:
        WireError: The bytes are not the total of this round, with this key.
    """
    seed = key.seed(round_index)
    message = WireMessage.from_bytes(
        total, method.total_format, round_index=round_index, fingerprint=seed.fingerprint
    )
    mean = method.decode(message.cells, seed, count=message.count)
    return mean, method.after(message.cells, count=message.count)


def followed(
    model: ArrayRecord,
    totals: Sequence[bytes],
    rounds: Sequence[int],
    *,
    method: Method,
    key: SketchKey,
    keep_local: Collection[str] = (),
) -> ArrayRecord:
    """The model after these rounds: each mean is added to it, one after another.

    `method` is that of the first of them, and `keep_local` that of the run: arrays with these names
    stay as they are in the model.

    Guarantees (`tests/flower/test_flower.py`): the bits that a server with the key has.

    Raises:
        WireError: A total is not that of its round.
    """
    return follow(model, totals, rounds, method=method, key=key, keep_local=keep_local)[0]


def follow(
    model: ArrayRecord,
    totals: Sequence[bytes],
    rounds: Sequence[int],
    *,
    method: Method,
    key: SketchKey,
    keep_local: Collection[str],
    skip: int = 0,
) -> tuple[ArrayRecord, Method]:
    """The model after these rounds, and the method of the round that comes then.

    Args:
        model: Before them.
        totals: What they have published.
        rounds: Which they are.
        method: Of the first one.
        key: Of the hashes.
        keep_local: As above.
        skip: How many of the totals are in the model already.

    Raises:
        WireError: A total is not that of its round.
    """
    for place, (total, round_index) in enumerate(zip(totals, rounds, strict=True)):
        if place < skip and method.round_clip is None:
            continue
        mean, method = mean_of(total, round_index, method=method, key=key)
        if place >= skip:
            model = moved(model, mean, keep_local)
    return model, method


_VALUES, _MODEL, _OWN = "diffsketch.memory", "diffsketch.model", "diffsketch.own"
_NEVER = -1


@dataclass(frozen=True, eq=False)
class Memory:
    """A value, read at the beginning of a message and written before its reply.

    Attributes:
        series: Of the strategy that rounds and versions are counted in.
        version: Of the model.
        model: None if there is none.
        answered: The last round that a message was sent for; -1 for none.
        account: None if nothing is known of it.
        own: Arrays that the client keeps to itself, as its app left them; None if there are none.
    """

    series: bytes
    version: int = NO_MODEL
    model: ArrayRecord | None = None
    answered: int = _NEVER
    account: Account | None = None
    own: ArrayRecord | None = None

    @classmethod
    def read(cls, context: Context, series: bytes, budget: Budget | None) -> Memory:
        """What is known. Of another series only the account counts."""
        values: Any = context.state.config_records.get(_VALUES)
        if values is None:
            return cls(series)
        text = str(values["account"])
        account = Account.of_text(text, budget) if text else None
        if values["series"] != series:
            return cls(series, account=account)
        model = context.state.array_records.get(_MODEL)
        version = NO_MODEL if model is None else int(values["version"])
        answered = int(values["answered"])
        own = context.state.array_records.get(_OWN)
        return cls(series, version, model, answered, account, own)

    def write(self, context: Context) -> None:
        """Keep it for the next message."""
        text = "" if self.account is None else self.account.to_text()
        context.state[_VALUES] = ConfigRecord(
            {
                "series": self.series,
                "version": self.version,
                "answered": self.answered,
                "account": text,
            }
        )
        if self.model is not None:
            context.state[_MODEL] = self.model
        if self.own is not None:
            context.state[_OWN] = self.own

    def with_model(self, model: ArrayRecord, version: int) -> Memory:
        """With another model."""
        return replace(self, model=model, version=version)

    def with_own(self, own: ArrayRecord) -> Memory:
        """With what the app has made of the client's own arrays."""
        return replace(self, own=own)

    def with_answer(self, round_index: int, account: Account) -> Memory:
        """After a message."""
        return replace(self, answered=round_index, account=account)


_LOG = logging.getLogger("flwr.diffsketch")
_PRECONDITION = 6  # Flower's ErrorCode.MOD_FAILED_PRECONDITION
_PARTITION = "partition-id"
_OURS = (RECORD, SUM_RECORD)

PlanOf = Callable[[Context], Plan]


def sketch_mod(
    plan: Plan | PlanOf,
    *,
    key: SketchKey | None = None,
    budget: Budget | None = None,
    account_file: str | Path | None = None,
    importance: float = 1.0,
    keep_metrics: Collection[str] = (),
    trusted_server: bool = False,
    sealing: Sealing | None = None,
    keep_local: Collection[str] = (),
) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """A mod for `ClientApp(mods=[sketch_mod(plan)])`: the app trains as before, and sends messages.

    It gives the app the model where it expects it, takes the arrays of the app's reply, and sends
    the method's message of their difference: new less old, as one float32 vector. The arrays
    themselves never leave, nor do metrics, which nothing would make private: `keep_metrics` names
    those that may. All clients count alike: a weight by the number of examples would tell it.

    *Its own books.* A client pays for every message in an account of its own, in
    `diffsketch.flower.accounts`, and sends nothing that its budget does not allow, whatever
    the server says. It answers a round once, and only for the plan that it has itself.

    *Vectors that are not finite* count as zeros, with their noise, where the claim is proven, since
    anything else would tell about the data; elsewhere the client sits the round out.

    Guarantees (`tests/flower/test_flower_client.py`): no array and no other metric is in a reply;
    requests of another version, plan, key or round are refused and say why; the budget holds
    against a server that forgets, over restarts.

    Args:
        plan: The method; or a function that makes it from the context, for settings in the run's
            configuration. (Those come from the server: then the client agrees to any.)
        key: The clients' common key; else it is looked up (`diffsketch.flower.plan`).
        budget: What this client may pay at most. Only proven claims can be within one. Without an
            account file, nor a server that keeps its record from run to run, it is for one run.
        account_file: Where to keep the account over restarts; else `diffsketch-account` of the
            node's configuration. Without one, or if it is lost, there is the SuperNode's memory and
            what the server keeps, if there is a client's key.
        importance: What the vector is multiplied by before it is encoded, for means in which
            clients count differently. It must not depend on the data.
        keep_metrics: Names of metrics that are sent as they are. No claim is about them.
        trusted_server: Whether the server is trusted not to look at single messages where a claim
            is under distributed trust. It is then about those who see only what is published.
        sealing: The client's side of a secure sum. Without, a plan with `secure_sum` has
            `SecureSealing()`, which looks up the client's identity and those of the others.
        keep_local: Names of arrays, or what follows the last dot of them, that never leave: the
            app finds them as it left them, while the SuperNode runs. Running statistics must be
            among them. The strategy has the same.

    Raises:
        ArgumentError: An argument is of another type.
    """
    if not (isinstance(plan, Plan) or callable(plan)):
        raise ArgumentError(f"plan must be a Plan or a function, got {type(plan).__name__}")
    check_positive("importance", importance)
    settings = _Settings(
        plan, key, budget, account_file, importance, frozenset(keep_metrics),
        trusted_server, sealing, local_names(keep_local),
    )  # fmt: skip

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.partition(".")[0]
        if kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        own = settings.own(message, context)
        sealing = settings.sealing_of(own.plan)
        answer = None if sealing is None else sealing.answered(message, own)
        if answer is not None:
            return answer
        return _answered(message, context, call_next, settings, train=kind == MessageType.TRAIN)

    return mod


@dataclass(frozen=True)
class _Settings:
    """The arguments of the mod."""

    plan: Plan | PlanOf
    key: SketchKey | None
    budget: Budget | None
    account_file: str | Path | None
    importance: float
    keep_metrics: frozenset[str]
    trusted_server: bool
    sealing: Sealing | None
    keep_local: frozenset[str]

    def own(self, message: Message, context: Context) -> Own:
        """What the client has."""
        plan = self.plan if isinstance(self.plan, Plan) else self.plan(context)
        key = self.key or find_sketch_key(context.node_config)
        return Own(context, plan, key, message.metadata.dst_node_id)

    def sealing_of(self, plan: Plan) -> Sealing | None:
        """The side of a secure sum that the plan needs, if it does."""
        return SecureSealing() if self.sealing is None and plan.secure_sum else self.sealing


def _answered(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    settings: _Settings,
    *,
    train: bool,
) -> Message:
    """The reply to one message, whatever is wrong with it."""
    record = record_in(message.content)
    if record is None:
        # The app may not go on: it would send its arrays as they are.
        reason = "the server does not use SketchStrategy, and this client sends nothing without it"
        return Message(Error(_PRECONDITION, reason), reply_to=message)
    nonce = record.get("nonce")
    session = _Session(message, context, settings)
    try:
        request = Request.of(record)
        session.begin(request)
        if not train:
            return session.evaluated(call_next)
        return session.trained(call_next)
    except Refusal as refusal:
        _LOG.warning("round refused (%s): %s", refusal.code, refusal)
        return session.refused(refusal, nonce if isinstance(nonce, bytes) else b"")
    except WireError as error:
        _LOG.warning("request refused: %s", error)
        return session.refused(
            Refusal("request", str(error)), nonce if isinstance(nonce, bytes) else b""
        )


class _Session:
    """One message: what the request says, and what the client has."""

    def __init__(self, message: Message, context: Context, settings: _Settings) -> None:
        self._message, self._context, self._settings = message, context, settings
        self._member = str(context.node_config.get(_PARTITION, context.node_id))
        self._memory = Memory(b"")
        self._told = message.content.config_records.get(SUM_RECORD)
        self._own = settings.own(message, context)
        self._plan = self._own.plan
        self._sealing = settings.sealing_of(self._plan)
        path = settings.account_file or context.node_config.get("diffsketch-account")
        self._books = Books(
            self._member,
            settings.budget,
            find_client_key(context.node_config),
            AccountFile(str(path)) if path else None,
        )

    def begin(self, request: Request) -> None:
        """Check what the request is about, and have its model."""
        self._request = request
        self._memory = Memory.read(self._context, request.series, self._settings.budget)
        key = self._own.key
        if key is None:
            raise Refusal("key", "this client has no key (DIFFSKETCH_KEY)")
        if request.key_check not in (b"", key.seed(0).fingerprint):
            raise Refusal("key", "the server's key is another one than this client's")
        self._key = key
        base = self._base_model(request)
        local = self._settings.keep_local
        try:
            self._dim = length_of(base, local)
        except ArgumentError as error:
            raise Refusal("model", str(error)) from error
        own = self._plan.text(self._dim) + without_words(local)
        if own != request.plan:
            raise Refusal("plan", f"the server's plan is another one: {request.plan}, not {own}")
        self._method = self._plan.build(self._dim)
        if request.clip or self._method.round_clip is not None:
            # The server may say what it likes: noise is in proportion to the clip, and the claim
            # is the same for each. The plan, which has to agree, says whether the clip moves.
            try:
                self._method = self._method.at_clip(request.clip)
            except ArgumentError as error:
                raise WireError(str(error)) from error
        self._memory = self._caught_up(request, base)
        self._memory.write(self._context)

    def evaluated(self, call_next: ClientAppCallable) -> Message:
        """The app's own reply; what it measures is its own business."""
        reply = call_next(self._for_app(), self._context)
        if reply.has_content():
            reply.content[RECORD] = self._reply().to_record()
        return reply

    def trained(self, call_next: ClientAppCallable) -> Message:
        """The message of what the app has learnt."""
        request, seed = self._request, self._key.seed(self._request.round_index)
        if request.round_index <= self._memory.answered:
            raise Refusal("answered", f"round {request.round_index} was already answered")
        claim = self._plan.claim_for(self._method, self._plan.min_replies, seed)
        sealing = self._sealing
        sums_only = sealing is not None and Trust.DISTRIBUTED in sealing.trusts
        check_trust(claim, trusted_server=self._settings.trusted_server or sums_only)
        if sealing is not None:
            sealing.expect(self._told, request.round_index, own=self._own)
        self._books.check(claim, request, remembered=self._memory.account)
        reply = call_next(self._for_app(), self._context)
        if reply.has_error():
            return reply
        cells = self._encoded(self._vector(reply), seed, claim)
        # Before anything is sent: whatever becomes of the reply, it is paid for.
        account = self._books.charge(claim, request, remembered=self._memory.account)
        self._memory = self._memory.with_answer(request.round_index, account)
        self._memory.write(self._context)
        wire = WireMessage(
            self._method.message_format,
            cells,
            round_index=request.round_index,
            fingerprint=seed.fingerprint,
            sender=self._own.node,
        )
        if sealing is None:
            data = wire.to_bytes()
        else:
            data = sealing.sealed(wire, self._told, own=self._own)
        kept = self._kept_metrics(reply)
        answer = self._reply(data, self._books.statement(account))
        reply.content = RecordDict({RECORD: answer.to_record(), **kept})
        return reply

    def refused(self, refusal: Refusal, nonce: bytes) -> Message:
        """A reply without a message."""
        reply = Reply(
            nonce, self._member, self._memory.version, refusal.code, str(refusal)[:1000], b"", b""
        )
        return Message(RecordDict({RECORD: reply.to_record()}), reply_to=self._message)

    def _reply(self, message: bytes = b"", statement: bytes = b"") -> Reply:
        version = self._memory.version
        return Reply(self._request.nonce, self._member, version, "", "", message, statement)

    def _base_model(self, request: Request) -> ArrayRecord:
        """The dense model of the message, or the last one that this client had."""
        if request.base != NO_MODEL:
            found = self._message.content.array_records.get(request.arrays)
            if found is None:
                raise WireError("the request says that it has a model, and there is none")
            self._base_version = request.base
            return found
        if self._memory.model is None or self._memory.version < request.first - 1:
            raise Refusal("model", "this client has no model to go on from")
        self._base_version = self._memory.version
        return self._memory.model

    def _caught_up(self, request: Request, base: ArrayRecord) -> Memory:
        """With the model of the request's version."""
        if request.version != request.first - 1 + len(request.totals):
            raise WireError("the request's totals do not lead to its version")
        skip = self._base_version - (request.first - 1)
        if not 0 <= skip <= len(request.totals):
            raise Refusal("model", f"version {self._base_version} is not one to go on from")
        model, self._method = follow(
            base,
            request.totals,
            request.rounds,
            method=self._method,
            key=self._key,
            keep_local=self._settings.keep_local,
            skip=skip,
        )
        if request.digest and digest_of(model) != request.digest:
            self._memory = Memory(request.series, account=self._memory.account)
            raise Refusal("model", "the model after catching up is not the server's")
        return self._memory.with_model(model, request.version)

    def _for_app(self) -> Message:
        """The message as the app expects it."""
        content = self._message.content
        records = {name: one for name, one in content.items() if name not in _OURS}
        model = self._memory.model
        if model is not None:
            records[self._request.arrays] = with_own(model, self._memory.own)
        self._message.content = RecordDict(records)
        return self._message

    def _vector(self, reply: Message) -> Tensor:
        """New less old."""
        found = list(reply.content.array_records.values())
        model = self._memory.model
        if len(found) != 1 or model is None:
            raise Refusal("app", f"the app must reply with one ArrayRecord, got {len(found)}")
        try:
            check_layout(found[0], model)
        except DiffSketchError as error:
            raise Refusal("app", str(error)) from error
        ordered = ArrayRecord({name: found[0][name] for name in model})
        local = self._settings.keep_local
        own = {name: one for name, one in ordered.items() if is_local(name, local)}
        if own:
            self._memory = self._memory.with_own(ArrayRecord(own))
        change = flat(ordered, local) - flat(model, local)
        return change if self._settings.importance == 1 else change * self._settings.importance

    def _encoded(self, vector: Tensor, seed: HashSeed, claim: Claim) -> Tensor:
        method, noise = self._method, release_noise(self._method, claim)
        try:
            return method.encode(vector, seed, noise).messages
        except ArgumentError:
            # Either the vector is not finite, or this fails for zeros too and is another error.
            zeros = method.encode(torch.zeros_like(vector), seed, noise).messages
        if not isinstance(claim, ProvenClaim):
            raise Refusal("not-finite", "the vector has NaN or infinite values")
        _LOG.warning("NaN or infinite values in the vector: it counts as zeros, with its noise")
        return zeros

    def _kept_metrics(self, reply: Message) -> dict[str, MetricRecord]:
        found: dict[str, MetricRecord] = {}
        for name, record in reply.content.metric_records.items():
            kept = {key: record[key] for key in record if key in self._settings.keep_metrics}
            if kept:
                found[name] = MetricRecord(kept)
        return found
