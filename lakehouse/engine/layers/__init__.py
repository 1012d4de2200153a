"""The layers bronze, silver, gold and export, as steps in a loop."""

from enum import StrEnum
from typing import Literal

LayerName = Literal["bronze", "silver", "gold", "export"]
LAYERS: tuple[LayerName, ...] = ("bronze", "silver", "gold", "export")


class Allow(StrEnum):
    """Actions that are refused unless the user allows them by name."""

    DATA_LOSS = "data-loss"
    RESEND = "resend"
