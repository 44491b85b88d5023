"""Flower engine: a Flower server sums the messages of a round. Needs the extra `flower`.

Two lines in any app of Flower's Message API (flwr >= 1.41):

    app = ClientApp(mods=[sketch_mod(plan)])                       in the client's
    strategy = SketchStrategy(FedAvg(...), plan, key=key)          in the server's
"""

try:
    from diffsketch.flower.aggregation import RoundReport
    from diffsketch.flower.client import SiloReply, sketch_mod
    from diffsketch.flower.keys import find_sketch_key
    from diffsketch.flower.plan import FlowerPlan
    from diffsketch.flower.records import replay_totals
    from diffsketch.flower.secure_client import SecureClientAggregation
    from diffsketch.flower.secure_server import SecureAggregation, TwoAggregators
    from diffsketch.flower.server import SketchStrategy
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "flwr":
        raise
    raise ModuleNotFoundError(
        "diffsketch.flower needs the extra flower: in the clone of diffsketch, run "
        'python -m pip install ".[flower,secure]"',
        name="flwr",
    ) from None

__all__ = [
    "FlowerPlan", "RoundReport", "SecureAggregation", "SecureClientAggregation", "SiloReply",
    "SketchStrategy", "TwoAggregators", "find_sketch_key", "replay_totals", "sketch_mod",
]  # fmt: skip
