"""Ten hospitals on this machine: a SuperLink, ten SuperNodes and the helper's, over TLS.

    python examples/hospitals/run.py

After the first round a hospital's plug is pulled, and after the second it is back. The budget ends
the run. As `examples/flower/local.py`, whose launcher it uses, it needs no network.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

APP = Path(__file__).parent
sys.path += [str(APP), str(APP.parent / "flower")]

from hospitals_app.task import PATIENTS  # noqa: E402
from local import LocalNetwork  # noqa: E402

from diffsketch.privacy import Account, Budget  # noqa: E402

KILLED = 3
LIMIT = Budget(8.0, delta=1e-5)  # of each hospital, in a file of its own: no server can move it
_LONGEST = 3600.0


def run_hospitals(config: dict[str, Any]) -> dict[str, Any]:
    """Run the app on a network, kill a hospital and start it again; what the server has written."""
    with LocalNetwork(len(PATIENTS), tls=True, helper=True, app=APP) as network:
        for number in range(len(PATIENTS)):
            Account.open(network.account(number), budget=LIMIT)
        result, told = network.submit(config), 0
        log = result.with_suffix(".log")
        end = time.monotonic() + _LONGEST
        while not result.exists() and time.monotonic() < end:
            time.sleep(0.3)
            lines = re.findall(r"round \d+ .*\n", log.read_text() if log.exists() else "")
            for line in lines[told:]:
                print(line, end="", flush=True)
                told += 1
                if told == 1:
                    print(f"hospital {KILLED}: killed", flush=True)
                    network.kill(KILLED)
                elif told == 2:  # with its own keys and account, under another node id
                    print(f"hospital {KILLED}: started again", flush=True)
                    network.nodes[KILLED] = network.start_node(KILLED)
        if not result.exists():
            raise SystemExit(f"no result; the SuperLink says:\n{network.log('link')}")
        paid = [Account.open(network.account(n)).epsilon(1e-5) for n in range(len(PATIENTS))]
        return {**network.run_result(result), "accounts": [str(epsilon) for epsilon in paid]}


def main() -> None:
    """Run it as it is, and print what it brought and cost."""
    outcome = run_hospitals({})
    print(f"ended: {outcome['ended']}")
    print(f"accuracy {outcome['accuracy'][-1]:.1%} (first weights: {outcome['accuracy'][0]:.1%})")
    print(f"a patient, as the server counts: {outcome['epsilon']}")
    print(f"a patient of hospital {KILLED}, by its own account: {outcome['accounts'][KILLED]}")


if __name__ == "__main__":
    main()
