"""One question to each of some nodes, and their answers: what a secure sum needs of the grid."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from diffsketch.flower.records import (
    SUM_RECORD,
    SumReply,
    SumRequest,
    content_bytes,
)
from diffsketch.wire import WireError

__all__ = ["Exchange"]

_LOG = logging.getLogger("flwr.diffsketch")


class Exchange:
    """Counts what passes.

    Args:
        grid: The strategy's.
        timeout: Seconds that one question waits for its answers.

    Attributes:
        bytes_up: Sent by nodes so far, as Flower serialises it.
        bytes_down: Sent to nodes so far.
    """

    def __init__(self, grid: Grid, *, timeout: float) -> None:
        self.grid, self._timeout = grid, timeout
        self.bytes_up = self.bytes_down = 0

    def ask(self, requests: Mapping[int, SumRequest]) -> tuple[dict[int, SumReply], dict[int, str]]:
        """Send to each node what is for it, and wait.

        Returns:
            The first answer of each node that gave one; and why others did not, of those that
            said so. Who is in neither was silent.
        """
        messages = []
        for node, request in requests.items():
            content = RecordDict({SUM_RECORD: request.to_record()})
            self.bytes_down += content_bytes(content)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        found: dict[int, SumReply] = {}
        refused: dict[int, str] = {}
        for message in self.grid.send_and_receive(messages, timeout=self._timeout):
            node = message.metadata.src_node_id
            if node not in requests or node in found:
                _LOG.warning("secure sum: node %d was not asked, or has answered before", node)
                continue
            try:
                reply = self._read(message)
            except WireError as error:
                refused[node] = str(error)
                continue
            if reply.code:
                refused[node] = f"{reply.code}: {reply.reason}"
                continue
            refused.pop(node, None)
            found[node] = reply
        return found, refused

    def _read(self, message: Message) -> SumReply:
        if not message.has_content():
            raise WireError(f"error: {str(message.error.reason)[:1000]}")
        self.bytes_up += content_bytes(message.content)
        record = message.content.config_records.get(SUM_RECORD)
        if record is None:
            raise WireError("reply is not of a client with a secure sum")
        return SumReply.of(record)
