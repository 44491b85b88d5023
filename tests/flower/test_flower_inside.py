"""Strategies that need single clients' replies are refused, and those that need a mean are not."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SketchStrategy

PLAN = FlowerPlan("sketch", {"rows": 3, "cols": 16})


class OwnKrum(flower.Krum):
    """Of somebody who changed a line."""


class OwnWrapper(FedAvg):
    """A wrapper that this package knows nothing of."""

    def __init__(self, inside: Strategy) -> None:
        super().__init__()
        self.strategy = inside


ADDED = (0.5, 1.0, 4)
REFUSED = {
    "Krum": flower.Krum(num_malicious_nodes=1),
    "MultiKrum": flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2),
    "Bulyan": flower.Bulyan(num_malicious_nodes=1),
    "FedMedian": flower.FedMedian(),
    "FedTrimmedAvg": flower.FedTrimmedAvg(),
    "QFedAvg": flower.QFedAvg(client_learning_rate=0.1),
    "FedXgbBagging": flower.FedXgbBagging(),
    "FedXgbCyclic": flower.FedXgbCyclic(),
    "DifferentialPrivacyServerSideFixedClipping": (
        flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), *ADDED)
    ),
    "DifferentialPrivacyClientSideFixedClipping": (
        flower.DifferentialPrivacyClientSideFixedClipping(FedAvg(), *ADDED)
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": (
        flower.DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.5, 100)
    ),
    "DifferentialPrivacyClientSideAdaptiveClipping": (
        flower.DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 0.5, 100)
    ),
    "OwnKrum": OwnKrum(num_malicious_nodes=1),
}
FINE = {"FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi"}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_with_what_to_use_instead(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"got {name}: it .*: (use|run) "):
        SketchStrategy(REFUSED[name], PLAN)


def test_refused_inside_of_another() -> None:
    with pytest.raises(ArgumentError, match="got FedMedian"):
        SketchStrategy(OwnWrapper(flower.FedMedian()), PLAN)
    assert SketchStrategy(OwnWrapper(FedAvg()), PLAN)


@pytest.mark.parametrize("name", sorted(FINE))
def test_those_that_need_a_mean_are_not(name: str) -> None:
    options = {"proximal_mu": 0.1} if name == "FedProx" else {}
    assert SketchStrategy(getattr(flower, name)(**options), PLAN)


def test_all_strategies_of_flower_are_known() -> None:
    """A new version of Flower has a look taken at what it brings."""
    kinds = {
        name
        for name in flower.__all__
        if issubclass(getattr(flower, name), Strategy) and name != "Strategy"
    }
    assert kinds == FINE | (REFUSED.keys() - {"OwnKrum"})


def test_no_strategy_at_all() -> None:
    with pytest.raises(ArgumentError, match=r"must be a Strategy of flwr\.serverapp, got str"):
        SketchStrategy("FedAvg", PLAN)
