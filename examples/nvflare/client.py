"""A site's script for NVFlare's Client API: it answers each round with one private message."""

from __future__ import annotations

import argparse
import logging
from functools import partial
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
from task import KEY, METHOD, Net, records_of

from diffsketch.privacy import Account, Budget, BudgetExceeded
from diffsketch.silos import RecordGradients, Records
from diffsketch.wire import Message


def answer(
    request: flare.FLModel, site: int, records: Records, gradients: RecordGradients,
    account: Account,
) -> flare.FLModel:  # fmt: skip
    """Charge the site's account, and make the message of a batch drawn in secret."""
    index = request.current_round
    weights = {name: torch.as_tensor(value) for name, value in request.params.items()}
    gradients.model.load_state_dict(weights)
    seed = KEY.seed(index)
    claim = METHOD.claim_for(1, seed)
    charge = partial(account.charge, claim)
    try:
        cells = records.message(gradients, METHOD, seed, claim, charge=charge)
    except BudgetExceeded:  # known before any record is looked at, so that it tells nothing
        return flare.FLModel(params={})
    about = {"round_index": index, "fingerprint": seed.fingerprint}
    message = Message(METHOD.message_format, cells, sender=site, **about)
    # Nothing else: no metric, and no number of examples.
    content = np.frombuffer(message.to_bytes(), np.uint8)
    return flare.FLModel(params_type="DIFF", params={"message": torch.from_numpy(content.copy())})


def main() -> None:
    """Answer until the server has no more rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="of the sites' accounts")
    parser.add_argument("--budget", type=float, required=True, help="epsilon, at delta 1e-5")
    options = parser.parse_args()
    flare.init()
    name = flare.get_site_name()
    # A line about a record that failed must not be in a log that NVFlare streams to the server.
    log = logging.getLogger("diffsketch")
    log.addHandler(logging.FileHandler(options.folder / f"{name}.log"))
    log.propagate = False
    site = int(name.rpartition("-")[2]) - 1  # site-1, site-2, ...
    records, gradients = records_of(site), RecordGradients(Net())
    account = Account.open(options.folder / f"{name}.json", budget=Budget(options.budget, 1e-5))
    while flare.is_running():
        request = flare.receive()
        if request is None:
            break
        flare.send(answer(request, site, records, gradients, account))


if __name__ == "__main__":
    main()
