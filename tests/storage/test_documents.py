"""The documents of the catalogue as values."""

from __future__ import annotations

import msgspec

from whippet.storage.documents import TopicDocument
from whippet.storage.options import TopicOptions


def test_a_topic_document_without_the_optional_fields_promises_nothing_and_limits_nothing() -> None:
    brief = b'{"id":3,"name":"orders","created_at":7,"partitions_count":2}'
    assert msgspec.json.decode(brief, type=TopicDocument) == TopicDocument(
        id=3,
        name="orders",
        created_at=7,
        partitions_count=2,
        message_expiry=2**64 - 1,
        max_topic_size=2**64 - 1,
        compression_algorithm=1,
        replication_factor=1,
        options=TopicOptions(),
        removing=(),
        incarnations=(),
    )


def test_partitions_without_an_incarnation_have_the_first_one_also_after_others_were_added() -> None:
    document = TopicDocument(id=0, name="t", created_at=0, partitions_count=3, incarnations=(40,))
    more = document.with_partitions(2, 77)
    assert (more.partitions_count, more.incarnations) == (5, (40, 1, 1, 77, 77))
    assert [document.incarnation(i) for i in range(3)] == [more.incarnation(i) for i in range(3)] == [40, 1, 1]
