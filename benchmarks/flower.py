"""What does a round cost on a real Flower network, with and without sketches?

    python -m benchmarks.flower --json benchmark-flower.json
    python -m benchmarks.flower --hidden 0 --rounds 3

The app of `examples/flower`, once with its two lines taken out again (dense models, as Flower
sends them) and once as it is, for some methods: a SuperLink and SuperNodes as processes on the
loopback. Between them is a relay that counts what passes, HTTP and Flower's own polling included,
so these are bytes on the wire and not sizes of arrays. The first round has the download of the
first model; rounds after it are what training goes on with. Most of a round's seconds are the
start of a process for each message, which Flower does and no method changes.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import shutil
import socket
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import print_table
from benchmarks.timing import environment

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"
ONE_ROW = "rows=1 cols={cols} clip=0.5 noise_multiplier=0.5"
METHODS = {
    "dense": ("none", ""),
    "diffsketch": ("diffsketch", "rows=7 cols={cols7} per_round=4 padding=1000"),
    "sketch-gaussian": ("sketch-gaussian", f"{ONE_ROW} trust=central"),
    "sketch-skellam, secure sum": ("sketch-skellam", ONE_ROW),
}
COMPRESSION = 50
_CHUNK = 1 << 16


class Relay:
    """Passes connections on to a port, and keeps when how many bytes went which way."""

    def __init__(self, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self._passed: list[tuple[float, int, int]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def between(self, start: float, end: float) -> tuple[int, int]:
        """Bytes to the server, and back, in a time."""
        with self._lock:
            inside = [one for one in self._passed if start <= one[0] < end]
        return sum(one[1] for one in inside), sum(one[2] for one in inside)

    def close(self) -> None:
        """Take no further connections."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                link = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for source, sink, up in ((client, link, True), (link, client, False)):
                threading.Thread(target=self._pass, args=(source, sink, up), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(_CHUNK):
                size = len(data)
                with self._lock:  # first: whoever has the bytes finds them counted
                    self._passed.append((time.monotonic(), size * up, size * (not up)))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    one.close()


def without_sketches(folder: Path) -> Path:
    """The app as it was before its two lines, and without the report about them."""
    app = folder / "plain"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    changes = {
        "client_app.py": {
            "ClientApp(mods=[sketch_mod(lambda context: plan_of(context.run_config))])": (
                "ClientApp()"
            ),
        },
        "server_app.py": {
            "SketchStrategy(inside, plan_of(config), key=find_sketch_key())": "inside",
            '        **cost_of(strategy, float(config["delta"])),\n': "",
        },
    }
    for name, pairs in changes.items():
        path = app / "mnist_app" / name
        text = path.read_text(encoding="utf-8")
        for old, new in pairs.items():
            if old not in text:
                raise SystemExit(f"{name} has changed: it has no {old!r}")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    return app


def measured(name: str, *, hidden: int, rounds: int, nodes: int, folder: Path) -> dict[str, Any]:
    """One run: seconds and bytes of each of its rounds."""
    local: Any = importlib.import_module("local")
    method, settings = METHODS[name]
    dim = 785 * hidden + 10 * hidden + 10 if hidden else 7850
    cells = dim // COMPRESSION
    config: dict[str, Any] = {
        "rounds": rounds,
        "nodes": nodes,
        "hidden": hidden,
        "method": method,
        "settings": settings.format(cols=cells, cols7=cells // 7),
    }
    if "secure sum" in name:
        config |= {"secure-sum": "one", "min-replies": nodes // 2 + 1}
    app = without_sketches(folder) if name == "dense" else EXAMPLE
    network = local.LocalNetwork(nodes, app=app)
    relay = Relay(network.port)
    network.gate = relay.port
    with network:
        found = network.run(config)
    relay.close()
    times = found["times"]
    spans = list(itertools.pairwise(times))
    return {
        "name": name,
        "accuracy": found["accuracy"],
        "seconds": [end - start for start, end in spans],
        "bytes_up": [relay.between(*span)[0] for span in spans],
        "bytes_down": [relay.between(*span)[1] for span in spans],
        "epsilon": found.get("epsilon", ""),
        "counted": found.get("rounds", []),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hidden", type=int, default=1024, help="units of a hidden layer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--only", choices=tuple(METHODS), help="one of the methods")
    parser.add_argument("--quick", action="store_true", help="two rounds of a linear model")
    given = parser.parse_args()
    if find_spec("flwr") is None:
        print("flwr is not installed: pip install 'diffsketch[flower]'")
        return
    if given.quick:
        given.rounds, given.hidden = 2, 0
    sys.path.insert(0, str(EXAMPLE))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in [given.only] if given.only else METHODS:
            results.append(
                measured(
                    name,
                    hidden=given.hidden,
                    rounds=given.rounds,
                    nodes=given.nodes,
                    folder=Path(folder),
                )
            )
            print(json.dumps(results[-1]), flush=True)
    lines = []
    for one in results:
        later = slice(1, None) if given.rounds > 1 else slice(None)
        count = len(one["seconds"][later])
        lines.append(
            [
                one["name"],
                f"{sum(one['seconds'][later]) / count:.1f}",
                f"{sum(one['bytes_up'][later]) / count:,.0f}",
                f"{sum(one['bytes_down'][later]) / count:,.0f}",
                f"{one['bytes_down'][0]:,}",
                f"{one['accuracy'][-1]:.1%}",
            ]
        )
    head = ["", "s/round", "bytes up", "bytes down", "down, first round", "accuracy"]
    print_table("Rounds after the first one", head, lines)
    if given.json:
        text = json.dumps(
            {"environment": environment(torch.device("cpu")), "results": results}, indent=1
        )
        given.json.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
