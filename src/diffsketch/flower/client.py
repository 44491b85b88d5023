"""The client's side: a Flower mod that sends a method's message instead of arrays."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
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

from diffsketch.errors import ArgumentError, MismatchError, check, check_positive
from diffsketch.flower import records
from diffsketch.flower.accounts import open_account, refusing, sign_statement
from diffsketch.flower.keys import NodeKeys
from diffsketch.flower.plan import CLOSED_DOOR, FlowerPlan
from diffsketch.flower.records import NO_MODEL, RECORD, SUM_RECORD, Refusal, Reply, Request
from diffsketch.flower.secure_client import ClientContext, SecureClientAggregation
from diffsketch.methods import Method
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.methods.gate import release
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.noise import SecureNoise
from diffsketch.silos import RecordGradients, Records
from diffsketch.silos.messages import release_records
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_PRECONDITION = 6  # Flower's ErrorCode.MOD_FAILED_PRECONDITION
_VALUES, _ARRAYS = "diffsketch.memory", ("model", "own", "unsent")


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """Memory of a client: read at the beginning of a message, and written before its reply."""

    series: bytes  # of the strategy, in which rounds and versions are counted
    version: int = NO_MODEL
    model: ArrayRecord | None = None
    answered: int = -1  # the last round that a message was sent for
    account: Account | None = None  # None if nothing is known of it
    own: ArrayRecord | None = None  # arrays that the client keeps to itself, as its app left them
    # With error feedback: its memory, and the last round with the table that counts as sent then.
    unsent: ArrayRecord | None = None

    @classmethod
    def read(cls, context: Context, series: bytes) -> ClientMemory:
        """Read what is known. From another series only the account counts."""
        values: Any = context.state.config_records.get(_VALUES)
        if values is None:
            return cls(series)
        text = str(values["account"])
        account = Account.from_text(text) if text else None
        if account is not None and values["node"] != context.node_id:
            # A copy of another node's memory, which may go on in its series: `resume` must not.
            account.begin_series()
        if values["series"] != series:
            return cls(series, account=account)
        stored = context.state.array_records
        arrays = {name: stored.get(f"diffsketch.{name}") for name in _ARRAYS}
        version, answered = int(values["version"]), int(values["answered"])
        return cls(series, version=version, answered=answered, account=account, **arrays)

    def write(self, context: Context) -> None:
        """Keep it for the next message."""
        values: Any = {n: getattr(self, n) for n in ("series", "version", "answered")}
        account = "" if self.account is None else self.account.to_text()
        values |= {"node": context.node_id, "account": account}
        context.state[_VALUES] = ConfigRecord(values)
        for name in _ARRAYS:
            context.state.pop(f"diffsketch.{name}", None)  # perhaps of another series
            if (arrays := getattr(self, name)) is not None:
                context.state[f"diffsketch.{name}"] = arrays


class SiloReply(Message):
    """Reply of an app under a plan with `unit="example"` or `"person"`: what to learn from.

        gradients = RecordGradients(Net())  # here, so that a model that mixes records is refused

        @app.train()
        def train(message, context):
            return SiloReply(message, gradients, Records(images, labels))

    It loads the model of the message, and computes nothing. `sketch_mod` draws a batch of the
    records in secret, bounds the gradient of each, and sends their noisy sum: the step against it,
    so that a strategy with a learning rate (FedAvgM, FedAdam) goes down the loss.

    Args:
        message: The request, as the app gets it.
        gradients: Of the model. All of its floating-point arrays are trained, but for those that
            `keep_local` names.
        records: All that this silo has.

    Raises:
        ArgumentError: The model of the message is not that of the gradients.
    """

    def __init__(self, message: Message, gradients: RecordGradients, records: Records) -> None:
        super().__init__(RecordDict(), reply_to=message)
        (arrays,) = message.content.array_records.values()
        try:
            gradients.model.load_state_dict(arrays.to_torch_state_dict())
        except RuntimeError as error:
            raise ArgumentError(f"gradients must be of the message's model: {error}") from error
        self.gradients, self.records = gradients, records

    def vectors(self, method: Method, factor: float) -> Iterator[Tensor]:
        """Draw a batch now, and compute its steps in pieces; errors show in a log only."""
        try:
            drawn = self.records.drawn(method, SecureNoise())
            for piece in self.records.vectors(self.gradients, drawn):
                yield piece.mul_(-factor)
        except Exception as error:
            _LOG.exception("the batch has failed (%s): it counts as zeros from here on", error)


@dataclass(frozen=True, eq=False)
class sketch_mod:  # noqa: N801 - written like Flower's own mods, which are functions
    """Mod for `ClientApp(mods=[sketch_mod(plan)])`: the app trains as before.

    It gives the app the model where it expects it, takes the arrays of the app's reply, and sends
    the method's message of their difference: new less old, as one float32 vector. The arrays
    themselves never leave. With `none` and `sketch`, which promise no privacy, everything else
    passes: metrics, evaluation, errors of the app; and clients count by their examples if the
    strategy says so.

    *With other methods* nothing leaves but the message, with its noise, and the plan's `metrics`,
    with theirs. All clients count alike, as a weight by the number of examples would tell it.
    Evaluation and replies to messages of other kinds are refused and other metrics dropped, unless
    the plan opens the door (`FlowerPlan.open_doors`). Where the claim is proven, or was before a
    door was opened, an app that raises, or replies with an error, with nothing, with arrays of
    another shape or with values that are not finite counts as zeros, with noise, like any other: to
    sit the round out would tell about the data. Its error is in the client's own log.

    *Records.* With a plan whose claim is about records, the app replies with `SiloReply`, and the
    mod computes the message. An app that fails has an empty batch, with noise like any other.

    *Its own account.* A client pays for every message in an account of its own
    (`diffsketch.flower.accounts`), and sends nothing that its budget does not allow. It answers a
    round once, and only for the plan that it has itself.

    Guarantees (`tests/flower/test_client.py`): requests of another version, plan, key or round are
    refused and say why; the budget holds against a server that forgets, over restarts; with error
    feedback nothing is lost, whichever rounds count. `tests/flower/test_non_interference.py`: under
    a proven claim all that a server sees of a client, but for noised cells and the time that it
    takes, is the same whatever its data are, and whatever the server asks.

    Args:
        plan: The method; or a function that makes it from the context, for settings in the run's
            configuration. (Those come from the server: then the client agrees to any.)
        key: The clients' common key; else it is looked up (`NodeKeys`).
        budget: Most that this client may spend. Only proven claims can be within one. Without an
            account file, nor a server that keeps its record from run to run, it is for one run.
        account_file: File of the account, which keeps it over restarts; else `diffsketch-account`
            of the node's configuration. Without one, or if it is lost, there is the SuperNode's
            memory and what the server keeps, if there is a client's key.
        importance: Factor of the vector before it is encoded, for means in which clients count
            differently. It must not depend on the data.
        trusted_server: Whether the server is trusted not to look at single messages where a claim
            is under distributed trust. It is then about those who see only what is published.
        aggregation: The client's side of a secure sum. Without, a plan with `secure_sum` has
            `SecureClientAggregation()`, which looks up the client's identity and the others'.
        keep_local: Names of arrays, or what follows the last dot of them, that never leave: the
            app finds them as it left them, while the SuperNode runs. Running statistics must be
            among them. The strategy has the same.
        error_feedback: Keep what messages cannot carry, and send it later (`ErrorFeedback`), while
            the SuperNode runs. For `sketch`, `sketch-gaussian` and `sketch-skellam`.

    Raises:
        ArgumentError: An argument is of another type.
    """

    plan: FlowerPlan | Callable[[Context], FlowerPlan]
    _: KW_ONLY
    key: SketchKey | None = None
    budget: Budget | None = None
    account_file: str | Path | None = None
    importance: float = 1.0
    trusted_server: bool = False
    aggregation: SecureClientAggregation | None = None
    keep_local: Collection[str] = ()
    error_feedback: bool = False

    def __post_init__(self) -> None:
        usable = isinstance(self.plan, FlowerPlan) or callable(self.plan)
        check(usable, "plan", "be a FlowerPlan or a function", self.plan)
        check_positive("importance", self.importance)
        object.__setattr__(self, "keep_local", records.local_names(self.keep_local))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer a message, as Flower calls mods."""
        kind = message.metadata.message_type.partition(".")[0]
        session = _Session(message, context, self)
        if kind in (MessageType.TRAIN, MessageType.EVALUATE):
            return session.answer(call_next, kind == MessageType.TRAIN)
        if session.plan.opens("queries"):
            return call_next(message, context)
        reason = (
            f"messages of the kind {kind!r} do not reach the app: {CLOSED_DOOR.format('queries')}"
        )
        return Message(Error(_PRECONDITION, reason), reply_to=message)


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Result of an app's training: zeros, where it has failed."""

    vector: Tensor  # to be sent, unless the claim is about records
    weight: int = 0  # by which it counts; 0 if clients count alike
    metrics: Mapping[str, object] = field(default_factory=dict)  # all that the app reports
    kept: Mapping[str, MetricRecord] = field(default_factory=dict)  # to be sent as they are
    records: Iterable[Tensor] = ()  # vectors of a batch of them, in pieces


class _Session:
    """A message of the server, and the client's side of it."""

    def __init__(self, message: Message, context: Context, options: sketch_mod) -> None:
        self._message, self._context, self._options = message, context, options
        self.plan = options.plan if isinstance(options.plan, FlowerPlan) else options.plan(context)
        keys = NodeKeys(context.node_config, context.run_id)
        key = options.key or keys.sketch
        self._client = ClientContext(context, self.plan, key, message.metadata.dst_node_id)
        looked_up = SecureClientAggregation() if self.plan.secure_sum else None
        self._aggregation = options.aggregation or looked_up
        self._member = str(context.node_config.get("partition-id", context.node_id))
        self._client_key = keys.client
        self._memory = ClientMemory(b"")  # until the request is found to be of the client's plan

    def answer(self, call_next: ClientAppCallable, train: bool) -> Message:
        """Reply to the message, whatever is wrong with it."""
        aggregation = self._aggregation
        if aggregation and (answer := aggregation.answer(self._message, self._client)):
            return answer
        record = self._message.content.config_records.get(RECORD)
        if record is None:
            # The app may not go on: it would send its arrays as they are.
            reason = "the server does not use SketchStrategy, and this client sends nothing without"
            return Message(Error(_PRECONDITION, reason), reply_to=self._message)
        try:
            if not train and not self.plan.opens("evaluation"):
                raise Refusal("evaluation", CLOSED_DOOR.format("evaluation"))
            self._begin(Request.of(record))
            return self._trained(call_next) if train else self._evaluated(call_next)
        except (Refusal, WireError) as error:
            code = error.code if isinstance(error, Refusal) else "request"
            _LOG.warning("round refused (%s): %s", code, error)
            nonce = record.get("nonce")
            reply = Reply(
                nonce if isinstance(nonce, bytes) else b"", self._member, self._memory.version,
                code, str(error)[:1000],
            )  # fmt: skip
            return Message(RecordDict({RECORD: reply.to_record()}), reply_to=self._message)
        finally:  # Flower hands it to the next message with the reply, or not at all
            if self._memory.model is not None:
                self._memory.write(self._context)

    def _begin(self, request: Request) -> None:
        """Check the request against the client's own plan and key, and catch up with the model."""
        self._request, client, local = request, self._client, self._options.keep_local
        memory = ClientMemory.read(self._context, request.series)
        key = client.require_key()
        if request.key_check not in (b"", key.seed(0).fingerprint):
            raise Refusal("key", "the server's key is another one than this client's")
        self._seed = key.seed(request.round_index)
        base, version = self._base_model(memory)
        try:
            dim = records.length_of(base, local)
        except ArgumentError as error:
            raise Refusal("model", str(error)) from error
        client.check_plan(request.plan, dim, local)
        method = self.plan.build(dim)
        if request.clip or method.round_clip is not None:
            # The server may say any clip: noise is in proportion to it, and the claim is the same
            # for each. The plan, which has to agree, says whether the clip moves.
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
            raise Refusal("model", "the model after catching up is not the server's")
        self._memory = replace(memory, model=model, version=request.version)

    def _base_model(self, memory: ClientMemory) -> tuple[ArrayRecord, int]:
        """The dense model of the message, or the last one that this client had; its version."""
        request = self._request
        if request.base != NO_MODEL:
            sent = self._message.content.array_records.get(request.arrays)
            if sent is None:
                raise WireError("the request says that it has a model, and there is none")
            return sent, request.base
        if memory.model is None or memory.version < request.first - 1:
            raise Refusal("model", "this client has no model to go on from")
        return memory.model, memory.version

    def _evaluated(self, call_next: ClientAppCallable) -> Message:
        """Let the app evaluate, and pass its reply on: no claim is about what it measures."""
        reply = call_next(self._for_app(), self._context)
        if reply.has_content():
            version = self._memory.version
            reply.content[RECORD] = Reply(self._request.nonce, self._member, version).to_record()
        return reply

    def _trained(self, call_next: ClientAppCallable) -> Message:
        """Let the app train, and send the message of what it has learnt.

        Whatever is refused before the app is called follows from the request, the plan and the
        account. After it, where the claim is proven, nothing depends on what the app has done.
        """
        request, aggregation, options = self._request, self._aggregation, self._options
        if request.round_index <= self._memory.answered:
            raise Refusal("answered", f"round {request.round_index} was already answered")
        claim = self.plan.claim_for(self._method, self.plan.min_replies, self._seed)
        if request.weight and not self.plan.is_bare:
            raise Refusal("weight", "a weight would tell how many examples this client has")
        feedback, mask = self._feedback(claim) if options.error_feedback else None, None
        if records.needs_trust(claim) and not (options.trusted_server or aggregation):
            raise Refusal("trust", records.NEEDS_TRUST)
        if aggregation is not None:
            told = self._message.content.config_records.get(SUM_RECORD)
            mask = aggregation.masking(
                told, request.round_index, run=request.nonce, client=self._client
            )
        path = options.account_file or self._context.node_config.get("diffsketch-account")
        account = open_account(
            claim, request, member=self._member, remembered=self._memory.account,
            key=self._client_key, path=Path(str(path)) if path else None, budget=options.budget,
        )  # fmt: skip
        # Also if this round is refused: the server may not show again what the account has met.
        self._memory = replace(self._memory, account=account)
        with refusing():
            account.check(claim)
        outcome = self._outcome(call_next, claim.noise_is_proven)
        if isinstance(outcome, Message):
            return outcome
        with refusing():  # as another process may have charged the file meanwhile
            cells = self._released(outcome, claim, feedback, account)
        self._memory = replace(self._memory, answered=request.round_index)
        wire, metrics = self._wire(self._method, cells), b""
        if self.plan.metric_method is not None:
            metrics = self._noised_metrics(outcome, self.plan.metric_method, claim)
        reply = Reply(
            request.nonce, self._member, self._memory.version, weight=outcome.weight,
            message=wire.to_bytes() if mask is None else mask(wire), metrics=metrics,
            statement=sign_statement(account, self._client_key) if self._client_key else b"",
        )  # fmt: skip
        # A reply of its own: nothing of the app's passes but metrics, by an open door.
        content = RecordDict({RECORD: reply.to_record(), **outcome.kept})
        return Message(content, reply_to=self._message)

    def _outcome(self, call_next: ClientAppCallable, proven: bool) -> _Outcome | Message:
        """Call the app; where something is proven, whatever it does counts as an outcome."""
        try:
            reply = call_next(self._for_app(), self._context)
            if reply.has_error() and not proven:
                return reply
            if self._method.takes_records:
                return self._checked_silo(reply)
            vector, reported = self._vector(reply), reply.content.metric_records
            metrics = {k: value for record in reported.values() for k, value in record.items()}
            kept = dict(reported) if self.plan.opens("metrics") else {}
            return _Outcome(vector, self._weight([*reported.values()]), metrics, kept)
        except BaseException as error:  # an interrupt too: whoever runs the node ends the SuperNode
            if not proven:
                raise
            _LOG.exception("the app has failed (%s): its vector counts as zeros", error)
            return _Outcome(torch.zeros(self._method.dim))

    def _checked_silo(self, reply: Message) -> _Outcome:
        """Raise unless the app replies with records, and gradients of all that is sent."""
        if not isinstance(reply, SiloReply):
            raise Refusal("app", f"the app must reply with SiloReply, got {type(reply).__name__}")
        trained = {
            name: p.numel() for name, p in reply.gradients.model.named_parameters()
            if p.requires_grad
        }  # fmt: skip
        model, local = self._memory.model, self._options.keep_local
        if model is None or [*trained.items()] != records.sizes_of(model, local):
            raise Refusal("app", f"the model must train all arrays but keep_local, got {trained}")
        steps = reply.vectors(self._method, self._options.importance)
        return _Outcome(torch.zeros(0), records=steps)

    def _for_app(self) -> Message:
        """The message as the app expects it, with the client's own arrays in the model."""
        content, memory = self._message.content, self._memory
        parts = {name: part for name, part in content.items() if name not in (RECORD, SUM_RECORD)}
        parts[self._request.arrays] = ArrayRecord({**(memory.model or {}), **(memory.own or {})})
        # With metadata of its own: what the app does to them must not be in the reply.
        return Message(content=RecordDict(parts), metadata=copy.copy(self._message.metadata))

    def _vector(self, reply: Message) -> Tensor:
        """New less old. Arrays that the client keeps to itself are remembered."""
        sent, local = list(reply.content.array_records.values()), self._options.keep_local
        model = self._memory.model
        if len(sent) != 1 or model is None:
            raise Refusal("app", f"the app must reply with one ArrayRecord, got {len(sent)}")
        try:
            records.check_layout(sent[0], model)
        except MismatchError as error:
            raise Refusal("app", str(error)) from error
        ordered = ArrayRecord({name: sent[0][name] for name in model})
        kept = {name: array for name, array in ordered.items() if records.is_local(name, local)}
        if kept:
            self._memory = replace(self._memory, own=ArrayRecord(kept))
        new, old = records.flat(ordered, local), records.flat(model, local)
        if new.shape != old.shape:
            raise Refusal("app", f"the app must reply with {len(old)} floating-point values")
        change = new - old
        return change if self._options.importance == 1 else change * self._options.importance

    def _weight(self, reported: Sequence[MetricRecord]) -> int:
        """Number of examples that the app reports; 0 if clients count alike."""
        name = self._request.weight
        if not name:
            return 0
        values = [record[name] for record in reported if name in record]
        value, most = values[0] if len(values) == 1 else None, records.MOST_WEIGHT
        if not isinstance(value, int | float) or not 1 <= value <= most or value % 1:
            raise Refusal(
                "app", f"the metric {name!r} must be a whole number in 1..2**40, by which this "
                f"client counts, got {value}",
            )  # fmt: skip
        return int(value)

    def _released(
        self, outcome: _Outcome, claim: Claim, feedback: ErrorFeedback | None, account: Account
    ) -> Tensor:
        """Charge, and encode the vector with its noise."""
        method, seed, charge = self._method, self._seed, partial(account.charge, claim)
        if method.takes_records:
            return release_records(outcome.records, method, seed, claim, charge=charge)
        vector = outcome.vector * (outcome.weight or 1)
        mixed = vector if feedback is None else feedback.mixed(vector)
        released = release(mixed[None], method, seed, claim, charge=charge)
        if released.encoded is None:
            raise Refusal("not-finite", "the vector has NaN or infinite values")
        cells = released.encoded.messages[0]
        if not bool(released.kept):
            _LOG.warning("NaN or infinite values in the vector: it counts as zeros, with its noise")
        elif feedback is not None:
            table = feedback.keep(vector, mixed, cells, seed, method)
            number = torch.tensor(self._request.round_index)
            self._keep_unsent(memory=feedback.memory, table=table, round=number)
        return cells

    def _noised_metrics(self, outcome: _Outcome, method: Method, claim: Claim) -> bytes:
        """Message of the plan's metrics, which the round's charge has paid for."""
        values = self.plan.scaled_metrics(outcome.metrics)[None]
        encoded = release(values, method, self._seed, claim, charge=None).encoded
        assert encoded is not None  # noqa: S101 (for the type checker: values are finite)
        return self._wire(method, encoded.messages[0]).to_bytes()

    def _wire(self, method: Method, cells: Tensor) -> WireMessage:
        return WireMessage(
            method.message_format, cells, round_index=self._request.round_index,
            fingerprint=self._seed.fingerprint, sender=self._client.node,
        )  # fmt: skip

    def _feedback(self, claim: Claim) -> ErrorFeedback:
        """Restore the memory of what was not sent, with the last round's if that does not count."""
        try:
            feedback = ErrorFeedback(self._method, claim)
        except ArgumentError as error:
            raise Refusal("feedback", str(error)) from error
        # A server may send a model of another length, for which nothing can be left over.
        kept = self._memory.unsent
        if kept is not None and tuple(kept["memory"].shape) == (self._method.dim,):
            unsent = {n: torch.from_numpy(a.numpy().copy()) for n, a in kept.items()}
            feedback.memory = unsent["memory"]
            last = int(unsent.get("round", self._request.counted))
            if last != self._request.counted:
                feedback.restore(unsent["table"], self._client.require_key().seed(last))
            self._keep_unsent(memory=feedback.memory)
        return feedback

    def _keep_unsent(self, **parts: Tensor | None) -> None:
        arrays = {name: Array(part.numpy()) for name, part in parts.items() if part is not None}
        self._memory = replace(self._memory, unsent=ArrayRecord(arrays))
