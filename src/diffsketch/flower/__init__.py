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

from diffsketch.flower.account import Account
from diffsketch.flower.client import sketch_mod
from diffsketch.flower.following import followed
from diffsketch.flower.keys import find_client_key, find_sketch_key
from diffsketch.flower.plan import Plan
from diffsketch.flower.report import RoundReport
from diffsketch.flower.sealing import SecureSealing
from diffsketch.flower.secure import SecureSum
from diffsketch.flower.server import SketchStrategy
from diffsketch.flower.summing import PlainSum, Sealing, Summation, Summed

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
