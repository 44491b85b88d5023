"""A real Flower network on this machine: a SuperLink, SuperNodes, and a run of the app.

    python examples/flower/local.py                                       # DiffSketch, plain
    python examples/flower/local.py --tls --method sketch-gaussian \
        --settings "rows=1 cols=512 clip=0.5 noise_multiplier=0.5 trust=central"
    python examples/flower/local.py --secure two --method sketch-skellam \
        --settings "rows=1 cols=512 clip=0.5 noise_multiplier=0.5"

Needs no network: no telemetry, no look for updates, no installation of dependencies, a Flower home
of its own, free ports of the loopback. Ends every process that it has started.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from certificates import make_certificates

from diffsketch.secure_sum import KeyPair, SigningIdentity

APP = Path(__file__).parent
_STARTED = 60.0  # seconds until a SuperLink answers, at most


class LocalNetwork:
    """SuperLink and SuperNodes as processes. A context manager: nothing is left running.

    Args:
        nodes: How many SuperNodes of clients.
        tls: Whether connections are encrypted.
        helper: Whether there is one more, of the helper of two aggregators.
        app: Folder of the app.
    """

    def __init__(
        self, nodes: int, *, tls: bool = False, helper: bool = False, app: Path = APP
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="flower-"))
        self.app, self.tls, self.port = app, tls, free_port()
        self.gate = self.port  # that nodes connect to; another one if something is in between
        self._logs: list[IO[bytes]] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._certificates = make_certificates(self.home) if tls else None
        self._environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "DIFFSKETCH_KEY_FILE": str(self._secret("sketch.key")),
            "DIFFSKETCH_IDENTITIES_FILE": str(self._identities(nodes)),
            "DIFFSKETCH_HELPER_FILE": str(self._helper_key()),
        }
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._count, self._with_helper = nodes, helper

    def __enter__(self) -> LocalNetwork:
        try:
            self._start_link()
            self.nodes = [self.start_node(number) for number in range(self._count)]
            if self._with_helper:
                self.nodes.append(self.start_helper())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_node(self, number: int) -> subprocess.Popen[bytes]:
        """A SuperNode with the images of this number."""
        key = self._secret(f"client-{number}.key")
        identity = self._secret(f"identity-{number}.key")
        config = (
            f'partition-id={number} num-partitions={self._count} diffsketch-client-key-file="{key}"'
            f' diffsketch-identity-file="{identity}" diffsketch-account="{self.account(number)}"'
        )
        return self._start_node(config, f"node-{number}")

    def account(self, number: int) -> Path:
        """The file of this node's account, which outlives the node."""
        return self.home / f"account-{number}.json"

    def start_helper(self) -> subprocess.Popen[bytes]:
        """The SuperNode of the other operator: with the helper's key, and none of the clients'."""
        config = (
            f'diffsketch-helper-secret-file="{self._secret("helper-secret.key")}"'
            f' diffsketch-helper-memory="{self.home / "helper-memory"}"'
        )
        environment = {**self._environment, "DIFFSKETCH_KEY_FILE": ""}
        return self._start_node(config, "helper", environment)

    def _start_node(
        self, config: str, name: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        options = ["--superlink", f"127.0.0.1:{self.gate}", "--port", str(free_port())]
        if self._certificates is None:
            options.append("--insecure")
        else:
            options += ["--root-certificates", str(self._certificates.authority)]
            options += self._server_options()
        command = ["flower-supernode", *options, "--node-config", config]
        return self._popen(command, name, environment)

    def kill(self, number: int) -> None:
        """Pull a node's plug: it and all that it has started, at once."""
        for process in [self.nodes[number].pid, *descendants(self.nodes[number].pid)]:
            _signal(process, signal.SIGKILL)
        self.nodes[number].wait()

    def run(self, config: dict[str, Any], *, timeout: float = 600.0) -> dict[str, Any]:
        """Submit the app and wait for what its server says.

        Raises:
            RuntimeError: It cannot be submitted, or does not end in time.
        """
        result = self.submit(config)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if result.exists():
                return self.run_result(result)
            time.sleep(0.3)
        raise RuntimeError(f"no result after {timeout} s; the SuperLink says:\n{self.log('link')}")

    def submit(self, config: dict[str, Any]) -> Path:
        """Start a run; the file that its result will be in."""
        result = self.home / f"result-{secrets.token_hex(4)}.json"
        values = {**config, "result": str(result)}
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
        command = ["flwr", "run", str(self.app), "local", "--run-config", text]
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise RuntimeError(f"flwr run failed: {done.stdout}{done.stderr}")
        return result

    def run_result(self, path: Path) -> dict[str, Any]:
        """What a run's server has written into its file."""
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result

    def log(self, name: str, last: int = 4000) -> str:
        """The end of what a process has written."""
        path = self.home / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace")[-last:] if path.exists() else ""

    def processes(self) -> list[int]:
        """All processes that were started for this network: they have its Flower home."""
        mark, numbers = f"FLWR_HOME={self.home}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    numbers.append(int(folder.name))
            except OSError:  # it has ended, or is somebody else's
                continue
        return numbers

    def close(self) -> None:
        """End all of them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes():
                _signal(process, number)
            end = time.monotonic() + 5
            while self.processes() and time.monotonic() < end:
                time.sleep(0.1)
        for child in self._children:
            child.wait()
        for file in self._logs:
            file.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _start_link(self) -> None:
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--disable-runtime-dependency-installation"]
        connection: dict[str, object] = {"address": f"127.0.0.1:{self.port}"}
        if self._certificates is None:
            options.append("--insecure")
            connection["insecure"] = True
        else:
            options += self._server_options()
            connection["root-certificates"] = str(self._certificates.authority)
        lines = [f"{name} = {json.dumps(value)}" for name, value in connection.items()]
        text = "\n".join(['[superlink]\ndefault = "local"\n\n[superlink.local]', *lines, ""])
        (self.home / "config.toml").write_text(text, encoding="utf-8")
        self._link = self._popen(["flower-superlink", *options], "link")
        end = time.monotonic() + _STARTED
        while time.monotonic() < end:
            if self._link.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"the SuperLink does not answer; it says:\n{self.log('link')}")

    def _server_options(self) -> list[str]:
        certificates = self._certificates
        if certificates is None:
            return []
        files = {"ca-certfile": certificates.authority, "certfile": certificates.certificate,
                 "keyfile": certificates.key}  # fmt: skip
        return [word for name, path in files.items() for word in (f"--ssl-{name}", str(path))]

    def _popen(
        self, command: list[str], name: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        log = (self.home / f"{name}.log").open("ab")
        self._logs.append(log)
        child = subprocess.Popen(  # noqa: S603 - our own arguments
            command,
            env=environment or self._environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def _secret(self, name: str) -> Path:
        path = self.home / name
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32), encoding="ascii")
        return path

    def _identities(self, nodes: int) -> Path:
        """The public keys of all nodes, for secure sums: who they are is not the server's to say.

        Real nodes make their own identity, and have this list from somebody that all trust.
        """
        public = []
        for number in range(nodes):
            secret = self._secret(f"identity-{number}.key").read_text(encoding="ascii")
            public.append(SigningIdentity(bytes.fromhex(secret)).public.hex())
        path = self.home / "identities.txt"
        path.write_text("\n".join(public), encoding="ascii")
        return path

    def _helper_key(self) -> Path:
        """The helper's public key, which its operator hands out."""
        secret = self._secret("helper-secret.key").read_text(encoding="ascii")
        path = self.home / "helper.key"
        path.write_text(KeyPair(bytes.fromhex(secret)).public.hex(), encoding="ascii")
        return path


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def descendants(process: int) -> list[int]:
    """What a process has started, and what these have."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    started, todo = [], [process]
    while todo:
        children = parents.get(todo.pop(), [])
        started += children
        todo += children
    return started


def _signal(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def main() -> None:
    """Run the app once, and print what it says."""
    parser = argparse.ArgumentParser(description="Run the app on this machine.")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tls", action="store_true", help="encrypt, with certificates made here")
    parser.add_argument("--method", help="instead of the app's own")
    parser.add_argument("--settings", help="of the method: name=value, with spaces between")
    how = "the server sees the sum only: nodes hide it among themselves, or with a helper's node"
    parser.add_argument("--secure", choices=["one", "two"], help=how)
    options = parser.parse_args()
    config: dict[str, Any] = {"rounds": options.rounds, "nodes": options.nodes}
    for name in ("method", "settings"):
        if getattr(options, name) is not None:
            config[name] = getattr(options, name)
    if options.secure:
        config |= {"secure-sum": options.secure, "min-replies": options.nodes // 2 + 1}
    with LocalNetwork(options.nodes, tls=options.tls, helper=options.secure == "two") as network:
        result = network.run(config)
    rounds = result["rounds"]
    print(f"accuracy      {result['accuracy'][-1]:.1%} after {len(rounds)} rounds")
    for name, way in (("bytes_up", "up"), ("bytes_down", "down")):
        sizes = [report[name] for report in rounds]
        print(f"bytes {way:<8}{sum(sizes):,} ({', '.join(f'{size:,}' for size in sizes)})")
    print(f"seconds       {result['times'][-1] - result['times'][0]:.0f}")
    print(f"{result['epsilon']}\n{result['claim']}")


if __name__ == "__main__":
    main()
