"""Which strategies can be inside of a `SketchStrategy`: those that need one mean of all clients."""

from __future__ import annotations

from flwr.serverapp.strategy import Strategy

from diffsketch.errors import ArgumentError

__all__ = ["check_inside"]

_CHOOSES = (
    "it chooses among the clients' models, and a sum has none: use FedAvg, and leave messages that "
    "no honest client sends to SketchStrategy, which refuses them",
    ("Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg"),
)
_WEIGHS = (
    "it weighs clients by their losses, which are not sent: use FedAvg, or the importance of "
    "sketch_mod",
    ("QFedAvg",),
)
_CLIPS = (
    "it clips the clients' models or adds noise for their number, and would do so to one mean: use "
    "a plan with a private method, such as sketch-gaussian or sketch-skellam, around FedAvg",
    ("DifferentialPrivacyFixedClippingBase", "DifferentialPrivacyAdaptiveBase"),
)
_TREES = (
    "it collects trees, which have no mean: run it without SketchStrategy",
    ("FedXgbBagging", "FedXgbCyclic"),
)


def check_inside(strategy: Strategy) -> None:
    """Raise unless the strategy can work on one reply that stands for all.

    That is so for one whose `aggregate_train` depends on nothing but the mean of the clients'
    models and its own memory, as in FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad and FedYogi.
    Those of Flower for which it is not, and whatever derives from them or has one in its
    `strategy`, are refused; of others it cannot be told.

    Raises:
        ArgumentError: It is no strategy, or one of those.
    """
    if not isinstance(strategy, Strategy):
        kind = type(strategy).__name__
        raise ArgumentError(f"strategy must be a Strategy of flwr.serverapp, got {kind}")
    kinds = {
        kind.__name__ for kind in type(strategy).__mro__ if kind.__module__.startswith("flwr.")
    }
    for why, names in (_CHOOSES, _WEIGHS, _CLIPS, _TREES):
        if kinds.intersection(names):
            raise ArgumentError(
                f"strategy must work on one mean of all clients, got {type(strategy).__name__}: "
                f"{why}"
            )
    within = getattr(strategy, "strategy", None)
    if isinstance(within, Strategy):
        check_inside(within)
