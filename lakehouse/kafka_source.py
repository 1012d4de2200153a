"""How Spark reads records from Kafka, in streams and in one go."""

from __future__ import annotations


def source_options(bootstrap_servers: str) -> dict[str, str]:
    """Return the options with which Spark's Kafka source reads records of committed transactions."""
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        # A task reads only what is there, but the fetch that its consumer sends ahead finds nothing more, and
        # until the broker has answered that, by default after 500 ms, it answers no other question of it.
        "kafka.fetch.max.wait.ms": "10",
    }
