"""Three sites in NVFlare's simulator, each with a budget of its own.

    python examples/nvflare/simulate.py [--rounds 30] [--budget 2] [--output FILE]

Prints, or writes as JSON, the accuracy of the last model and what each site has paid.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from aggregator import SketchAggregator  # noqa: E402
from task import SITES, Net, all_data  # noqa: E402

from diffsketch.privacy import Account  # noqa: E402


def run_sites(folder: Path, *, rounds: int, budget: float) -> dict[str, Any]:
    """Run the job in a folder; what has become of the model and the accounts."""
    recipe = FedAvgRecipe(
        name="silos", model=Net(), min_clients=SITES, num_rounds=rounds,
        train_script=str(HERE / "client.py"), train_args=f"--folder {folder} --budget {budget}",
        aggregator=SketchAggregator(),
    )  # fmt: skip
    run = recipe.execute(SimEnv(num_clients=SITES, workspace_root=str(folder)))
    result = Path(run.get_result())
    saved = torch.load(next(result.rglob("FL_global_model.pt")), weights_only=True)
    model, test = Net(), all_data().test
    model.load_state_dict(saved["model"])
    hits = model(test.inputs).argmax(1) == test.labels
    log = next((result / "server").rglob("log.txt")).read_text()
    accounts = [Account.open(folder / f"site-{site + 1}.json") for site in range(SITES)]
    return {
        "accuracy": float(hits.double().mean()),
        "rounds": re.findall(r"- (round .*)", log),
        "epsilon": [str(account.epsilon(1e-5)) for account in accounts],
    }


def main() -> None:
    """Run it in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--budget", type=float, default=2.0, help="of each site, at delta 1e-5")
    parser.add_argument("--output", type=Path, help="file for the outcome, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_sites(Path(folder), rounds=options.rounds, budget=options.budget)
    text = json.dumps(outcome, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
