"""The layers bronze, silver, gold and export, as steps in a loop."""

from enum import StrEnum


class Allow(StrEnum):
    """Actions that are refused unless the user allows them by name."""

    DATA_LOSS = "data-loss"
    RESEND = "resend"
