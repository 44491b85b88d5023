"""Flower: the messages of a round are summed by a Flower server.

Two lines in any app of Flower's Message API (flwr >= 1.41):

    app = ClientApp(mods=[sketch_mod(plan)])                       in the client's
    strategy = SketchStrategy(FedAvg(...), plan, key=key)          in the server's

`client` and `server` are the two sides; `records` is what they write into each other's messages,
`plan` what they agree on, `vectors` how arrays become one vector and back. `account`, `books` and
`memory` are what a client knows and pays; `members` and `history` are the server's record of its
clients and of the model; `summing` is the seam where a secure sum goes in: `secure` and `sealing`
are its two sides, `exchange` is how they talk.

The only place that imports `flwr`; needs `pip install 'diffsketch[flower]'`.
"""

from diffsketch.flower.accounts import Account
from diffsketch.flower.aggregation import PlainSum, Sealing, Summation, Summed
from diffsketch.flower.client import followed, sketch_mod
from diffsketch.flower.plan import Plan, find_client_key, find_sketch_key
from diffsketch.flower.secure import SecureSealing, SecureSum
from diffsketch.flower.server import RoundReport, SketchStrategy

__all__ = [
    "Account",
    "PlainSum",
    "Plan",
    "RoundReport",
    "Sealing",
    "SecureSealing",
    "SecureSum",
    "SketchStrategy",
    "Summation",
    "Summed",
    "find_client_key",
    "find_sketch_key",
    "followed",
    "sketch_mod",
]
