"""Local steps: ranks train by themselves, and every so often exchange what their weights became.

    local = LocalSteps(model, every=15, seed=7)
    for inputs, labels in batches:
        loss_of(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()
    local.finish()

The federated averaging of the paper over torch.distributed, with an outer Nesterov step, which the
field calls DiLoCo.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diffsketch.ddp.group import GroupMean
from diffsketch.ddp.hook import check_wrapping, keeps_own_gradients, key_from, method_from
from diffsketch.ddp.store import RunOver, StoreGroup, StoreMean
from diffsketch.ddp.transport import (
    LOGGER,
    Caught,
    GroupTransport,
    SavedByState,
    Traffic,
    Transport,
    check_state,
    device_of,
    fail_together,
    log_bytes,
    transport_of,
)
from diffsketch.ddp.weights import (
    CommonWeights,
    LocalWeights,
    bits_digest,
    check_disjoint,
    check_shapes,
)
from diffsketch.errors import ArgumentError, MismatchError, check, check_positive, check_whole
from diffsketch.methods.base import Method, is_finite, settings_of
from diffsketch.methods.gate import NonFiniteUpdate
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Claim, Epsilon, NoClaim
from diffsketch.sketch.hashing import HashSeed, SketchKey

COMPRESSION = 32.0
"""Compression of an exchange if neither it nor the sizes of a table are given."""

# Status of an exchange that the ranks of a machine tell each other; the largest number counts.
_NOTHING, _MEAN, _NOT_FINITE, _FAILED = range(4)
_KEPT = "at", "level", "sent", "mean_change"  # of a fragment, in a state


@dataclass(eq=False)
class _Fragment:
    """A part of the weights that is exchanged by itself, and its exchange that is under way."""

    index: int
    offset: int  # it is sent in steps that leave this remainder
    mean: GroupMean | None  # None where another rank of the machine sends
    at: int | None = None  # step in which the exchange under way was begun
    sent: Tensor | None = None  # this rank's change of the weights
    wait: Callable[[], Tensor] | None = None
    mean_change: Tensor | None = None
    failure: Exception | None = None
    level: int | None = None  # step since which nothing but its last exchange has changed it

    def state_dict(self) -> dict[str, Any]:
        """State of the exchange, which must have been waited for."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return {name: deepcopy(value) for name, value in kept.items() if value is not None}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Take over a state."""
        self.wait = self.failure = None
        for name in _KEPT:
            value = deepcopy(state.get(name))
            setattr(self, name, value.to(device) if isinstance(value, Tensor) else value)


class LocalSteps(SavedByState):
    """Exchange of weights every few steps, beside any training loop and any optimizer.

    All ranks make it at the same point, call `step` after every `optimizer.step`, and `finish` when
    they are done. Every `every` steps, with `x` the weights that all ranks began with, `w` those of
    a rank now and `m` the momentum, all of them the same on all ranks,

        d = mean of (x - w) over the ranks         by the method, through `GroupMean`
        m = outer_momentum * m + d
        x = x - outer_lr * (d + outer_momentum * m)

    and every rank goes on from `x`. Its optimizer keeps its own state.

    *Bytes.* An exchange sends and receives a `compression`-th of what a ring sends for a mean of
    the weights in float32: against gradients in every step, 15 steps and a compression of 32 are
    480 times less, both ways, at any number of ranks (`bytes_per_step`).

    *Machines of several ranks.* The model may be in `DistributedDataParallel` over the ranks of a
    machine (`process_group=`): then the first of them exchanges, and tells the others. Or it may
    be sharded over them with `fully_shard`: then each rank exchanges its own shards with the ranks
    that hold the same ones, and nowhere is the whole vector. Give the ranks between machines as
    `group`; with a mesh of ("between", "inside"), that is `mesh["between"].get_group()`. Where a
    framework wraps the model in a DDP over all ranks, register its hook `own_gradients` first.

    *First weights.* Those of rank 0 that are trained are sent to all; frozen ones must be the same
    already, and so must all where something is claimed or ranks meet in a store. *Buffers*, such as
    the means of BatchNorm, are never sent: each rank keeps its own, also when it is done.

    *Fragments.* With `fragments` of `p`, the weights are cut into `p` parts of the same length,
    and one is exchanged every `every / p` steps, so that the link is used evenly. With a `delay`,
    an exchange runs while the next steps are made, and is applied `delay` steps later: the rank
    keeps the steps that it made meanwhile, `w = w + x_new - w_sent`, and sends them the next time.
    What is computed does not depend on when messages arrive. The first exchange of a fragment
    waits, where ranks agree on the limit of cells of few bits.

    *Privacy.* The unit of a client's claim is a silo: all that its rank, or its machine with DDP,
    has seen. The clip and the noise are of the difference of weights, whatever the steps between
    did. Refused where that is not all that is sent, or a silo would send more than one message:
    DDP without `same_weights` or SyncBatchNorm between silos, shards, fragments. A model that
    others average behind this object's back cannot be seen here. An error of your own code ends
    this rank's process, which other silos see, and it may depend on data: use `guard`.

    *Ranks that are late.* With a `StoreGroup` as `group`, an outer step needs only `min_ranks` of
    them: the mean is over those that are there in time. One that was left out takes over the
    weights of the others, loses its own steps of that time, and from then on sends when the others
    do, after fewer steps if it must.

    *Weights that are not finite*, where nothing is claimed, make all ranks skip the outer step and
    go back to `x`, with a warning.

    Guarantees (`tests/ddp/test_local_steps.py`): without compression the steps above to rounding;
    after an exchange all ranks have the same bits, or all raise; the same results with shards, with
    DDP inside and without, but for where tables are cut; a state that is loaded continues to the
    same bits, also in the middle of an exchange; a rank that was left out, or comes back with an
    old state, has the bits of the others after its next exchange.

    Args:
        model: A module, whole, in DDP over a machine, or sharded over it by `fully_shard`. What
            requires no gradient now is left alone.
        every: Steps from one exchange to the next.
        method: A name of `diffsketch.methods.METHODS`, or a method for as many numbers as this
            rank holds.
        seed: A number that the hashes follow from; the same on all ranks, and no secret.
        key: Or a secret that they follow from.
        compression: Bytes of a mean of the weights in float32 over those of an exchange, for
            methods with tables; in place of `cols`, with one row unless `rows` is given. 32 if not
            given.
        group: The ranks that exchange; all of them if not given. Or a `StoreGroup`.
        outer_lr: Of the outer step.
        outer_momentum: Of the outer step; 0 for none.
        fragments: Parts of the weights that are exchanged one after another.
        delay: Steps from the beginning of an exchange to its application.
        error_feedback: As in `GroupMean`. If not given, for the bare sketch.
        immediate: As in `GroupMean`.
        budget: As in `GroupMean`.
        trusted_group: As in `GroupMean`.
        account_file: As in `GroupMean`.
        **settings: Those of the method.

    Attributes:
        steps: Steps that were made.

    Raises:
        ArgumentError: Settings are missing, unknown or do not go together, or the model is sharded
            in another way, or averaged over the same ranks by something else.
        MismatchError: Ranks have different ones, or another rank fails. All ranks raise.
    """

    def __init__(
        self, model: nn.Module, *, every: int, method: str | Method = "sketch",
        seed: int | None = None, key: SketchKey | None = None, compression: float | None = None,
        group: dist.ProcessGroup | StoreGroup | None = None, outer_lr: float = 0.7,
        outer_momentum: float = 0.6, fragments: int = 1, delay: int = 0,
        error_feedback: bool | None = None, immediate: float | None = None,
        budget: Budget | None = None, trusted_group: bool = False,
        account_file: str | Path | None = None, **settings: object,
    ) -> None:  # fmt: skip
        self.steps, self._since, self._behind, self._finished = 0, 0, False, False
        self._loaded, self._warned = False, False
        self._every, self._delay = every, delay
        # Compared with other ranks, and with the states that are loaded.
        self._compared = {
            "every": repr(every), "delay": repr(delay), "fragments": repr(fragments),
            "outer_lr": repr(outer_lr), "outer_momentum": repr(outer_momentum),
        }  # fmt: skip
        transport: Any = None
        self._in_step = True  # whether all ranks make the same exchanges: not so with a store
        self._inside: list[dist.ProcessGroup] = []
        self._sends = True
        means: list[GroupMean] = []
        with Caught() as caught:
            transport = transport_of(group)
            self._in_step = transport.in_step
            if error_feedback is None:
                error_feedback = "sketch" in (method, getattr(method, "name", None))
            self._weights = LocalWeights(model, alone=keeps_own_gradients(model))
            self._inside = self._weights.inside
            self._sends = not self._weights.replicas or dist.get_rank(self._inside[0]) == 0
            check_whole("every", every, least=1)
            check_whole("fragments", fragments, least=1, most=min(every, self._weights.dim))
            check_whole("delay", delay, least=0, most=every - 1)
            check_positive("outer_lr", outer_lr)
            check(outer_lr < 100, "outer_lr", "be in (0, 100)", outer_lr)
            in_range = isinstance(outer_momentum, int | float) and 0 <= outer_momentum < 1
            check(in_range, "outer_momentum", "be in [0, 1)", outer_momentum)
            secret = key_from(seed, key)
            dims = [pieces[-1].places.stop for pieces in self._weights.pieces(fragments)]
            methods: list[Method] = []
            if self._sends:
                needed = settings_of(method).keys() - settings if isinstance(method, str) else ()
                if compression is None and "cols" in needed:
                    compression = COMPRESSION
                for dim in dims:  # here, so that warnings are about the user's line
                    methods.append(  # noqa: PERF401
                        method_from(method, settings, compression, dim=dim, to=transport)
                    )
                self._check_exchange(model, methods, dims, secret.seed(0))
        if self._inside and isinstance(transport, GroupTransport) and transport.rank >= 0:
            # All ranks find this without being told: no collective would go well.
            check_disjoint(transport.group, self._inside)
        failure = caught.error
        if self._sends:
            with Caught() as caught:
                if failure is not None:  # ranks with another group may still be told by the default
                    fail_together(None if transport is None else group, failure)
                options: dict[str, Any] = {
                    "error_feedback": error_feedback, "immediate": immediate, "budget": budget,
                    "trusted_group": trusted_group, "account_file": account_file,
                    "group": transport,  # the same for all fragments, whose rounds are in order
                }  # fmt: skip
                make: Any = GroupMean if self._in_step else StoreMean
                for index, fragment_method in enumerate(methods):
                    # Hashes of two fragments must have nothing in common.
                    own_key = secret if fragments == 1 else _fragment_key(secret, index)
                    means.append(make(fragment_method, key=own_key, **options))
                # All that has to be the same, besides what the means compare.
                compared = {
                    **self._compared,
                    "layout of the parameters": self._weights.layout,
                    "frozen parameters": self._weights.frozen,
                }
                if not self._sends_first_weights(means[0]):
                    compared["first weights"] = f"{bits_digest(self._weights.parts):016x}"
                means[0].agree(compared)
        self._transport: Transport = transport
        self._status_of_all(_NOTHING, caught.error, "start")
        self._share_first_weights(means)
        self._common = CommonWeights(
            self._weights, fragments=fragments, lr=outer_lr, momentum=outer_momentum
        )
        self._fragments = [
            # Spread evenly over `every` steps; the last fragment is due when they are done.
            _Fragment(
                index, offset=(index + 1) * every // fragments % every,
                mean=means[index] if means else None,
            )
            for index in range(fragments)
        ]  # fmt: skip
        if means:
            shares = [transport.share(part.method) * part.method.dim for part in means]
            log_bytes(self.bytes_per_step, every * sum(dims) / sum(shares))

    @property
    def bytes_per_step(self) -> Traffic:
        """Bytes that this rank sends and receives, for each step of its optimizer.

        0 where another rank of the machine sends.
        """
        rounds = [mean.bytes_per_round for mean in self.means]
        return Traffic(sum(traffic.sent for traffic in rounds) / self._every,
                       sum(traffic.received for traffic in rounds) / self._every)  # fmt: skip

    @property
    def means(self) -> list[GroupMean]:
        """The means by which fragments are exchanged; none where another rank sends."""
        return [fragment.mean for fragment in self._fragments if fragment.mean is not None]

    @property
    def claim(self) -> Claim:
        """Claim of all exchanges so far. Its unit, a client, is a silo with all its data."""
        return self._sender().claim

    def epsilon(self, delta: float) -> Epsilon:
        """Cost of the exchanges for each silo, with the basis of that number."""
        return self._sender().epsilon(delta)

    def step(self) -> None:
        """Count a step of the optimizer, and exchange what is due. After each `optimizer.step`.

        Raises:
            BudgetExceeded: The exchange would cost too much. Nothing was sent.
            MismatchError: Ranks disagree, or another one failed. All ranks raise.
        """
        if self._finished:
            raise ArgumentError(
                f"step must not follow finish with a StoreGroup, got step {self.steps + 1}: make "
                "another LocalSteps over an empty store"
            )
        self.steps += 1
        self._since += 1
        with torch.no_grad():
            if not self._in_step:
                mean: Any = self._fragments[0].mean
                self._apply_rounds(self._rounds(due=self._since >= self._every))
                if mean is not None and mean.over and not self._warned:
                    self._warned = True
                    warnings.warn(
                        f"step {self.steps}: the run is over, as enough ranks have finished; this "
                        "rank's steps are sent to nobody, and finish() takes them back",
                        stacklevel=2,
                    )
                return
            for fragment in self._fragments:
                if fragment.at is not None and fragment.at + self._delay == self.steps:
                    self._apply(fragment)
                elif fragment.at is not None and fragment.at + self._delay // 2 == self.steps:
                    self._transport.advance()  # all ranks in the same step
            for fragment in self._fragments:
                if self.steps % self._every == fragment.offset:
                    self._begin(fragment)
                    if not self._delay:
                        self._apply(fragment)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Make one step, and let no error in it tell other silos of this one's data.

            with local.guard():
                loss_of(model(inputs), labels).backward()
                optimizer.step()

        When the block ends, `step` is called. An error in the block, under a proven claim, goes to
        this rank's log (`diffsketch.ddp`), and the step counts like any other: the next exchange
        sends what the weights are then, clipped and with noise. Under other claims it is raised,
        and with the next exchange by all ranks. What is no `Exception`, such as an interrupt, ends
        the process, which others see. So does any error where a silo has several ranks, as they
        wait for each other.

        Guarantees (`tests/ddp/test_non_interference.py`): all that is sent beside noised cells is
        the same, whatever the block does.
        """
        model: Any = self._weights.model
        try:
            # An error in a backward pass would leave DDP in the middle of a step.
            with model.no_sync() if keeps_own_gradients(model) else nullcontext():
                yield
        except Exception:
            coming = min(self._fragments, key=self._steps_to).mean
            if coming is None:  # another rank of the silo sends
                raise
            if not coming.proven:
                with coming.failing():
                    raise
            LOGGER.exception("step %d counts with the weights as they are", self.steps + 1)
        self.step()

    def _steps_to(self, fragment: _Fragment) -> int:
        """Steps from the next one to the one in which a fragment is sent."""
        return (fragment.offset - self.steps - 1) % self._every

    def finish(self) -> None:
        """Exchange all weights now, so that all ranks have the same. They call it together.

        What was exchanged in this very step is left as it is; so a second call changes nothing.
        Training may go on after it, but not with a `StoreGroup`: there, the run is over for all
        when `min_ranks` have finished, and what the others have not sent by then is lost.
        """
        if self._finished:
            return
        mean: Any = self._fragments[0].mean
        with torch.no_grad():
            if not self._in_step:
                self._apply_rounds(self._rounds(due=True, last=True))
                self._apply_rounds(iter(()) if mean is None else mean.rest())
                self._common.move(0, None)
                self._finished = True
                return
            for fragment in self._fragments:
                if fragment.at is not None:
                    self._apply(fragment)
            for fragment in self._fragments:
                if fragment.level == self.steps:
                    self._meet(fragment)
                else:
                    self._begin(fragment)
                    self._apply(fragment)

    def global_weights(self) -> dict[str, Tensor]:
        """Copies of the weights that all ranks had in common last: this rank's part, by name."""
        return self._common.named()

    def state_dict(self) -> dict[str, Any]:
        """Weights, momentum, error feedback and counters, as tensors, numbers and texts.

        The rank's own weights are in it, as they are between exchanges, and those in common. Every
        rank keeps its own, beside those of the model and of the optimizer. An exchange that is
        under way is waited for, and is applied in its time: call it on all ranks at the same point,
        as long as `delay` is not 0.
        """
        for fragment in self._fragments:
            self._await(fragment)
            if fragment.failure is not None:
                raise fragment.failure
        return {
            "settings": self._settings(),
            "steps": self.steps,
            "since": self._since,
            "own": [part.clone() for part in self._weights.parts],
            "common": self._common.state_dict(),
            "under_way": [fragment.state_dict() for fragment in self._fragments],
            "means": [mean.state_dict() for mean in self.means],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. All ranks must load theirs together.

        The optimizer and the model's buffers must be loaded as well, as they were at that moment,
        before or after. Trained weights are loaded here: making this object has given all ranks
        those of rank 0, or, where something is claimed, they had the same already (the first ones,
        or `global_weights`; those of a rank between exchanges are its own).

        With a `StoreGroup`, a rank loads for itself, and takes over what it has missed since; it
        may load the state of another rank, and then has no error feedback of its own.

        Raises:
            MismatchError: The state belongs to other settings, another model or another rank, or
                another rank cannot load its own. All ranks raise.
        """
        with Caught() as checked:
            self._check_state(state)
        with Caught() as loaded:
            states = state["means"] if checked.error is None else [{}] * len(self.means)
            for mean, of_mean in zip(self.means, states, strict=True):
                mean.load_state_dict(of_mean, failure=checked.error)
        self._status_of_all(_NOTHING, loaded.error or checked.error, "load its state")
        self.steps, self._since = int(state["steps"]), int(state["since"])
        self._common.load_state_dict(state["common"])
        with torch.no_grad():
            for part, value in zip(self._weights.parts, state["own"], strict=True):
                part.copy_(value)
        for fragment, under_way in zip(self._fragments, state["under_way"], strict=True):
            fragment.load_state_dict(under_way, self._weights.device)
        self._behind = self._loaded = True  # the others may be further: a store tells

    def _check_exchange(
        self, model: nn.Module, methods: Sequence[Method], dims: Sequence[int], seed: HashSeed
    ) -> None:
        """Raise unless methods fit, this object alone averages over its group, and claims hold."""
        method, fragments = methods[0], len(methods)
        sharded = bool(self._inside) and not self._weights.replicas
        for fragment_method, dim in zip(methods, dims, strict=True):
            if fragment_method.dim != dim:
                got = fragment_method.dim
                raise MismatchError(f"the method must have dim={dim} for a fragment, got dim={got}")
        if not self._in_step:
            if sharded:
                raise ArgumentError(
                    "a StoreGroup is for whole models: ranks of different shards could leave out "
                    "different machines, and the shards would not belong together"
                )
            check(fragments == 1, "fragments", "be 1 with a StoreGroup", fragments)
            check(self._delay == 0, "delay", "be 0 with a StoreGroup", self._delay)
        if isinstance(method.claim_for(method.most_messages or 1, seed), NoClaim):
            return
        what = f"the claim of method={method.name!r} is about one message of a silo in an exchange"
        check(fragments == 1, "fragments", f"be 1: {what}", fragments)
        if sharded:
            ranks = [dist.get_world_size(group) for group in self._inside]
            raise ArgumentError(f"model must not be sharded: {what}, got shards on {ranks} ranks")
        if keeps_own_gradients(model):
            check_wrapping(model, method.name)
        for module in model.modules():
            if isinstance(module, nn.SyncBatchNorm) and module.process_group not in self._inside:
                raise ArgumentError(
                    f"the claim of method={method.name!r} does not cover all that is sent: "
                    "SyncBatchNorm sends statistics of each rank's batch; give it the "
                    "process_group of the silo, or use layers that look at one example at a time"
                )

    def _sends_first_weights(self, mean: GroupMean) -> bool:
        return isinstance(mean.claim, NoClaim) and self._in_step

    def _share_first_weights(self, means: Sequence[GroupMean]) -> None:
        """Give all ranks the weights of rank 0, unless they were compared."""
        groups: list[Any] = []
        if means and self._sends_first_weights(means[0]):
            groups.append(means[0].group)
        if self._weights.replicas:
            groups += self._inside
        with torch.no_grad():
            for group in groups:
                for part in self._weights.parts:
                    self._broadcast(part, group)

    def _broadcast(self, values: Tensor, group: Any) -> None:
        """Overwrite values by those of the first rank of a group."""
        moved = values.to(device_of(group, values)).contiguous()
        dist.broadcast(moved, 0 if group is None else dist.get_global_rank(group, 0), group=group)
        if moved is not values:
            values.copy_(moved)

    def _begin(self, fragment: _Fragment) -> None:
        """Send the change of a fragment."""
        fragment.at = self.steps
        try:
            fragment.wait = self._send(fragment)
        except Exception as error:  # raised with the result: other ranks of the machine wait
            fragment.failure = error

    def _send(self, fragment: _Fragment) -> Callable[[], Tensor] | None:
        """Send the change of a fragment, and return the function that waits for the mean."""
        mean = fragment.mean
        with nullcontext() if mean is None else mean.failing():  # all that fails at this rank alone
            layout = self._layout_of(fragment)
            self._weights.check_unchanged()
            fragment.sent = self._common.difference(fragment.index)
        if mean is None:
            return None
        # With a delay, the rank's own change is needed again, for the steps made since.
        return mean.begin(fragment.sent, layout=layout, out=None if self._delay else fragment.sent)

    def _layout_of(self, fragment: _Fragment) -> str:
        """Text of what all ranks have in common when they exchange a fragment."""
        step = self.steps if self._in_step else 0
        return f"{self._weights.layout} {step} {self._common.digest(fragment.index):016x}"

    def _await(self, fragment: _Fragment) -> None:
        """Wait for the result of an exchange that is under way."""
        wait, fragment.wait = fragment.wait, None
        if wait is not None:
            try:
                fragment.mean_change = wait()
            except Exception as error:
                fragment.failure = error

    def _apply(self, fragment: _Fragment) -> None:
        """Make the outer step of a fragment whose exchange is due."""
        self._await(fragment)
        failure, fragment.failure = fragment.failure, None
        try:
            status = self._status_of_all(_status(fragment), failure, "exchange its weights")
        except Exception:  # the steps since are sent with the next exchange
            fragment.at = fragment.sent = fragment.mean_change = None
            raise
        self._take(fragment, status)

    def _meet(self, fragment: _Fragment) -> None:
        """Compare steps and weights in common with other ranks that have nothing to send either."""
        with Caught() as caught:
            if fragment.mean is not None:
                like = torch.empty(0, device=self._weights.device)
                fragment.mean.meet(layout=self._layout_of(fragment), like=like)
        self._status_of_all(_NOTHING, caught.error, "finish")

    def _apply_rounds(self, rounds: Iterator[Tensor]) -> None:
        """Make the outer steps of rounds in a store, as the rank that sends finds them."""
        fragment = self._fragments[0]
        while True:
            fragment.mean_change = None
            with Caught() as caught:
                if self._sends:
                    fragment.mean_change = next(rounds, None)
            status = self._status_of_all(_status(fragment), caught.error, "exchange its weights")
            if status == _NOTHING:
                return
            self._take(fragment, status)

    def _rounds(self, *, due: bool, last: bool = False) -> Iterator[Tensor]:
        """Means of the rounds that this rank has to apply now, each after the one before it."""
        fragment, late = self._fragments[0], False
        mean: Any = fragment.mean
        # A rank that was left out sends as soon as others do, or it would be late again.
        early = not due and self._behind and mean.awaited
        if not (due or early):
            return
        if not self._loaded and mean.round_index == 0 and mean.ended:
            raise MismatchError(
                "the store must not have a run that is over, got one with "
                f"{mean.store.rounds_decided} rounds: give a new run a prefix of its own "
                "(torch.distributed.PrefixStore), or load the state of a rank of the old one"
            )
        if last and fragment.level == self.steps and not mean.awaited:
            return  # nothing has changed since the last round, and nobody waits for a message
        while (change := mean.missed()) is not None:
            late = True
            yield change
        # After rounds that were missed, this rank's steps began from old weights and are lost; at
        # the end it still takes part in a round that waits, so that others need not time out.
        if mean.over or (late and not (last and mean.awaited)):
            self._behind = True
            return
        self._behind = early
        wait: Any = self._send(fragment)
        try:
            change = wait()
        except RunOver:  # the weights are those of the last round
            return
        self._behind = early or not mean.present
        yield change

    def _take(self, fragment: _Fragment, status: int) -> None:
        """Make the outer step with the mean, or skip it, on all ranks of the machine."""
        change, sent, at = fragment.mean_change, fragment.sent, fragment.at
        fragment.mean_change = fragment.sent = fragment.at = None
        fragment.level = self.steps if at in (None, self.steps) else None
        self._since = 0
        if status == _NOT_FINITE:
            warnings.warn(
                f"step {self.steps}: the outer step is skipped, and all ranks go back to the "
                "weights that they had in common, as those of one are NaN or infinite",
                NonFiniteUpdate,
                stacklevel=4,
            )
            self._common.move(fragment.index, None)
            return
        # Ranks of the machine that did not send get the mean from the one that did.
        change = self._common.new_vector(fragment.index) if change is None else change
        change = change.to(self._weights.device)  # from a store it comes to the processor
        if self._weights.replicas:
            self._broadcast(change, self._inside[0])
        kept = None  # a change that is not finite would make the steps since it not finite
        if at is not None and at < self.steps and sent is not None and is_finite(sent):
            kept = sent
        self._common.move(fragment.index, change, kept)

    def _status_of_all(self, status: int, failure: Exception | None, doing: str) -> int:
        """The gravest status of the ranks of this machine; all of them raise, or none does."""
        status = status if failure is None else _FAILED
        for group in self._inside:
            device = device_of(group, torch.empty(0, device=self._weights.device))
            # All dimensions of a mesh, one after the other: then every rank knows of every other.
            flag = torch.tensor([status], device=device)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
            status = int(flag.item())
        if failure is not None:
            if self.steps and isinstance(failure, MismatchError):
                failure.add_note(f"the layout here: parameters, {self.steps} steps, common weights")
            raise failure
        if status == _FAILED:
            raise MismatchError(f"another rank of this machine failed to {doing}, see there")
        return status

    def _sender(self) -> GroupMean:
        """The mean of a rank that sends its whole difference at once, as all that claim do."""
        if not self.means:
            raise ArgumentError("this rank sends nothing: ask the first rank of its DDP")
        return self.means[0]

    def _settings(self) -> str:
        """Text of all that a state belongs to, besides what the means say of themselves."""
        compared = {**self._compared, "sends": self._sends, "layout": self._weights.layout}
        return ", ".join(f"{name}={value}" for name, value in compared.items())

    def _check_state(self, state: Mapping[str, Any]) -> None:
        needed = ("steps", "since", "own", "common", "under_way", "means")
        check_state(state, self._settings(), of="local steps", needed=needed)
        self._common.check_state(state["common"])
        check_shapes("own", state["own"], self._weights.parts)
        for name in ("steps", "since"):
            check_whole(name, state[name], least=0)
        for name, count in (("under_way", len(self._fragments)), ("means", len(self.means))):
            values = state[name]
            kinds = [isinstance(v, Mapping) for v in values] if isinstance(values, list) else []
            if kinds != [True] * count:
                raise MismatchError(f"{name} of the state must be a list of {count} mappings")


def _status(fragment: _Fragment) -> int:
    if fragment.mean_change is None:
        return _NOTHING
    return _NOT_FINITE if bool(fragment.mean_change[:1].isnan()) else _MEAN


def _fragment_key(key: SketchKey, index: int) -> SketchKey:
    digest = hashlib.blake2b(index.to_bytes(8, "little"), key=key.secret, digest_size=32,
                             person=b"ds-fragment")  # fmt: skip
    return SketchKey(digest.digest())
