"""Ids are equal where they must be, and different where they must be."""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np
import pytest

from pyspark_whippet import ids
from pyspark_whippet.errors import RowError

A, B = b"a", b"b"


def derived(*values: bytes, scope: bytes = b"s" * 16) -> list[bytes]:
    return [each.tobytes() for each in ids.DerivedIds(scope).for_rows(values, None, None)]


def test_ids_do_not_depend_on_the_order_of_rows() -> None:
    one, other = derived(A, B, A, A), derived(A, A, B, A)
    assert sorted(one) == sorted(other)
    assert len(set(one)) == 4
    assert not set(one) & set(derived(A, B, scope=b"t" * 16))


def test_ids_match_the_documentation() -> None:
    scope = ids.scope("query", "7", "0")
    said = blake2b(b"".join(struct.pack("<Q", len(each)) + each for each in (b"query", b"7", b"0")), digest_size=16)
    assert scope == said.digest()
    for n, found in enumerate(derived(A, A, scope=scope)):
        assert found == blake2b(scope + struct.pack("<Q", n) + b"a", digest_size=16).digest()


def test_headers_and_keys_count_for_the_id_of_a_row() -> None:
    maker = ids.DerivedIds(b"s" * 16)
    rows = [(b"", None), (b"h", None), (b"", b"h"), (b"k", b"h"), (b"h", b"k")]
    found = maker.for_rows([A] * 5, [block for block, _ in rows], [key for _, key in rows])
    assert len({each.tobytes() for each in found}) == 5
    assert found[0].tobytes() == derived(A)[0]


def test_a_new_generation_of_rows_repeats_no_id_and_keeps_the_memory_of_a_task_constant() -> None:
    rows = [b"%d" % (n % 700) for n in range(5000)]
    maker = ids.DerivedIds(b"s" * 16, generation_rows=1000)
    found = [
        each.tobytes() for part in range(0, 5000, 300) for each in maker.for_rows(rows[part : part + 300], None, None)
    ]
    assert len(set(found)) == 5000
    assert len(maker._seen) == 1000
    assert found[:1000] == derived(*rows[:1000])
    whole = ids.DerivedIds(b"s" * 16, generation_rows=1000).for_rows(rows, None, None)
    assert [each.tobytes() for each in whole] == found


def test_equal_rows_are_counted_across_batches_in_any_order() -> None:
    rows = [b"%d" % (n * n % 97) for n in range(3000)]
    one, other = ids.DerivedIds(b"s" * 16), ids.DerivedIds(b"s" * 16)
    found = [each.tobytes() for n in range(0, 3000, 70) for each in one.for_rows(rows[n : n + 70], None, None)]
    again = [each.tobytes() for each in other.for_rows(rows[::-1], None, None)]
    assert len(set(found)) == 3000
    assert set(found) == set(again)


def test_id_columns_give_the_same_id_in_any_job_and_types_count() -> None:
    assert (ids.from_columns("n", [[1], ["x"]]) == ids.from_columns("n", [[1], ["x"]])).all()
    values = [1, "1", b"1", None, True, 1.0, "n"]
    assert len({each.tobytes() for each in ids.from_columns("n", [values])}) == len(values)
    assert ids.from_columns("n", [["ab"], ["c"]]).tobytes() != ids.from_columns("n", [["a"], ["bc"]]).tobytes()


def test_string_ids_are_numbers_or_uuids() -> None:
    found = ids.from_strings(["1", "ff" * 16, "00000000-0000-0000-0000-000000000002", str(2**128 - 1)])
    assert [int.from_bytes(each.tobytes(), "big") for each in found] == [1, 2**128 - 1, 2, 2**128 - 1]
    for text in ("0", "", "x", str(2**128), "-1"):
        with pytest.raises(RowError, match="is not a valid id"):
            ids.from_strings([text])


def test_the_partition_is_the_id_modulo_the_number_of_partitions() -> None:
    some = ids.random(500)
    numbers = [int.from_bytes(each.tobytes(), "big") for each in some]
    for partitions in (1, 2, 3, 7, 1000, 2**32 - 1):
        assert ids.modulo(some, partitions).tolist() == [number % partitions for number in numbers]
    assert ids.modulo(np.full((1, 16), 255, dtype=np.uint8), 10).tolist() == [(2**128 - 1) % 10]
