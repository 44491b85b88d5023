"""A secure sum: the server learns the sum of the members' whole-number messages, and no message.

The protocol of Bonawitz et al. (2017), *Practical Secure Aggregation for Privacy-Preserving Machine
Learning*, with two masks: every pair of members shares a mask that one adds and the other
subtracts, and each adds one of its own. Members hold shares of each other's secrets, so that the
masks of those who drop out can be removed. `docs/secure-sum.md` says what is proven, what is
assumed, and how an engine carries the messages.

* `params`, `stages`, `errors`: what a round is, its steps, and how it fails;
* `invitation`: how members hear of a round;
* `client`, `server`: the two state machines, without any input or output of their own;
* `once`: one reply for each stage, over several processes of a member;
* `own`: a member's secrets; `checks`: what both sides check; `masks`: what hides an input;
* `messages`: bytes and their parser; `shamir`: secrets from shares;
* `primitives`: the only importer of `cryptography`, which the extra `secure` installs.

Imports nothing of ours but `errors` and `wire`; engines may import it.
"""

from diffsketch.secure_sum.client import Client
from diffsketch.secure_sum.errors import RefusedError, VoidError
from diffsketch.secure_sum.invitation import accept, invite
from diffsketch.secure_sum.once import Once
from diffsketch.secure_sum.params import Params, default_threshold
from diffsketch.secure_sum.primitives import Identity
from diffsketch.secure_sum.server import Server, Total
from diffsketch.secure_sum.stages import Stage

__all__ = [
    "Client",
    "Identity",
    "Once",
    "Params",
    "RefusedError",
    "Server",
    "Stage",
    "Total",
    "VoidError",
    "accept",
    "default_threshold",
    "invite",
]
