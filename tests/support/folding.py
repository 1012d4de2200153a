"""`lakehouse.testing.folding` with settings, and with rows named as in `tests.support.pipeline`."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakehouse.settings import Settings
from lakehouse.streams.definition import Stream
from lakehouse.testing import folding
from tests.support import pipeline
from tests.support.pipeline import Row
from tests.support.streams import under


class Folding(folding.Folding):
    """A stream that has processed some micro-batches; the settings override those it was created with."""

    def __init__(self, spark: SparkSession, stream: Stream, settings: Settings) -> None:
        super().__init__(spark, under(settings, stream), settings.topic)

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a silver or gold table, or the dead letters, like `pipeline.rows_of`."""
        return [row.asDict(recursive=True) for row in pipeline.in_micros(self.frame(table)).collect()]
