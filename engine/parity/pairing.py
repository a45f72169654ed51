"""Which of our block contents is which of the engine's hashes."""

from __future__ import annotations

Content = int | tuple[int, int]
"""Key of a block; blocks of unknown content have negative keys that only a segment knows."""


class Pairing:
    """One-to-one pairing of our block contents with the engine's hashes; the first pairing of either holds.

    ``held`` is what the pool held before the recording began. The engine's hash of a content may be unknown there: then
    its eviction pairs the two.
    """

    def __init__(self, held: dict[int, int | None]) -> None:
        self._held = held
        self._theirs: dict[Content, int] = {}
        self._mine: dict[int, Content] = {}

    def agree(self, mine: Content, theirs: int) -> bool:
        """Pair the two unless one of them has another partner; whether they are partners."""
        return self._theirs.setdefault(mine, theirs) == theirs and self._mine.setdefault(theirs, mine) == mine

    def known(self, mine: Content, theirs: int) -> bool:
        """Whether the two are partners already."""
        if self._theirs.get(mine) == theirs and self._mine.get(theirs) == mine:
            return True
        if isinstance(mine, tuple) or mine not in self._held:
            return False
        return self._held[mine] == theirs or (self._held[mine] is None and self.agree(mine, theirs))

    def partner(self, mine: Content) -> int | None:
        """The engine's hash of our content, None where it has none to itself."""
        theirs = self._theirs.get(mine)
        if theirs is not None and self._mine[theirs] == mine:
            return theirs
        return None if isinstance(mine, tuple) else self._held.get(mine)
