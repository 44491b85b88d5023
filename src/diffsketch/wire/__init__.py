"""Messages as bytes: a header (48 bytes, or 2 or 4 in an agreed round), and packed cells.

`Message` is what travels, and `Inbox` collects and sums the messages of a round. What arrives is
taken apart with `struct` and NumPy and never unpickled; what is not exactly as expected is refused
with a `WireError`. The checksum finds accidents: nothing here says who sent a message, or hides
what is in it. That is the transport's part.
"""

from diffsketch.wire.inbox import Inbox
from diffsketch.wire.message import (
    HEADER_BYTES,
    SERVER,
    VERSION,
    Cells,
    DuplicateError,
    Header,
    Message,
    MessageFormat,
    WireError,
)

__all__ = [
    "HEADER_BYTES", "SERVER", "VERSION", "Cells", "DuplicateError", "Header", "Inbox", "Message",
    "MessageFormat", "WireError",
]  # fmt: skip
