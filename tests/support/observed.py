"""An observation of a stream that has a value for everything that is exposed as a metric."""

from __future__ import annotations

from lakehouse.common.errors import StoreWord
from lakehouse.operations.telemetry import (
    Audit,
    EventTimes,
    Health,
    LayerLag,
    Observation,
    PartitionLag,
    QueryState,
    Refused,
    Run,
    StoreState,
    StreamGate,
    StreamState,
    TableState,
    Word,
)
from tests.support import pipeline

AT = pipeline.utc("1970-01-02T00:00:00")
OBSERVATION = Observation(
    AT,
    (
        StreamState(
            name="sales",
            health=Health(Word.BLOCKED, "gate closed: a", AT),
            partitions=(
                PartitionLag("sales", 0, 3, 10, 7, 1.5),
                PartitionLag("sales", 1, 3, None, None, None, "away"),
            ),
            layers=(LayerLag("silver", "silver.sales_events", "bronze.sales_events", 0, 0.0, 0),),
            tables=(TableState("gold.product_sales", 4, AT, 2, 300, None),),
            queries=(
                QueryState("gold.product_sales", "gold", 4, AT, 300),
                QueryState(
                    "export.product_sales",
                    "export",
                    4,
                    AT,
                    stores=(StoreState("redis", StoreWord.FULL, "no room", AT),),
                ),
            ),
            event_times=(EventTimes("silver.sales_events", AT, pipeline.utc("1970-01-01T00:00:10")),),
            open_letters=2,
            gate=StreamGate(is_open=False, changed_at=AT, reasons=("a",)),
            newest_event=AT,
            freshness_s=0.25,
            runs=(Run("here", 7, ("gold",), ("sales",), AT, AT, None),),
            audit=Audit(pipeline.utc("1970-01-01T23:00:00"), is_clean=False),
            refused=(Refused("silver.sales_events", AT, 2000, 500, 0.05, is_over=True),),
        ),
    ),
    broker_reason="away",
)
