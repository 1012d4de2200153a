"""A transactional producer's end and its errors, for whatever leaves in transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kafka import KafkaProducer
from kafka.errors import KafkaError, ProducerFencedError

from lakehouse.errors import ServiceError
from lakehouse.spark.query_errors import what_of


class FencedError(ServiceError):
    """Another producer has the transactional id now."""


@contextmanager
def reported(what: str, close: Callable[[], None], fenced: str) -> Iterator[None]:
    """Close the producer where the block fails, and say what a failure of Kafka's is.

    Raises FencedError, which says `fenced`, where another producer has taken over, and ServiceError for what
    else the broker does.
    """
    try:
        yield
    except KafkaError as error:
        close()
        if _is_fenced(error):
            raise FencedError(fenced) from error
        raise ServiceError(f"{what} failed: {what_of(error)}") from error
    except BaseException:
        close()
        raise


def let_go(producer: KafkaProducer | None) -> None:
    """Close a producer, however the broker is."""
    if producer is not None:
        with suppress(KafkaError):
            producer.close(timeout=5)


def _is_fenced(error: KafkaError) -> bool:
    """Tell whether another producer has the transactional id now; a later call hides that in its text."""
    return isinstance(error, ProducerFencedError) or ProducerFencedError.__name__ in str(error)
