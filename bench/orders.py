"""Messages that resemble those of users: orders as JSON, which zstd compresses to about a quarter."""

from __future__ import annotations

import random

import msgspec

ORDER_BYTES = 1024
WORDS = ("order", "customer", "status", "shipped", "pending", "amount", "currency", "street", "city", "invoice")


def orders(count: int) -> list[bytes]:
    chance = random.Random(1)

    def order(number: int) -> bytes:
        items = [
            {
                "sku": f"SKU-{chance.randrange(10**8):08}",
                "price": chance.randrange(10**6) / 100,
                "tracking": f"{chance.getrandbits(56):014x}",
                "title": " ".join(chance.choices(WORDS, k=4)),
            }
            for _ in range(8)
        ]
        found = msgspec.json.encode({"id": number, "customer": chance.randrange(10**6), "items": items})
        return found[:ORDER_BYTES].ljust(ORDER_BYTES)

    return [order(number) for number in range(count)]
