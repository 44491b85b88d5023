"""What the strategy knows of its run: the method, the model, the members, and the requests to them.

Made with the first model, when the length of the vectors is known.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from diffsketch.flower.history import Download, History
from diffsketch.flower.members import Members
from diffsketch.flower.plan import Plan
from diffsketch.flower.records import (
    NO_MODEL,
    RECORD,
    SUM_RECORD,
    Reply,
    Request,
    content_bytes,
)
from diffsketch.flower.refusals import Refusal, check_trust
from diffsketch.flower.vectors import cast_like, length_of, without_words
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods.release import check_release
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, ProvenClaim
from diffsketch.sketch import SketchKey
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import Message as WireMessage

__all__ = ["Desk"]

_LOG = logging.getLogger("flwr.diffsketch")
_ANY_SEED = HashSeed(bytes(32))  # the claims of methods that are sent do not depend on it


class Desk:
    """Of one strategy.

    Args:
        plan: The strategy's.
        arrays: The first model.
        key: The clients' common key, if the server has it.
        budget: Where to stop.
        trusted: Whether a claim under distributed trust may be used with the server's sums.
        keep_local: Names of arrays that clients keep to themselves.

    Raises:
        ArgumentError: The plan's claim cannot be held, or not be accounted for, here; or the model
            has running statistics that would be sent.
    """

    def __init__(
        self,
        plan: Plan,
        arrays: ArrayRecord,
        *,
        key: SketchKey | None,
        budget: Budget | None,
        trusted: bool,
        keep_local: frozenset[str] = frozenset(),
    ) -> None:
        self._key, self._series = key, secrets.token_bytes(8)
        dim = length_of(arrays, keep_local)
        self.method = plan.build(dim)  # of the next round
        self._clips: dict[int, float] = {}  # of rounds that were published
        self._plan, self._text = plan, plan.text(dim) + without_words(keep_local)
        planned = self.claim_of(plan.min_replies, 0)
        check_release(self.method, planned)
        name = self.method.name
        try:
            check_trust(planned, trusted_server=trusted)
        except Refusal as error:
            raise ArgumentError(f"method={name!r}: {error}") from error
        if budget is not None and not isinstance(planned, ProvenClaim):
            raise ArgumentError(
                "budget must not be given where nothing is proven: the epsilon of "
                f"method={name!r} is {planned.basis} here ({planned})"
            )
        self.members = Members(budget, planned)
        self.history = History(arrays, keyed=key is not None)

    @property
    def clip(self) -> float:
        """The next round's, for methods whose clip moves; else 0."""
        return self.method.round_clip or 0.0

    def claim_of(self, present: int, round_index: int) -> Claim:
        """Of a round with so many messages, without the noise of those that may be corrupt."""
        seed = _ANY_SEED if self._key is None else self._key.seed(round_index)
        return self._plan.claim_for(self.method, present, seed)

    def published(self, total: WireMessage) -> None:
        """A round's total was published: from now on the method is that of the next round."""
        self._clips[total.round_index] = self.clip
        self.method = self.method.after(total.cells, count=total.count)

    def fingerprint(self, round_index: int) -> bytes | None:
        """Of a round's hashes, if the server can know it."""
        return None if self._key is None else self._key.seed(round_index).fingerprint

    def chosen(self, messages: list[Message]) -> list[Message]:
        """As many as the method's cohort has room for: all, or some that are picked at random.

        All nodes have the same chance, in every round anew. No claim counts on the choice.

        Raises:
            ArgumentError: A node is asked twice.
        """
        nodes = [one.metadata.dst_node_id for one in messages]
        if len(set(nodes)) != len(nodes):
            raise ArgumentError(f"strategy must ask each node once in a round, got {sorted(nodes)}")
        cohort = self.method.most_messages or len(nodes)
        if len(nodes) <= cohort:
            return messages
        _LOG.warning("%d nodes, and a cohort of %d: not all are asked", len(nodes), cohort)
        picked = set(secrets.SystemRandom().sample(nodes, cohort))
        return [one for one in messages if one.metadata.dst_node_id in picked]

    def at(self, arrays: ArrayRecord) -> History:
        """The history, at these arrays."""
        if not self.history.holds(arrays):
            self.history.replaced(cast_like(arrays, self.history.arrays))
        return self.history

    def address(
        self,
        messages: list[Message],
        *,
        nonce: bytes,
        round_index: int,
        more: Mapping[int, ConfigRecord],
    ) -> tuple[str, int]:
        """Put into each message what its node needs instead of the arrays.

        Args:
            messages: The strategy's. Changed.
            nonce: That replies have to repeat.
            round_index: The round.
            more: What a secure sum tells its nodes.

        Returns:
            The name of the model's record, and the bytes of all messages.
        """
        name, size, known = "", 0, dict[int, int]()
        for message in messages:
            node, content = message.metadata.dst_node_id, message.content
            names = list(content.array_records)
            if len(names) != 1:
                raise MismatchError(
                    f"strategy must send one ArrayRecord, the model, got {len(names)}"
                )
            name = names[0]
            download = self.history.download(self.members.version_of(node))
            records = {key: one for key, one in content.items() if key != name}
            request = self._request(node, download, nonce=nonce, index=round_index, name=name)
            records[RECORD] = request.to_record()
            if node in more:
                records[SUM_RECORD] = more[node]
            if download.arrays is not None:
                records[name] = download.arrays
            message.content = RecordDict(records)
            size += content_bytes(message.content, known)
        return name, size

    def hear(self, node: int, reply: Reply) -> None:
        """A node has said who it is and what it has."""
        good = NO_MODEL <= reply.version <= self.history.version
        version = reply.version if good else NO_MODEL
        if reply.code == "model":
            version = NO_MODEL  # whatever it has, it cannot go on from there
        self.members.heard(node, member=reply.member, version=version, statement=reply.statement)

    def _request(
        self, node: int, download: Download, *, nonce: bytes, index: int, name: str
    ) -> Request:
        statement, known = self.members.statement_for(node)
        return Request(
            series=self._series,
            nonce=nonce,
            round_index=index,
            plan=self._text,
            key_check=self.fingerprint(0) or b"",
            arrays=name,
            base=download.base,
            version=download.version,
            first=download.first,
            totals=download.totals,
            rounds=download.rounds,
            digest=download.digest,
            statement=statement,
            known=known,
            clip=self._clips[download.rounds[0]] if download.rounds else self.clip,
        )
