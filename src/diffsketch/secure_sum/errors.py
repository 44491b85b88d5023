"""What is wrong with a message or with a round."""

from __future__ import annotations

from collections.abc import Mapping

from diffsketch.errors import DiffSketchError
from diffsketch.secure_sum.stages import Stage
from diffsketch.wire.formats import WireError

__all__ = ["RefusedError", "VoidError"]


class RefusedError(WireError):
    """A message is refused. Its one line says why; nothing was changed and nothing is sent."""


class VoidError(DiffSketchError):
    """The round is void: there is no sum of it, and there will be none.

    Attributes:
        stage: In which it failed.
        dropped: Members that fell silent, and the stage in which each did.
        unreadable: Members whose shares some others could not read, and who these are.
        wrong: Members whose shares do not fit what they promised, and who gave these shares.
    """

    def __init__(
        self,
        reason: str,
        *,
        stage: Stage,
        dropped: Mapping[int, Stage],
        unreadable: Mapping[int, tuple[int, ...]] | None = None,
        wrong: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.stage, self.dropped = stage, dict(dropped)
        self.unreadable, self.wrong = dict(unreadable or {}), dict(wrong or {})
        who = ", ".join(f"{index} ({stage.value})" for index, stage in sorted(dropped.items()))
        super().__init__(
            f"the round is void: {reason}, in stage {stage.value}; dropped: {who or 'nobody'}"
        )
