"""Secure sums: the server learns the sum of whole-number messages, and no single message.

The protocol of Bonawitz et al. (2017), *Practical Secure Aggregation for Privacy-Preserving Machine
Learning*, with two masks: every pair of members shares a mask that one adds and the other
subtracts, and each adds one of its own. Members hold shares of each other's secrets, so that the
masks of those who drop out can be removed. For more than about a hundred members, a second operator
takes the place of their exchanges: `diffsketch.secure_sum.one_shot`. `docs/secure-sum.md` says what
is proven and what is assumed, and shows how an engine carries the messages. Needs the extra
`secure`.
"""

from diffsketch.secure_sum.client import ReplyGuard, SecureSumClient
from diffsketch.secure_sum.messages import (
    Params,
    Stage,
    VoidError,
    accept,
    default_threshold,
    invite,
    stage_of,
)
from diffsketch.secure_sum.one_shot import (
    OneShotClient,
    OneShotHelper,
    OneShotLeader,
    OneShotParams,
)
from diffsketch.secure_sum.primitives import KeyPair, RefusedError, SigningIdentity
from diffsketch.secure_sum.server import SecureSumServer, Total
from diffsketch.wire.sums import CostlySum

__all__ = [
    "CostlySum", "KeyPair", "OneShotClient", "OneShotHelper", "OneShotLeader", "OneShotParams",
    "Params", "RefusedError", "ReplyGuard", "SecureSumClient", "SecureSumServer",
    "SigningIdentity", "Stage", "Total", "VoidError", "accept", "default_threshold", "invite",
    "stage_of",
]  # fmt: skip
