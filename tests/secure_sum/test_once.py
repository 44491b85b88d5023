"""Of several processes of a member, one answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diffsketch.secure_sum import Client, Once, RefusedError, Stage
from tests.secure_sum.playing import make_params, start
from tests.secure_sum.test_client import fates

PARAMS = make_params()


def test_the_same_reply_may_be_given_again(tmp_path: Path) -> None:
    once = Once(tmp_path / "new" / "one")
    for _ in range(2):
        once.bind(b"reply", Stage.KEYS, index=1, params=PARAMS)
    with pytest.raises(RefusedError, match="another process of member 1 has replied in stage keys"):
        Once(tmp_path / "new" / "one").bind(b"other", Stage.KEYS, index=1, params=PARAMS)


def test_other_stages_members_and_rounds_are_their_own(tmp_path: Path) -> None:
    once = Once(tmp_path)
    once.bind(b"1", Stage.KEYS, index=1, params=PARAMS)
    once.bind(b"2", Stage.SHARES, index=1, params=PARAMS)
    once.bind(b"3", Stage.KEYS, index=2, params=PARAMS)
    once.bind(b"4", Stage.KEYS, index=1, params=make_params(round_index=6))
    once.bind(b"5", Stage.KEYS, index=1, params=make_params(run=b"yet another run!"))
    assert len(list(tmp_path.iterdir())) == 5


def test_one_of_many_at_once(tmp_path: Path) -> None:
    def bound(number: int) -> bool:
        try:
            Once(tmp_path).bind(b"%d" % number, Stage.UNMASK, index=1, params=PARAMS)
        except RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(bound, range(64))) == 1


def test_two_processes_from_the_same_state(tmp_path: Path) -> None:
    """One is told that 4 is in the sum, the other that it dropped out."""
    played = start(PARAMS).until(Stage.UNMASK)
    saved = played.clients[1].save()
    replies = [
        Client.restore(saved, 1, params=PARAMS).unmask(fates(PARAMS, *gone)) for gone in ((), (4,))
    ]  # both answer: that is why one of the answers must not leave
    once = Once(tmp_path)
    once.bind(replies[0], Stage.UNMASK, index=1, params=PARAMS)
    with pytest.raises(RefusedError, match="otherwise: only one reply is given"):
        once.bind(replies[1], Stage.UNMASK, index=1, params=PARAMS)
