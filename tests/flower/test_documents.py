"""Examples of the documents with Flower."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.documents import DOCUMENTS, blocks, run_blocks

pytest.importorskip("flwr")
WITH_FLOWER = [document for document in DOCUMENTS if blocks(document, flower=True)]


@pytest.mark.parametrize("document", WITH_FLOWER)
def test_examples_run(document: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    monkeypatch.chdir(tmp_path)
    names = f"from {ClientApp.__module__} import ClientApp\nfrom {FedAvg.__module__} import FedAvg"
    run_blocks(document, [names, *blocks(document, flower=True)], monkeypatch)
