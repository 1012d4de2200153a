"""Generate sample sales of 24 products, with returns and optional tombstones.

The first product sells the most. One product can be given a share of all sales, and the number of other
products can be set.

    samples(1000, spread_times(1000, end_ms=now, span_s=600), seed=1, shares=Shares(tombstones=0.001))

lakehouse.dev.samples.mixing lists the kinds of samples. Sales have one additional kind:

    tombstone       a null value under a product's key: accepted, resets the product's total to zero

The same arguments always give the same bytes.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from lakehouse.dev.samples import Sample, breaking
from lakehouse.dev.samples.mixing import NO_FAULTS, Shares, compact, in_turn, mix, require_share, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TOPICS = ("sales-events-v1",)
PRODUCTS = (
    *(f"product{number}" for number in range(1, 17)),
    "café crème",
    "jalapeño-dip",
    "smörgåstårta",
    "Käsespätzle",
    "抹茶",
    "борщ",
    "شاي",
    "🍕 large",
)
HOT_PRODUCT = "bestseller"

_RETURNS = 0.03
_WHOLE = 0.2


def samples(
    count: int,
    times_ms: Iterable[int],
    *,
    seed: int,
    shares: Shares = NO_FAULTS,
    hot_product: float = 0.0,
    products: float = 0,
) -> Iterator[Sample]:
    """Return an iterator over `count` samples, with one sample for each of `times_ms`.

    A tombstone's time is its Kafka timestamp. `hot_product` is the probability that a sale is of HOT_PRODUCT,
    which otherwise has no sales. If `products` is set, that many products take turns. Otherwise, products are
    chosen at random among the 24.

    Raises SettingsError for a probability outside 0 to 1.
    """
    require_share("hot product", hot_product, "all sales")
    rng = random.Random(seed)
    uniform = rng.random
    broken = breaking.Breaker(_BREAKAGES, shares.ahead_s)
    turns = in_turn(products)

    def pick() -> tuple[bytes, bytes]:
        if hot_product and uniform() < hot_product:
            return _HOT
        return _encoded(f"product{1 + next(turns)}") if products else _pick(uniform)

    def valid(time_ms: int) -> Sample:
        key, head = pick()
        return Sample(key, b'%b%b,"timestamp":%b}' % (head, _value(rng), stamp(time_ms, uniform)), "valid")

    def malformed_one(time_ms: int) -> Sample:
        product = PRODUCTS[int(uniform() * len(PRODUCTS))]
        record = {"product": product, "value": round(1 + 99 * uniform(), 2), "timestamp": time_ms}
        kind, value = broken(record)
        return Sample(_BAD_KEYS.get(kind, product.encode()), value, kind)

    def tombstone(time_ms: int) -> Sample:
        return Sample(pick()[0], None, "tombstone", timestamp_ms=time_ms)

    return mix(count, times_ms, rng, shares, valid=valid, malformed=malformed_one, tombstone=tombstone)


def _pick(uniform: Callable[[], float]) -> tuple[bytes, bytes]:
    return _HEADS[int(uniform() ** 2 * len(_HEADS))]


def _value(rng: random.Random) -> bytes:
    value = math.exp(rng.gauss(3.2, 0.9))
    chance = rng.random()
    if chance < _RETURNS:
        return b"-%.2f" % value
    if chance < _RETURNS + _WHOLE:
        return b"%d" % value
    return b"%.2f" % value


def _encoded(product: str) -> tuple[bytes, bytes]:
    return product.encode(), f'{{"product":{compact(product)},"value":'.encode()


_HEADS = tuple(map(_encoded, PRODUCTS))
_HOT = _encoded(HOT_PRODUCT)

# A null value is a tombstone for the product in the key, so a malformed tombstone has a bad key.
_KEYS = {
    "tombstone_key_null": None,
    "tombstone_key_not_utf8": b"caf\xe9",
    "tombstone_key_empty": b"",
}
_BAD_KEYS = {breaking.kind(name): key for name, key in _KEYS.items()}
_BREAKAGES: dict[str, breaking.Breakage] = {
    **breaking.of_the_message(text="product", number="value", words=("product", "value")),
    **breaking.of_a_name("product", "product"),
    **breaking.of_a_decimal("value"),
    **breaking.of_the_time(),
    **dict.fromkeys(_KEYS, lambda _: None),
}
MALFORMED_KINDS = breaking.kinds(_BREAKAGES)
"""All kinds of malformed samples, in the order in which a run cycles through them."""
