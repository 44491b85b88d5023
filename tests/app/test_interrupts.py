"""Signals: the first is noted, the second acts, and all is as before afterwards."""

from __future__ import annotations

import signal
import threading

import pytest

from diffsketch.app.session import Interrupts


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_first_signal_is_noted(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert (interrupts.signal, interrupts.exit_status) == (None, 0)
        signal.raise_signal(number)
        assert (interrupts.signal, interrupts.exit_status) == (number, status)
        assert signal.getsignal(number) == before  # so that a second one acts
    assert signal.getsignal(number) == before


def test_second_interrupt_acts() -> None:
    # A shell starts what it runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts(), pytest.raises(KeyboardInterrupt):  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_are_left_alone() -> None:
    def enter() -> None:
        with Interrupts() as interrupts:
            assert interrupts.signal is None

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
