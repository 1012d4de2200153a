"""Closing a transactional producer, and its errors, for everything that is sent in transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kafka import KafkaProducer
from kafka.errors import KafkaError, ProducerFencedError

from lakehouse.errors import ServiceError
from lakehouse.spark.query_errors import what_of


class FencedError(ServiceError):
    """Another producer now has the transactional id."""


@contextmanager
def reported(what: str, close: Callable[[], None], fenced: str) -> Iterator[None]:
    """Close the producer if the block fails, and translate Kafka's failures.

    Raises FencedError with the text `fenced` if another producer has taken over, and ServiceError for other
    failures of the broker.
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
    """Close a producer, whatever state the broker is in."""
    if producer is not None:
        with suppress(KafkaError):
            producer.close(timeout=5)


def _is_fenced(error: KafkaError) -> bool:
    """Tell whether another producer now has the transactional id; a later call hides that in its text."""
    return isinstance(error, ProducerFencedError) or ProducerFencedError.__name__ in str(error)
