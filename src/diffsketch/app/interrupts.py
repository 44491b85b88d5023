"""Ctrl-C and SIGTERM as a question that is asked between rounds, so that no round is cut in two."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While it is open, the first signal is noted and the second acts as it did before.

    Guarantees (`tests/app/test_interrupts.py`): handlers are as before afterwards. Outside of the
    main thread, where Python handles no signals, nothing is changed.

    Attributes:
        signal: The number of the signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    @property
    def exit_status(self) -> int:
        """What a program returns that a signal has ended: 130 for Ctrl-C."""
        return 128 + self.signal if self.signal is not None else 0

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
