"""`lakehouse demo`, which runs all streams end to end on local services and checks the results."""

from collections.abc import Mapping

EVENTS: Mapping[str, int] = {"metrics": 100_000, "calls": 20_000, "sales": 20_000, "transactions": 20_000}
"""The number of events that the demo sends, by stream."""
