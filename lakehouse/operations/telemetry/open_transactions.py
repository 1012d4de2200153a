"""Open transactions of producers.

Read-committed consumers stop before the first record of an open transaction, and so also miss later records
of other producers.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.operations.telemetry.delta_log import from_ms
from lakehouse.operations.telemetry.values import OpenTransaction
from lakehouse.storage.kafka.clients import Admin, KafkaError, OffsetSpec, TopicPartition
from lakehouse.storage.tables.specs import EPOCH


def open_transactions(
    admin: Admin, stable: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OpenTransaction]:
    """Return the oldest open transaction of each partition whose last stable offset is behind its end.

    Raises KafkaError if the broker cannot describe producers; brokers can since version 2.8.
    """
    written = admin.list_partition_offsets(dict.fromkeys(stable, OffsetSpec.LATEST))
    hidden = {one: written[one].offset - end for one, end in stable.items() if written[one].offset > end}
    found = {}
    for partition, state in admin.describe_producers(hidden).items():
        writing = [one for one in state.active_producers if one.current_transaction_start_offset >= 0]
        if writing:  # else the transaction has ended meanwhile
            first = min(writing, key=lambda one: one.current_transaction_start_offset)
            name, since_ms = _described(admin, first.producer_id) or (
                f"with the id {first.producer_id}",
                first.last_timestamp,
            )
            since = from_ms(since_ms) or EPOCH  # a producer's timestamp may be out of range
            found[partition] = OpenTransaction(hidden[partition], name, since)
    return found


def _described(admin: Admin, producer_id: int) -> tuple[str, int] | None:
    """Return a producer's transactional id and its transaction's start in ms; null if unavailable."""
    try:
        listed = admin.list_transactions(producer_id_filters=[producer_id])
        names = [one.transactional_id for of_broker in listed.values() for one in of_broker]
        for name, told in admin.describe_transactions(names).items():
            if told.transaction_start_time_ms >= 0:
                return str(name), int(told.transaction_start_time_ms)
    except KafkaError:
        pass
    return None
