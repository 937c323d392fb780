"""Batches that crossed a socket between a real client and a server: V16 to V22 of the protocol page.

`(0*n)` means n zero bytes, as on that page.
"""

from __future__ import annotations

import re


def octets(text: str) -> bytes:
    return bytes.fromhex(re.sub(r"\(0\*(\d+)\)", lambda match: "00" * int(match[1]), text))


V16_SENT = octets(
    "(0*24)7274bca8896006008301000000000000902dd2d36921513102(0*207)8e5ca59edbbdbfb901(0*27)05(0*11)"
    "68656c6c6f52a225c709994eb402(0*15)01000000100000001800000006(0*11)776f726c642102010000006b020100"
    "00007602010000006e090100000005"
)
"""SendMessages of two messages, "hello" and "world!" with user headers: the batch of the worked example."""

V18_SENT = octets("(0*24)d975bca88960060031010000000000005dad8a6c411925a701(0*207)6198df06dea33aaa03(0*27)01(0*11)78")
"""SendMessages of one message, "x"."""

V20_STORED = (
    octets(
        "(0*16)3175bca8896006007274bca889600600830100000000000031b8ad51f3e7612f02(0*207)8e5ca59edbbdbfb9"
        "01(0*27)05(0*11)68656c6c6f52a225c709994eb402(0*15)01000000100000001800000006(0*11)776f726c642102"
        "010000006b02010000007602010000006e090100000005"
    ),
    octets(
        "(0*8)02(0*7)9a77bca8896006002d77bca88960060031010000000000009d6ffa6ab7144fc501(0*207)23ac40b78a"
        "d66bd104(0*27)01(0*11)79"
    ),
)
"""The response to a poll of that partition: V16 as it was stored, and a batch of one message, "y"."""

V22_SLICE = octets(
    "(0*16)3175bca8896006007274bca8896006004e010000000000000fc3d7f7b3fb833c01(0*207)52a225c709994eb4"
    "02(0*15)01000000100000001800000006(0*11)776f726c642102010000006b02010000007602010000006e09010000"
    "0005"
)
"""The response to a poll from offset 1 on: only the second message of V16."""
