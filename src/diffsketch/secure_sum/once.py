"""What a member has answered, in files: so that no other process of it answers otherwise.

A `Client` refuses a second answer because it remembers the first. Two processes that start from the
same saved state do not know of each other, and nor does one that starts from an older state: both
could be asked for what must not be given together. Files in one directory they have in common.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from diffsketch.secure_sum.errors import RefusedError
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.stages import Stage

__all__ = ["Once"]


class Once:
    """One reply for each stage of a round, whichever process of the member gives it.

    A file for each stage of a round is made, which only one process can do, and has a digest of
    the reply. It is of a few bytes and says nothing about secrets. Files of rounds that are over
    may be removed while none of the member's processes runs.

    Guarantees (`tests/secure_sum/test_once.py`): of several processes with different replies, one
    may send its own.

    Args:
        directory: The member's own, and the same in all of its processes. Made if it is not there.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def bind(self, reply: bytes, stage: Stage, *, index: int, params: Params) -> None:
        """Settle that this is the reply. To be called before it is sent.

        Raises:
            RefusedError: There is another one already.
            OSError: The file cannot be written.
        """
        digest = hashlib.sha256(reply).hexdigest()
        about = params.context + index.to_bytes(8, "little")
        path = self._directory / f"{hashlib.sha256(about).hexdigest()[:32]}-{stage.value}"
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="ascii") as stream:  # made by this process, or an error
                stream.write(digest)
        except FileExistsError:
            # Of a process that has just made it there may be nothing to read: that is another one.
            if path.read_text(encoding="ascii") != digest:
                raise RefusedError(
                    f"another process of member {index} has replied in stage {stage.value}, and "
                    "otherwise: only one reply is given"
                ) from None
