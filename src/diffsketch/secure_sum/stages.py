"""The steps of a round."""

from __future__ import annotations

from enum import Enum

__all__ = ["Stage"]


class Stage(Enum):
    """What the server waits for; `CONSISTENCY` only where members sign."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    DONE = "done"
    VOID = "void"
