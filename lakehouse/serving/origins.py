"""What every answer says of itself: its source, the version that it is of, and whether it is final."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """Where an answer comes from; both numbers are null where the table has not been made yet.

    `is_final`: nothing in it will change; null where nothing in it says so. `part` tells apart what the same
    address answers those who may see more.
    """

    source: str
    generation: int | None
    version: int | None
    is_final: bool | None = None
    part: str = ""

    @property
    def members(self) -> dict[str, Any]:
        """The members that every answer has."""
        stamp = {"source": self.source, "generation": self.generation, "version": self.version}
        return stamp | {"isFinal": self.is_final}

    @property
    def etag(self) -> str:
        """What changes when the answer may."""
        known = (self.source, self.generation, self.version, self.part or None)
        return f'"{"-".join(str(one) for one in known if one is not None)}"'
