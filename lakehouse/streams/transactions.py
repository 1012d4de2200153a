"""transactions: each user's total in every five-minute window.

    transactions-topic ── silver.transactions ── gold.user_transactions_5m ── aggregated-transactions, Redis

A record is {"userId", "amount", "timestamp"?}. Only an amount above zero is a transaction; any other record
is a dead letter. Amounts are exact decimals.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakehouse.messages.layout import Exact, Message, Millis, Plain, joined_key, key
from lakehouse.stream import (
    Contract,
    EventTimeProgress,
    Export,
    Field,
    FieldType,
    GoldTable,
    RedisView,
    Rule,
    Source,
    Stream,
)
from lakehouse.tables import described
from lakehouse.transforms import decimals
from lakehouse.transforms.windows import Tumbling

CONTRACT = Contract(
    fields=(
        Field("userId", "user_id", FieldType.STRING),
        Field("amount", "amount", FieldType.DECIMAL),
    )
)

WINDOWS = Tumbling(by=("user_id",), length_s=300)

SCHEMA = described(
    ("user_id", "string", "Whose transactions these are."),
    ("window_start", "timestamp", "Start of the window in event time, UTC; part of the window."),
    ("window_end", "timestamp", "End of the window, UTC; not part of the window."),
    ("total_amount", decimals.TYPE, "Sum of the amounts; null where decimal(38,9) does not hold it."),
    ("count", "long", "Number of transactions, at least one."),
)


def rules() -> tuple[Rule, ...]:
    """Return the rules for transactions."""
    amount = F.col("amount")
    message = F.concat(F.lit("amount must be above 0, not "), amount.cast("variant").cast("string"))
    return (Rule("not_positive", "amount", amount <= 0, message),)


SOURCE = Source("transactions-topic", "transactions", CONTRACT, rules)


def partial_windows(clean: DataFrame) -> DataFrame:
    """Return the total and count of each window over a micro-batch's clean rows, one row per key.

    Each task adds up its own rows before the shuffle. So a user with half of the traffic is as many rows as
    any other from then on.
    """
    return clean.groupBy("user_id", WINDOWS.start().alias("window_start")).agg(
        decimals.total_of_positive("amount").alias("total_amount"), F.count(F.lit(1)).alias("count")
    )


def fold_windows(partials: DataFrame, current: DataFrame, _progress: EventTimeProgress) -> DataFrame:
    """Return the windows that have new transactions, with these added."""
    columns = [*WINDOWS.keys, "total_amount", "count"]
    standing = current.select(*columns, F.lit(False).alias("more"))
    coming = partials.select(*columns, F.lit(True).alias("more"))
    return (
        standing.unionByName(coming)
        .groupBy(*WINDOWS.keys)
        .agg(
            F.bool_or("more").alias("more"),
            decimals.total_of_positive("total_amount").alias("total_amount"),
            F.sum("count").alias("count"),
        )
        .where("more")
        .withColumn("window_end", WINDOWS.end())
        .select(*SCHEMA.names)
    )


MESSAGE = Message(
    {
        "userId": Plain("user_id"),
        "windowStart": Millis("window_start"),
        "windowEnd": Millis("window_end"),
        "totalAmount": Exact("total_amount"),
        "count": Plain("count"),
    }
)


USER_TRANSACTIONS_5M = GoldTable(
    name="user_transactions_5m",
    comment="One row per user and five minutes of event time: the total of the transactions.",
    reads=("transactions",),
    keys=WINDOWS.keys,
    schema=SCHEMA,
    time_columns=("window_start", "window_start"),
    window_s=WINDOWS.length_s,
    preaggregate=partial_windows,
    fold=fold_windows,
    total="total_amount",
    export=Export(
        topic="aggregated-transactions",
        key=key(Plain("user_id")),
        identity=("windowStart",),
        value=MESSAGE,
        redis=RedisView(
            row_key=joined_key("user_id", Millis("window_start")),
            group=key("users"),
            member=key(Plain("user_id")),
            order=Millis("window_start"),
        ),
    ),
)

TRANSACTIONS = Stream(
    name="transactions",
    sources=(SOURCE,),
    gold=(USER_TRANSACTIONS_5M,),
)
