"""Work in several processes that end together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import TypeVar

from diffsketch.errors import DiffSketchError
from diffsketch.methods.gate import NonFiniteUpdate

Tell = Callable[[float], None]  # told the share of an item that is done
Stop = Callable[[], bool]  # asked now and then whether to interrupt
Watch = Callable[[Sequence[float]], None]  # told the share of each that is done
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_LOOK_SECONDS = 0.25
_BEGUN = 1e-9  # the share of an item that is begun: not zero


class PoolBroken(DiffSketchError):  # noqa: N818 - it says what happened
    """A process that did a part of the work is gone."""


def run_all(
    work: Callable[..., _Result],
    items: Sequence[_Item],
    *,
    processes: int,
    watch: Watch,
    stop: Stop,
) -> list[_Result]:
    """Do the work with each item, the first ones first.

    One process is this one. Several are new ones that ignore Ctrl-C, since the parent decides
    what it means, and that end with their parent, however it ends.

    Guarantees (`tests/app/test_compare.py`): results are in the order of the items, the same for
    any number of processes.

    Args:
        work: Function of a module, called with each item, `tell` and `stop`. After `stop` says so
            it returns something that stands for an item that is not done. If it raises an error,
            nothing new is begun.
        items: Sent to the processes.
        processes: At a time.
        watch: Called now and then while the work goes on.
        stop: Asked now and then.
    """
    if min(processes, len(items)) <= 1:
        return _in_this_process(work, items, watch, stop)
    # Not forked: threads of PyTorch and Numba do not survive that.
    context = multiprocessing.get_context("spawn")
    # Shared memory instead of queues: a share may be lost, and nobody waits for it.
    event = context.Event()
    shares = context.Array("d", len(items), lock=False)  # zeros
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_enter_process, initargs=(event, shares)
    ) as pool:
        futures = [pool.submit(_in_process, work, item, index) for index, item in enumerate(items)]
        waiting: set[Future[_Result]] = set(futures)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                watch(list(shares))
                if stop():
                    event.set()
            return [future.result() for future in futures]
        except BaseException as error:
            event.set()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise PoolBroken("a process that did a part of the work was ended") from error
            raise


def _in_this_process(
    work: Callable[..., _Result], items: Sequence[_Item], watch: Watch, stop: Stop
) -> list[_Result]:
    shares, results = [0.0] * len(items), []
    for index, item in enumerate(items):

        def tell(share: float, index: int = index) -> None:
            shares[index] = max(share, _BEGUN)
            watch(shares)

        tell(0.0)
        results.append(work(item, tell=tell, stop=stop))
        tell(1.0)
    return results


_stopped: Event | None = None  # in a process of the pool: set when the work is interrupted
_shares: MutableSequence[float] = []  # shared with the parent


def _enter_process(event: Event, shares: MutableSequence[float]) -> None:
    global _stopped, _shares  # how a pool hands something to its processes
    # Globals of the process, since work is a function of a module and takes only its item.
    _stopped, _shares = event, shares
    # The parent decides: Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _in_process(work: Callable[..., _Result], item: _Item, index: int) -> _Result:
    def tell(share: float) -> None:
        _shares[index] = max(share, _BEGUN)

    def stop() -> bool:
        return _stopped is not None and _stopped.is_set()

    with warnings.catch_warnings():
        # Their lines would get into each other; a run counts the vectors that it leaves out.
        warnings.simplefilter("ignore", NonFiniteUpdate)
        tell(0.0)
        result = work(item, tell=tell, stop=stop)
        tell(1.0)
        return result
