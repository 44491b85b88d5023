"""What does a secure sum cost: seconds of each member and of the server, and bytes?

    python -m benchmarks.secure_sum --json benchmark-secure-sum.json
    python -m benchmarks.secure_sum --quick

Whole rounds in one process and one thread: every member's part is computed, and the median of the
members' times is shown. Members sign, so there are five stages. A third of the members at most
drops out after sharing keys, or nobody does: dropouts cost the server a key agreement and a mask
for each member that is left. The total of every round is compared with the plain sum. Bytes are
those of requests and replies, without what a transport adds; times are seconds of computing on one
core, without any network.

Then 1x5,331 cells of 18 bits of a thousand clients are summed by two aggregators, signed, with the
helper in a process of its own: a first round, in which each client makes its channel to the helper
and signs it, and the helper verifies and computes that, and a later one. Beside it stands a plain
sum: the same messages without masks, read and added. One server's sum of so many is not run; its
bytes are those of `diffsketch.wire.sums`. `--million` sums the messages of a million clients in a
thousand requests; the clients' work, which is not the aggregators', shares the leader's core.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.one_thread import in_one_thread, save
from benchmarks.report import print_table, readable
from diffsketch.secure_sum import (
    KeyPair,
    OneShotClient,
    OneShotHelper,
    OneShotLeader,
    OneShotParams,
    Params,
    SecureSumClient,
    SecureSumServer,
    SigningIdentity,
    Stage,
    default_threshold,
)
from diffsketch.wire import Inbox, Message, MessageFormat
from diffsketch.wire.sums import sum_bytes

SHAPES = ((7, 22), (1, 20_000))
MEMBERS = (3, 10, 100)
BITS, DIM = 20, 7850

T = TypeVar("T")


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """The result, and the seconds that this thread has computed: it waits for nothing."""
    start = time.thread_time()
    result = run()
    return result, time.thread_time() - start


def parties(count: int, shape: tuple[int, ...]) -> tuple[Params, dict[int, SigningIdentity]]:
    identities = {index: SigningIdentity(secrets.token_bytes(32)) for index in range(count)}
    threshold = default_threshold(count)
    params = Params(
        MessageFormat("sketch-skellam", DIM, shape, "unsigned", BITS),
        run=secrets.token_bytes(16),
        round_index=0,
        fingerprint=bytes(8),
        members=tuple(identities),
        threshold=threshold,
        min_present=threshold,
        identities={index: identity.public for index, identity in identities.items()},
    )
    return params, identities


class Costs:
    """Of one round, by stage: each member's seconds and bytes, and the server's seconds."""

    def __init__(self) -> None:
        self.member: dict[str, list[float]] = defaultdict(list)
        self.server: dict[str, float] = defaultdict(float)
        self.up: dict[str, int] = {}
        self.down: dict[str, int] = {}

    def as_json(self) -> dict[str, Any]:
        """The median of the members, and sums of the server."""
        member = {stage: statistics.median(taken) for stage, taken in self.member.items()}
        return {
            "member_s": member,
            "server_s": dict(self.server),
            "bytes_up": self.up,
            "bytes_down": self.down,
        }


def run_round(count: int, shape: tuple[int, ...], dropouts: int) -> dict[str, Any]:
    """A round in which the last members fall silent when they should send their inputs."""
    params, identities = parties(count, shape)
    server, costs = SecureSumServer(params), Costs()
    made = {
        index: timed(lambda index=index: SecureSumClient(index, params, identity=identities[index]))  # type: ignore[misc]
        for index in params.members
    }
    cells = torch.randint(0, 1 << BITS, (count, *shape), generator=torch.Generator().manual_seed(0))
    while server.stage is not Stage.DONE:
        stage = server.stage.value
        requests, taken = timed(server.requests)
        costs.server[stage] += taken
        for index, request in requests.items():
            if index >= count - dropouts and server.stage is Stage.MASKED:
                continue
            client, first = made[index]
            reply, taken = timed(
                lambda client=client, request=request, index=index: client.answer(  # type: ignore[misc]
                    request, lambda: cells[index]
                )
            )
            costs.member[stage].append(taken + (first if server.stage is Stage.KEYS else 0.0))
            costs.up[stage], costs.down[stage] = len(reply), len(request)
            costs.server[stage] += timed(lambda reply=reply: server.collect(reply))[1]  # type: ignore[misc]
        costs.server[stage] += timed(server.close)[1]
    total = server.total()
    expected = cells[list(total.present)].sum(dim=0) & ((1 << BITS) - 1)
    if not torch.equal(total.cells, expected) or len(total.present) != count - dropouts:
        raise RuntimeError(f"the total of {count} members must be the plain sum, and is not")
    return costs.as_json()


def run_case(count: int, shape: tuple[int, ...], dropouts: int, repeat: int) -> dict[str, Any]:
    rounds = [run_round(count, shape, dropouts) for _ in range(repeat)]
    middle = sorted(rounds, key=lambda found: sum(found["server_s"].values()))[repeat // 2]
    message = MessageFormat("sketch-skellam", DIM, shape, "unsigned", BITS).full_bytes
    about = {"members": count, "shape": shape, "dropouts": dropouts, "message_bytes": message}
    return about | {"threshold": default_threshold(count)} | middle


def run_cases(members: Sequence[int], repeat: int) -> list[dict[str, Any]]:
    run_round(3, (1, 2), 0)  # what is loaded late is not timed
    return [
        run_case(count, shape, dropouts, repeat)
        for shape in SHAPES
        for count in members
        for dropouts in sorted({0, count - default_threshold(count)})
    ]


@contextmanager
def counted(costs: dict[str, float], who: str) -> Iterator[None]:
    """Add the seconds that this thread computes."""
    start = time.thread_time()
    yield
    costs[who] += time.thread_time() - start


_helper: OneShotHelper  # in the helper's process


def start_helper(secret: bytes, memory: str, public: list[bytes], total: int) -> None:
    """Begin the helper's process: client `i` has the identity `i % len(public)`."""
    global _helper
    torch.set_num_threads(1)
    keys = {index: public[index % len(public)] for index in range(total)}
    _helper = OneShotHelper(secret, memory, identities=keys)
    run_round(3, (1, 2), 0)  # what is loaded late is not timed


def helped(request: bytes, params: OneShotParams) -> tuple[bytes, float]:
    """The helper's answer, and its seconds of computing."""
    return timed(lambda: _helper.answer(request, params))


def run_two(count: int, shape: tuple[int, int], bits: int, batches: int = 1) -> dict[str, Any]:
    """One-shot sums: a first and a later round, or one of `batches` requests of new clients.

    The helper has a process of its own. While it works on one request, clients and leader are at
    the next.
    """
    layout = MessageFormat("sketch-gaussian", DIM, shape, "unsigned", bits)
    total, rounds = count * batches, ("first", "later") if batches == 1 else ("first",)
    identities = [SigningIdentity(secrets.token_bytes(32)) for _ in range(count)]
    secret = secrets.token_bytes(32)
    helper, clients = KeyPair(secret).public, list[OneShotClient]()
    cells = torch.randint(0, 1 << bits, (count, *shape), generator=torch.Generator().manual_seed(0))
    sums: dict[str, dict[str, float]] = {}
    if batches == 1:
        sums["plain"] = run_plain(cells, layout)
        sums["plain"] |= {"bytes_up": layout.full_bytes, "bytes_down": 0}
        up, down = sum_bytes("one", count)  # counted: of so many members it would take minutes
        sums["one server"] = {"bytes_up": up + layout.full_bytes, "bytes_down": down}
    with (
        tempfile.TemporaryDirectory() as memory,
        ProcessPoolExecutor(
            1, get_context("spawn"), start_helper,
            (secret, memory, [identity.public for identity in identities], total),
        ) as process,
    ):  # fmt: skip
        for name in rounds:
            params = OneShotParams(
                layout, run=secrets.token_bytes(16), round_index=0, fingerprint=bytes(8),
                min_present=total, helper=helper,
            )  # fmt: skip
            leader, costs = OneShotLeader(params), defaultdict[str, float](float)
            process.submit(int).result()  # it has begun
            start, asked = time.monotonic(), None
            for batch in range(batches + 1):
                if batch < batches:
                    with counted(costs, "client"):
                        if name == "first":
                            clients = [
                                OneShotClient(batch * count + index, helper, identity=identity)
                                for index, identity in enumerate(identities)
                            ]
                        sent = [c.mask(x, params) for c, x in zip(clients, cells, strict=True)]
                    with counted(costs, "leader"):
                        for data in sent:
                            leader.collect(data)
                if asked is not None:
                    answer, seconds = asked.result()
                    costs["helper"] += seconds
                    with counted(costs, "leader"):
                        leader.take(answer)
                if batch < batches:
                    with counted(costs, "leader"):
                        request = leader.request(last=batch == batches - 1)
                    asked = process.submit(helped, request, params)
            wall = time.monotonic() - start
            if not torch.equal(leader.total().cells, cells.sum(dim=0) * batches & (1 << bits) - 1):
                raise RuntimeError("the total must be the plain sum, and is not")
            name = f"two aggregators, {name} round"
            sums[name] = {who: seconds / total for who, seconds in costs.items()}
            sums[name] |= {"wall_s": wall, "bytes_up": len(sent[0]), "bytes_down": 0}
    return {"clients": total, "shape": shape, "bits": bits, "sums": sums}


def run_plain(cells: torch.Tensor, layout: MessageFormat) -> dict[str, float]:
    """A plain sum: seconds for each client and for the server."""
    about: Any = {"round_index": 0, "fingerprint": bytes(8)}
    inbox = Inbox(layout, senders=range(len(cells)), wraps=True, **about)
    messages = [Message(layout, table, sender=i, **about) for i, table in enumerate(cells)]
    sent, sending = timed(lambda: [message.to_bytes() for message in messages])
    _, taking = timed(lambda: [inbox.add(data) for data in sent])
    return {"client": sending / len(cells), "leader": taking / len(cells)}


def show_two(case: dict[str, Any]) -> None:
    lines = []
    for name, costs in case["sums"].items():
        times = (costs.get(who) for who in ("client", "helper", "leader"))
        shown = [readable(seconds) if seconds else "" for seconds in times]
        wall = f"{costs['wall_s']:.1f} s" if "wall_s" in costs else ""
        lines.append([name, *shown, f"{costs['bytes_up']:,}", f"{costs['bytes_down']:,}", wall])
    rows, cols = case["shape"]
    print(f"{case['clients']:,} clients, {rows}x{cols:,} cells of {case['bits']} bits")
    print_table("For a client", ["sum", "client", "helper", "leader", "up", "down", "all"], lines)


def show(cases: Sequence[dict[str, Any]]) -> None:
    lines = []
    for case in cases:
        rows, cols = case["shape"]
        lines.append(
            [
                f"{rows}x{cols:,}", str(case["members"]), str(case["dropouts"]),
                readable(sum(case["member_s"].values())), readable(sum(case["server_s"].values())),
                f"{case['message_bytes']:,}", f"{sum(case['bytes_up'].values()):,}",
                f"{sum(case['bytes_down'].values()):,}",
            ]
        )  # fmt: skip
    headers = ["table", "members", "dropouts", "a member", "server", "message", "up", "down"]
    print_table("A round: time, and bytes of a member", headers, lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--members", type=int, nargs="+", default=list(MEMBERS))
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the middle counts")
    parser.add_argument("--quick", action="store_true", help="at most 10 members, one round")
    parser.add_argument("--million", action="store_true", help="only a sum of a million messages")
    parser.add_argument("--json", type=Path, help="where to write all results")
    options = parser.parse_args(argv)
    if options.quick:
        options.members = [count for count in options.members if count <= 10]
        options.repeat = 1
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    if options.million:
        result = in_one_thread(lambda: {"million": run_two(1000, (1, 5331), 18, 1000)})
        show_two(result["million"])
    else:
        result = in_one_thread(lambda: {"cases": run_cases(options.members, options.repeat)})
        show(result["cases"])
        clients = 100 if options.quick else 1000
        result["two"] = in_one_thread(lambda: run_two(clients, (1, 5331), 18))
        show_two(result["two"])
    save(result, options.json)


if __name__ == "__main__":
    main()
