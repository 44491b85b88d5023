"""The way of the data: files of the package that it runs through, and changes between them.

    python -m benchmarks.walk [--files] [--only NAME]

Five walks, each traced in this process once its caches are filled:

* `message`: one vector of `sketch-gaussian` to bytes, and back to an estimate;
* `round`: a round of `diffsketch run` with its default settings;
* `hook`: a step of DistributedDataParallel with the communication hook, of one rank;
* `local`: an exchange of `LocalSteps`, of one rank;
* `flower`: a round of Flower with three nodes, where Flower is installed.

A change of file is a call in another file than the call before it. Checks of arguments are the
calls into `errors.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import diffsketch

ROOT = str(Path(diffsketch.__file__).parent) + "/"
WARM = 3  # steps until caches are filled


class Walk:
    """Files entered, changes of file and headers made, while it is switched on."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.changes = self.headers = 0
        self._here = ""

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        """Count a call into a file of the package."""
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT):
            self.files[name.removeprefix(ROOT)] += 1
            self.headers += frame.f_code.co_qualname == "Header.of"
            self.changes += self._here not in ("", name)
            self._here = name

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Count all calls meanwhile."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    def __str__(self) -> str:
        calls = sum(self.files.values())
        text = f"{len(self.files)} files, {self.changes} changes of file, {calls} calls"
        return f"{text} ({self.files['errors.py'] / calls:.0%} checks), {self.headers} headers made"


def repeated(step: Callable[[int], object]) -> Walk:
    """Trace a step after `WARM` others."""
    walk = Walk()
    for index in range(WARM):
        step(index)
    with walk.traced():
        step(WARM)
    return walk


def message() -> Walk:
    """Trace one message from a vector to bytes to an estimate."""
    from diffsketch.methods import SketchGaussian
    from diffsketch.privacy import SecureNoise
    from diffsketch.wire import Message

    method = SketchGaussian(1000, 3, 50, clip=1.0, noise_multiplier=1.0)
    key, vector = diffsketch.SketchKey.from_integer(0), torch.linspace(-1, 1, 1000)

    def step(index: int) -> None:
        seed, layout = key.seed(index), method.message_format
        about: dict[str, Any] = {"round_index": index, "fingerprint": seed.fingerprint}
        cells = method.encode(vector, seed, SecureNoise()).messages
        data = Message(layout, cells, sender=0, **about).to_bytes()
        arrived = Message.from_bytes(data, layout, **about)
        method.decode(method.publish(arrived.cells, SecureNoise()), seed, count=1)

    return repeated(step)


def simulation() -> Walk:
    """Trace a round of `diffsketch run`."""
    from diffsketch.cli import main as command
    from diffsketch.training.simulation import Simulation

    walk, original, rounds = Walk(), Simulation.step, 0

    def step(self: Simulation, *args: Any, **settings: Any) -> Any:
        nonlocal rounds
        rounds += 1
        with walk.traced() if rounds == WARM + 1 else contextlib.nullcontext():
            return original(self, *args, **settings)

    Simulation.step = step  # type: ignore[method-assign]
    argv = sys.argv
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            sys.argv = f"diffsketch run --rounds {WARM + 2} --output {folder}/run".split()
            command()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        Simulation.step, sys.argv = original, argv  # type: ignore[method-assign]
    return walk


@contextmanager
def process_group() -> Iterator[None]:
    """Make a group of this process alone."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 30)).square().sum().backward()
    optimizer.step()


def hook() -> Walk:
    """Trace a backward pass with the communication hook."""
    from diffsketch.ddp import sketch_hook, sketch_state

    with process_group():
        model = nn.parallel.DistributedDataParallel(nn.Linear(30, 20))
        state = sketch_state(model, method="sketch", compression=4, seed=0)
        model.register_comm_hook(state, sketch_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return repeated(lambda _: trained(model, optimizer))


def local() -> Walk:
    """Trace an exchange of `LocalSteps`."""
    from diffsketch.ddp import LocalSteps

    with process_group():
        model = nn.Linear(30, 20)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        steps = LocalSteps(model, every=1, method="sketch", compression=4, seed=0)

        def step(_index: int) -> None:
            trained(model, optimizer)
            steps.step()

        return repeated(step)


def flower() -> Walk:
    """Trace a round of Flower."""
    from tests.flower.network import FIRST, GAUSSIAN, network_of, one_round, strategy_of

    network, strategy, arrays = network_of(GAUSSIAN), strategy_of(GAUSSIAN), FIRST

    def step(index: int) -> None:
        nonlocal arrays
        arrays = one_round(strategy, network, arrays, index + 1)

    return repeated(step)


WALKS: dict[str, Callable[[], Walk]] = {
    "message": message, "round": simulation, "hook": hook, "local": local, "flower": flower,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    parser.add_argument("--only", choices=WALKS, help="one walk alone")
    options = parser.parse_args()
    for name in [options.only] if options.only else WALKS:
        try:
            walk = WALKS[name]()
        except ImportError as error:  # Flower is not installed, for example
            print(f"{name}: skipped, {error}")
            continue
        print(f"{name}: {walk}")
        if options.files:
            for file, calls in walk.files.most_common():
                print(f"  {file}: {calls} calls")


if __name__ == "__main__":
    main()
