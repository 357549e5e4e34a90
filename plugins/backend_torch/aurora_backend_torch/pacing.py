"""How often a request is given drafts, by how the last ones fared. Imports no torch.

    patience 3     x x x . x . . x . . . . x . . . . . . . . x
                   x  drafts, all of them rejected    .  none asked for

A drafter that has nothing to say about a text costs its time at every step of it. Whoever judges
versions learns that after some requests; this is for the steps until then, and for the one request
in many that is of another kind. As in the exponential backoff of networks, the pauses double; one
accepted draft ends them.

What is skipped depends on the committed tokens and earlier drafts alone, so the output stays the
target's own choice, and with sampled drafts its distribution.
"""

from __future__ import annotations

_LONGEST_PAUSE = 16
"""Steps. A text that becomes predictable again is noticed so soon, and a drafter finds the rows
that it missed in the window that the engine keeps for it."""


class Pacing:
    """Counts the drafts of one request that came to nothing, and says when to leave some out."""

    __slots__ = ("_left", "_missed", "_patience", "_pause")

    def __init__(self, patience: int) -> None:
        """
        Args:
            patience: steps in a row without an accepted draft before the first pause; 0 is never.
        """
        self._patience = patience
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was counted: another drafter serves."""
        self._missed, self._pause, self._left = 0, 1, 0

    def judge(self, num_accepted: int) -> None:
        """Count a step that had drafts.

        Args:
            num_accepted: of them.
        """
        if num_accepted:
            self.begin_anew()
            return
        self._missed += 1
        if self._patience and self._missed >= self._patience:
            self._left = self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def skips(self) -> bool:
        """Return whether the step that begins gets no drafts; call it once for each."""
        if not self._left:
            return False
        self._left -= 1
        return True
