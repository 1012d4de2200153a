"""transactions: each user's total in every five-minute window.

    transactions-topic ── silver.transactions ── gold.user_transactions_5m ── aggregated-transactions, Redis

A record is {"userId", "amount", "timestamp"?}. Only an amount above zero is a transaction; any other record
is a dead letter. Amounts are exact decimals.
"""

from __future__ import annotations

from lakehouse.streams.kinds import windowed_sums

TRANSACTIONS = windowed_sums(
    "transactions",
    "transactions-topic",
    by="userId",
    value="amount",
    length_s=300,
    gold="user_transactions_5m",
    to="aggregated-transactions",
    group="users",
    comment="One row per user and five minutes of event time: the total of the transactions.",
)
