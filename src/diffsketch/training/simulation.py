"""All devices in one process: the engine of `diffsketch run`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, MismatchError, check, check_whole
from diffsketch.methods.base import Method, is_finite
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Basis, Claim, Epsilon, ProvenClaim, SimulatedClaim
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch.hashing import HashSeed, SketchKey
from diffsketch.training.aggregate import (
    Aggregate,
    Diverged,
    RoundClaims,
    Secrets,
    device_scales,
    empty_total,
    server_noise,
    sum_messages,
    warn_of,
)
from diffsketch.training.clients import Downloads, Participation, Synced
from diffsketch.training.correction import corrected, drift_of
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.rounds import Algorithm
from diffsketch.training.sampling import AllDevices, Sampler, check_sampler
from diffsketch.training.server import (
    CLIP_BYTES,
    Correct,
    Model,
    Published,
    Server,
    ServerOptimizer,
)
from diffsketch.training.tasks import Examples, Task, check_task

_SIZE = 16  # bytes of a digest: no two things have the same one


@dataclass(frozen=True, eq=False)
class Identity:
    """Whose state and noise it is. Digests are computed when they are first asked for.

    Guarantees (`tests/training/test_identity.py`): the same for the same run, on whatever device;
    another for other settings, examples, labels, owners of examples or models.

    Args:
        task: Its examples and labels count, who holds which, the test set and the model.
        seed: Of the run.
        settings: All else that changes what is released, in words.
        given: The key of the noise, if it is not to follow from the rest.
    """

    task: Task
    seed: int
    settings: str
    given: NoiseKey | None = None

    @cached_property
    def text(self) -> str:
        """What a state belongs to, in words. Reads all data: a fifth of a second for 188 MB."""
        devices, test = self.task.devices, self.task.test
        data = tensor_digest(devices.examples.inputs, devices.examples.labels, devices.starts)
        tested = tensor_digest(test.inputs, test.labels)
        text = (
            f"task={self.task.name!r}, data={data}, test={tested}, "
            f"model={_digest(str(self._model).encode())}, seed={self.seed}, {self.settings}"
        )
        return text if self.given is None else f"{text}, noise_key={_digest(self.given.secret)}"

    @cached_property
    def noise_key(self) -> NoiseKey:
        """The key as given; else one that is another if anything is different.

        The first weights count as well. They are not in `text`: other machines may round them
        differently, and a run may be continued there, with noise of its own from then on.
        """
        if self.given is not None:
            return self.given
        text = f"{self.text}, weights={tensor_digest(*self._model.state_dict().values())}"
        secret = NoiseKey.from_integer(self.seed).secret
        digest = hashlib.blake2b(text.encode(), key=secret, digest_size=32, person=b"ds-run-noise")
        return NoiseKey(digest.digest())

    @property
    def _model(self) -> nn.Module:
        return self.task.model(self.seed)


def tensor_digest(*tensors: Tensor) -> str:
    """Of types, shapes and values; the same wherever the tensors are.

    >>> tensor_digest(torch.zeros(2)) == tensor_digest(torch.zeros(1, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=_SIZE, person=b"ds-run-tensors")
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        content: Any = values.view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()


def difference(own: str, other: str) -> str:
    """How two texts of `Identity` differ, in words: the first thing that does.

    Args:
        own: Of the simulation that is here.
        other: Of the one that a state belongs to.

    >>> difference("data=a1, method=A(rows=3, cols=4)", "data=a1, method=A(rows=3, cols=5)")
    'method is A(rows=3, cols=4) here and was A(rows=3, cols=5)'
    """
    here, there = _parts(own), _parts(other)
    for name in (*here, *(name for name in there if name not in here)):
        if here.get(name) == there.get(name):
            continue
        if name in _DIGESTS:
            return f"{_DIGESTS[name]} changed since the run began"
        return f"{name} is {here.get(name, 'missing')} here and was {there.get(name, 'missing')}"
    return "its settings are others"


_DIGESTS = {
    "data": "the data has",
    "test": "the test data has",
    "model": "the model has",
    "importance": "what devices count for has",
    "noise_key": "the key of the noise has",
}
"""What is shown as words, since nobody can read a digest."""


def _parts(text: str) -> dict[str, str]:
    """Names and values of `name=value, ...`, where values may have commas inside brackets."""
    found, depth, begin = dict[str, str](), 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            name, _, value = text[begin:place].strip().partition("=")
            found[name] = value
            begin = place + 1
    return found


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_SIZE, person=b"ds-run-content").hexdigest()


_ACCOUNTS = "participation."


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round did.

    Attributes:
        round_index: The round.
        cohort: Indices of the devices that were drawn.
        published: What the server made known: with `Simulation.advance`, all that a device needs.
        bytes_up: Sent by the devices, headers included.
        bytes_down: Sent to the devices, headers included.
        claim: What the round guarantees.
        left_out: Names of workers whose vectors were not finite: left out of the mean, or counted
            as zeros with their noise if the claim is proven.
        summed: What the cohort sent, and what its members know of their own privacy.
        drift: How far apart the workers' models are, if they may be (`relative_drift`).
        loss: None: `Simulation.evaluate` measures it.
        downloads: Devices that received something: as many vectors, if nothing were compressed.
    """

    round_index: int
    cohort: Tensor
    published: Published
    bytes_up: int
    bytes_down: int
    claim: Claim
    left_out: tuple[str, ...]
    summed: Aggregate
    drift: float | None = None
    loss: float | None = None
    downloads: int = 0

    @property
    def noised(self) -> float | None:
        """The share of workers that had to add noise, for methods that validate by Theorem 1."""
        noised = self.summed.noised
        return None if noised is None else float(noised.double().mean())

    @property
    def claimed_median(self) -> float | None:
        """Of what Theorem 1 claims for the workers' bare messages; infinite if it claims nothing.

        A statistic of private data, for whoever simulates; no server would know it.
        """
        claimed = self.summed.claimed
        return None if claimed is None else float(claimed.median())

    @property
    def claimed_max(self) -> float | None:
        """The largest of what Theorem 1 claims for the workers' bare messages."""
        claimed = self.summed.claimed
        return None if claimed is None else float(claimed.max())


class DivergedRound(Diverged):
    """The messages of a round were sent, and what they give is not finite. The round is paid for.

    Attributes:
        result: What the round did, but for a new model.
    """

    def __init__(self, message: str, result: RoundResult) -> None:
        super().__init__(message)
        self.result = result


def diverged(round_index: int, what: str) -> Diverged:
    """The error of a round whose messages were sent and came to something that is not finite."""
    return Diverged(
        f"round {round_index}: {what} would not be finite: training diverges; the model before "
        "this round is kept, and what was sent is counted. A smaller learning_rate, server_step or "
        "update_clip may help"
    )


@dataclass(frozen=True, eq=False)
class RunState:
    """All that a round changes. Replaced as a whole, so that a round happens or does not.

    Attributes:
        round_index: Rounds that changed the model.
        model: Weights, and what the server's rule remembers.
        average: The exponential average of the weights, before its bias is corrected.
        participation: The clients' accounts.
        synced: Rounds that each device's model contains.
        bytes_up: Sent by all devices so far.
        bytes_down: Sent to all devices so far.
        ended: Why there can be no further round, if so. The accounts have the round of which
            nothing came, and the model has not.
        clip: The next round's, for methods whose clip moves.
    """

    round_index: int
    model: Model
    average: Tensor | None
    participation: Participation
    synced: Synced
    bytes_up: int = 0
    bytes_down: int = 0
    ended: str = ""
    clip: float | None = None

    def pack(self, settings: str) -> dict[str, Any]:
        """As tensors, numbers and texts.

        Args:
            settings: What the state belongs to.
        """
        found: dict[str, Any] = {
            "settings": settings,
            "round_index": self.round_index,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "ended": self.ended,
            "weights": self.model.weights.clone(),
            "synced": torch.from_numpy(self.synced.copy()),
        }
        found |= {f"memory.{name}": value.clone() for name, value in self.model.memory.items()}
        if self.average is not None:
            found["average"] = self.average.clone()
        if self.clip is not None:
            found["clip"] = self.clip
        accounts = self.participation.state()
        return found | {f"{_ACCOUNTS}{name}": value for name, value in accounts.items()}

    def unpacked(self, state: Mapping[str, Any], settings: str) -> RunState:
        """What `pack` was called on, for a simulation with this as its state.

        Raises:
            MismatchError: It belongs to other settings, or is not all of it.
        """
        if state.get("settings") != settings:
            why = difference(settings, str(state.get("settings")))
            raise MismatchError(f"the state must be that of the same simulation, but {why}")
        own = self.pack(settings)
        needed = {name for name in own if not name.startswith(f"{_ACCOUNTS}paid.")}
        if missing := sorted(needed - state.keys()):
            raise MismatchError(f"the state must have {', '.join(missing)}")
        for name, value in own.items():
            if name in needed and isinstance(value, Tensor) and state[name].shape != value.shape:
                found, wanted = tuple(state[name].shape), tuple(value.shape)
                raise MismatchError(f"{name} must have the shape {wanted}, got {found}")
        target = self.model.weights.device
        memory = {name: state[f"memory.{name}"].to(target).clone() for name in self.model.memory}
        accounts = {
            name.removeprefix(_ACCOUNTS): value
            for name, value in state.items()
            if name.startswith(_ACCOUNTS)
        }
        return RunState(
            round_index=state["round_index"],
            model=Model(state["weights"].to(target).clone(), memory),
            average=None if self.average is None else state["average"].to(target).clone(),
            participation=self.participation.restored(accounts),
            synced=state["synced"].cpu().numpy().copy(),
            bytes_up=state["bytes_up"],
            bytes_down=state["bytes_down"],
            ended=state["ended"],
            clip=None if self.clip is None else state["clip"],
        )


Hashes: TypeAlias = Literal["fresh", "fixed"]

_EVERYONE = np.zeros(1, np.int64)  # the one account where every round counts for all


class Simulation:
    """A run of distributed SGD or FedAvg, round by round.

    Everything random follows from the arguments and the round (and the device), so a run is
    determined by its arguments: `state` is small, and `load_state` continues to the same bits.

    Runs with one seed have the same devices, batches and hashes, whatever their method, and the
    same noise only if all else that changes what is released is the same too, the data included
    (`diffsketch.training.simulation`): else the difference of two runs would show what the noise of
    each hides. The trainer, and where it computes, are not among it: they change the rounding.

    Guarantees: without compression a round is the textbook's (`tests/training/test_sgd.py` and
    `test_fedavg.py`); a round that raises, or is interrupted, has not changed anything, unless its
    messages were sent and it diverged, when it is paid for and the last one
    (`tests/training/test_simulate_failures.py`); the budget stops a run before the round that would
    exceed it, and all bytes are counted (`tests/training/test_simulate.py`); a state that is loaded
    continues bit-identically (`tests/training/test_simulate_state.py`); different runs have
    different noise (`tests/training/test_identity.py`).

    Args:
        task: Devices, test set and model. Its examples say where to compute: CPU or CUDA.
        method: How vectors become messages.
        trainer: Of the task's model.
        algorithm: `DistributedSGD(...)` or `FedAvg(...)`.
        rounds: How many are planned; schedules depend on it.
        seed: Fixes weights, batches, devices and hashes; and, with all other settings, the noise.
        sampler: Who takes part; everyone if not given.
        server: What is done with the mean.
        hashes: `fresh` in each round, or `fixed` to those of the first.
        importance: `p_k` of each device, if devices count differently: the vector of device `k` is
            multiplied by `devices * p_k / sum(p)` before it is encoded, so that sums stay sums.
        budget: Where to stop. Only proven claims can be within one.
        noise_key: The secret of the noise, if it is not to follow from the other arguments. For
            simulation. One key is for one release: never give it to runs that differ in anything.

    Raises:
        ArgumentError: Options do not go together.
        MismatchError: Task, trainer and method are of different lengths.
    """

    def __init__(
        self,
        task: Task,
        *,
        method: Method,
        trainer: LocalTrainer,
        algorithm: Algorithm,
        rounds: int,
        seed: int = 0,
        sampler: Sampler | None = None,
        server: Server | None = None,
        hashes: Hashes = "fresh",
        importance: Tensor | None = None,
        budget: Budget | None = None,
        noise_key: NoiseKey | None = None,
    ) -> None:
        check_whole("rounds", rounds, least=1)
        check(hashes in ("fresh", "fixed"), "hashes", "be fresh or fixed", hashes)
        self.task, self.method, self.trainer, self.algorithm = task, method, trainer, algorithm
        self.rounds, self.seed, self.hashes = rounds, seed, hashes
        self.sampler = algorithm.sampler(task.devices) if sampler is None else sampler
        self.server = ServerOptimizer() if server is None else server
        self._key = SketchKey.from_integer(seed)
        self._fixed_seed = self._key.seed(0)
        self._scales = device_scales(importance, len(task.devices))
        self._identity = Identity(task, seed, self._settings(), noise_key)
        self._claims = RoundClaims(method, self.sampler, algorithm.correction)
        self._check_options()
        self._claims.check(self._fixed_seed, budget=budget is not None)
        target = task.devices.examples.labels.device
        self._test = Examples(task.test.inputs.to(target), task.test.labels.to(target))
        self._message_bytes = method.wire_bytes
        dense = self.server.model_bytes(method.dim) + (CLIP_BYTES if method.round_clip else 0)
        self._downloads = Downloads(self.server.round_bytes(method), dense)
        self._state = self._first_state(target, budget)

    @property
    def round_index(self) -> int:
        """Rounds that were done: the index of the next one.

        A last round that diverged is not among them, though it is paid for.
        """
        return self._state.round_index

    @property
    def weights(self) -> Tensor:
        """Of the model as it is, `(dim,)`; the mean of the workers' models where they drift."""
        weights = self._state.model.weights
        return weights if weights.dim() == 1 else weights.mean(dim=0)

    @property
    def drift(self) -> float | None:
        """How far apart the workers' models are (`relative_drift`), where they may drift."""
        return drift_of(self._state.model.weights)

    @property
    def averaged_weights(self) -> Tensor:
        """Of the model that is evaluated: the exponential average, if there is one."""
        average, share = self._state.average, self.server.averaging
        if average is None or self.round_index == 0:
            return self.weights
        average = average if average.dim() == 1 else average.mean(dim=0)
        return average / (1 - share**self.round_index)

    @property
    def model(self) -> Model:
        """Weights and what the server's rule remembers."""
        return self._state.model

    @property
    def clip(self) -> float | None:
        """The next round's, for methods whose clip moves; else None."""
        return self._state.clip

    @property
    def bytes_up(self) -> int:
        """Sent by all devices so far, headers included."""
        return self._state.bytes_up

    @property
    def bytes_down(self) -> int:
        """Sent to all devices so far, headers included."""
        return self._state.bytes_down

    @property
    def participation(self) -> Participation:
        """The clients' accounts."""
        return self._state.participation

    @property
    def claim(self) -> Claim:
        """What holds for the whole run so far: the weakest claim of its rounds.

        Before the first round, what one is expected to claim (`Participation.claim`).
        """
        claim = self._state.participation.claim or self._claims.planned(self._fixed_seed)
        return SimulatedClaim.of(claim)

    def epsilon(self, delta: float) -> Epsilon:
        """What the run has cost the client who paid most, with the basis of that number.

        If that is `proven`, it is about the same run with exact noise, and says `simulated`.
        """
        epsilon = self._state.participation.epsilon(delta)
        return replace(epsilon, simulated=epsilon.basis is Basis.PROVEN)

    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on the test set; of drifting models, on average over them."""
        weights = self._state.model.weights
        if weights.dim() == 1 or self._state.average is not None:
            return self.trainer.evaluate(self.averaged_weights, self._test)
        each = [self.trainer.evaluate(own, self._test) for own in weights]
        return sum(one[0] for one in each) / len(each), sum(one[1] for one in each) / len(each)

    def step(self) -> RoundResult:
        """Do the next round.

        If this raises, or is interrupted, everything is as before the round; but for
        `DivergedRound`. Then messages were sent: the model is as before, but bytes and epsilon
        have the round, and it was the last one.

        Raises:
            BudgetExceeded: The round would cost too much. It was not run.
            DivergedRound: The new weights are not finite.
            Diverged: No worker's vector is finite, where nothing is proven; or a round diverged
                before.
            ArgumentError: All rounds are done, or the sampler draws devices more than once.
        """
        if self._state.ended:
            raise Diverged(self._state.ended)
        state, result = self._round(self._state)
        self._state = state
        if state.ended:
            raise DivergedRound(state.ended, result)
        return result

    def advance(self, model: Model, published: Published) -> Model:
        """The model after a round, from the model before and what was published.

        What a device does that catches up with a round that it missed. (With FetchSGD a device is
        sent the extracted coordinates; this gives the same.)

        Raises:
            ArgumentError: With error correction the masks would be needed as well.
        """
        plain = self.algorithm.correction == "off"
        check(plain, "correction", "be off for a model to follow", self.algorithm.correction)
        return self._advance(model, published, None)

    def state(self) -> dict[str, Any]:
        """All that has to be kept to continue: tensors, numbers and texts."""
        return self._state.pack(self._identity.text)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave, in a simulation with the same arguments.

        Raises:
            MismatchError: It is the state of a simulation with other settings or data, or not all
                of it.
        """
        self._state = self._state.unpacked(state, self._identity.text)

    def _round(self, state: RunState) -> tuple[RunState, RoundResult]:
        index, method, algorithm = state.round_index, self._at(state.clip), self.algorithm
        check(index < self.rounds, "round_index", f"be below rounds={self.rounds}", index)
        cohort, seed = self._drawn(index), self._seed_of(index)
        drawn = cohort.shape[0]
        claim = self._claims.of(drawn, seed)
        payers = cohort.numpy() if self.sampler.fixed_size else _EVERYONE
        participation = state.participation.after(claim, payers)  # or it stops here
        down, synced = algorithm.bytes_down(
            self._downloads, state.synced, cohort=cohort, round_index=index, dim=method.dim
        )
        stay = isinstance(claim, ProvenClaim)
        secrets = Secrets(seed, self._identity.noise_key, index)
        summed = self._summed(method, state.model, cohort, secrets, stay=stay)
        if summed.broken and not stay:
            claim = self._claims.of(summed.count, seed)
            participation = state.participation.after(claim, payers)
        published = self._published(method, summed, drawn, secrets)
        model, ended = state.model, ""
        try:
            model = self._next_model(state.model, published, summed)
        except Diverged as error:  # what was sent is known, whatever became of it
            ended = str(error)
        left_out = tuple(self.task.devices.names[device] for device in summed.broken)
        up = algorithm.bytes_up(self._message_bytes, summed.count, method.dim)
        drift = drift_of(model.weights)
        got = algorithm.downloads(state.synced, cohort=cohort, round_index=index)
        told = SimulatedClaim.of(claim)
        result = RoundResult(
            index, cohort, published, up, down, told, left_out, summed, drift, downloads=got
        )
        if left_out:
            warn_of(left_out, index, stay=stay)
        up, down = state.bytes_up + up, state.bytes_down + down
        if ended:
            paid = replace(state, participation=participation, synced=synced)
            return replace(paid, bytes_up=up, bytes_down=down, ended=ended), result
        average = state.average
        if average is not None:
            share = self.server.averaging
            average = torch.add(average * share, model.weights, alpha=1 - share)
        clip = method.after(published.total, count=published.count).round_clip
        after = RunState(index + 1, model, average, participation, synced, up, down, clip=clip)
        return after, result

    def _at(self, clip: float | None) -> Method:
        return self.method if clip is None else self.method.at_clip(clip)

    def _summed(
        self, method: Method, model: Model, cohort: Tensor, secrets: Secrets, *, stay: bool
    ) -> Aggregate:
        def vectors_of(part: Tensor) -> Tensor:
            vectors = self.algorithm.vectors(
                model.weights,
                part,
                trainer=self.trainer,
                devices=self.task.devices,
                seed=self.seed,
                round_index=secrets.round_index,
            )
            if self._scales is None:
                return vectors
            return vectors * self._scales[part].to(vectors)[:, None]

        return sum_messages(
            cohort,
            vectors_of,
            method=method,
            secrets=secrets,
            stay=stay,
            keep=self.algorithm.correction != "off",
        )

    def _published(
        self, method: Method, summed: Aggregate, drawn: int, secrets: Secrets
    ) -> Published:
        """The sum with the server's noise, if any, and what it is divided by."""
        total, seed, index = summed.total, secrets.seed, secrets.round_index
        if total is None:
            total = empty_total(method, self._state.model.weights.device)
        total = method.publish(total, server_noise(secrets))
        if self.sampler.fixed_size:
            return Published(total, summed.count, seed, index, method.round_clip)
        present = summed.count / drawn if drawn else 1.0
        count = self.sampler.expected * present
        return Published(total, count, seed, index, method.round_clip)

    def _next_model(self, model: Model, published: Published, summed: Aggregate) -> Model:
        correction, vectors = self.algorithm.correction, summed.vectors
        correct: Correct | None = None
        if correction != "off" and vectors is not None:
            own = vectors

            def correct(mean: Tensor) -> Tensor:
                return corrected(mean, own, correction)

        index = published.round_index
        try:
            after = self._advance(model, published, correct)
        except ArgumentError as error:
            if published.total.is_floating_point() and not is_finite(published.total):
                raise diverged(index, "the sum of the messages") from error
            raise
        if not is_finite(after.weights):
            raise diverged(index, "the new weights")
        return after

    def _advance(self, model: Model, published: Published, correct: Correct | None) -> Model:
        factor = self.server.factor(published.round_index, self.rounds)
        step, method = self.algorithm.step * factor, self._at(published.clip)
        return self.server.advance(model, published, method=method, step=step, correct=correct)

    def _drawn(self, round_index: int) -> Tensor:
        cohort = self.sampler.draw(round_index)
        members = cohort.numpy()
        if not (members[1:] > members[:-1]).all():
            # Whoever is drawn twice would add the same noise twice.
            raise ArgumentError(
                f"the sampler must draw devices once each, in ascending order, got {members}"
            )
        return cohort

    def _seed_of(self, round_index: int) -> HashSeed:
        return self._key.seed(round_index) if self.hashes == "fresh" else self._fixed_seed

    def _first_state(self, target: torch.device, budget: Budget | None) -> RunState:
        first = self.task.model(self.seed)
        check_task(self.task, first)
        parameters = [one.detach().reshape(-1) for one in first.parameters()]
        weights = torch.cat(parameters).to(target, torch.float32)
        if not len(weights) == self.method.dim == self.trainer.dim:
            raise MismatchError(
                f"model, method and trainer must have the same number of weights, got "
                f"{len(weights)}, {self.method.dim} and {self.trainer.dim}"
            )
        devices = len(self.task.devices)
        if self.algorithm.correction == "drift":
            weights = weights.repeat(devices, 1)
        clients = devices if self.sampler.fixed_size else 1
        return RunState(
            round_index=0,
            model=self.server.start(weights, self.method),
            average=torch.zeros_like(weights) if self.server.averaging else None,
            participation=Participation(clients, budget, self._claims.planned(self._fixed_seed)),
            synced=np.zeros(devices, np.int64),
            clip=self.method.round_clip,
        )

    def _check_options(self) -> None:
        sampler = self.sampler
        check_sampler(sampler, devices=len(self.task.devices), method=self.method)
        self.server.check_method(self.method, fresh=self.hashes == "fresh")
        self.server.check_factor(self.algorithm.step)
        if self.algorithm.correction != "off":
            everyone = isinstance(sampler, AllDevices)
            check(everyone, "sampler", "be of all devices with correction", sampler)
            plain = isinstance(self.server, ServerOptimizer)
            check(plain, "server", "be a ServerOptimizer with correction", self.server)

    def _settings(self) -> str:
        """What changes the rounds, besides the task and the seed, in words."""
        planned = f", rounds={self.rounds}" if self.server.schedule in ("linear", "cosine") else ""
        scales = "" if self._scales is None else f", importance={tensor_digest(self._scales)}"
        return (
            f"method={self.method}, algorithm={self.algorithm}, sampler={self.sampler}, "
            f"server={self.server}, hashes={self.hashes!r}{planned}{scales}"
        )
