"""The table of errors: every number has one name and one row, and the store's failures all have a number."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from whippet.app import errors
from whippet.app.errors import TABLE, Code, CommandError
from whippet.storage import errors as storage_errors
from whippet.storage.archive.archiver import DiskIsFull
from whippet.storage.errors import (
    BatchFault,
    DiskError,
    InvalidBatch,
    ProducerFenced,
    SequenceForgotten,
    SequenceGap,
    SequencePassed,
    StorageError,
    TooManyOffsets,
    TopicFull,
    UnknownProducer,
)


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    assert list(TABLE) == list(Code)


def test_numbers_and_names_are_unique() -> None:
    assert len(Code.__members__) == len(set(Code))
    assert len({row.name for row in TABLE.values()}) == len(TABLE)


@pytest.mark.parametrize("code", Code)
def test_a_row_has_the_name_of_its_code_and_its_own_words(code: Code) -> None:
    row = TABLE[code]
    assert row.name == code.name.lower()
    assert row.more == "" or row.more.endswith(".")
    text = str(CommandError(code))
    assert text[0].isupper()
    assert [other.name for other in TABLE if str(CommandError(other)) == text] == [code.name]
    # A sentence of its own stands alone where Iggy's is unknown, and follows a colon where it is known.
    stands_alone = not row.words or "{}" in row.words
    assert row.more[:1].isupper() == stands_alone


@pytest.mark.parametrize("code", [code for code in Code if "{}" in TABLE[code].words])
def test_iggys_words_have_a_place_for_each_parameter(code: Code) -> None:
    places = TABLE[code].words.count("{}")
    about = [f"<{number}>" for number in range(places)]
    text = str(CommandError(code, about=about))
    assert all(each in text for each in about)
    assert "{" not in text
    assert TABLE[code].more not in text


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (CommandError(Code.TOO_MANY_PARTITIONS), "Too many partitions"),
        (CommandError(Code.TOO_MANY_PARTITIONS, "1 to 5"), "Too many partitions: 1 to 5"),
        (CommandError(Code.UNAUTHENTICATED), "Unauthenticated: log in first."),
        (CommandError(Code.STREAM_NAME_ALREADY_EXISTS, about=("{}",)), "Stream with name: {} already exists."),
        (CommandError(Code.STREAM_ID_NOT_FOUND), "There is no such stream."),
        (
            CommandError(Code.STREAM_ID_NOT_FOUND, "it is gone", about=(7,)),
            "Stream with ID: 7 was not found: it is gone",
        ),
        (CommandError(Code.PRODUCER_FENCED), "A producer with the same id and a higher epoch has replaced it."),
    ],
)
def test_an_error_begins_with_iggys_words_and_adds_the_detail(refused: CommandError, text: str) -> None:
    assert str(refused) == text
    again = pickle.loads(pickle.dumps(refused))
    assert (again.code, str(again), again.about, again.detail) == (refused.code, text, refused.about, refused.detail)


def test_http_statuses_are_those_of_the_reference() -> None:
    by_status: dict[int, set[int]] = {}
    for code, row in TABLE.items():
        by_status.setdefault(row.status, set()).add(code)
    assert by_status.pop(400)
    assert by_status == {
        401: {40, 53, 77, 78},
        403: {41, 4108},
        404: {20, 100, 1009, 2010, 3007, 3021, 4000, 5000, 5003, 5006},
        # Not Iggy's: clients get these if they number their sends, or name the incarnation of a partition.
        409: {59, 85, 87, 92, 93, 94, 20002, 20003},
        # Not the reference's either. Over the binary protocols they have other numbers, or do not occur.
        429: {90, 20010, 20011},
        503: {57, 58, 20014},
        507: {20013},
    }


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (BatchFault.LENGTH, 4036),
        (BatchFault.COUNT, 4009),
        (BatchFault.RESERVED, 4101),
        (BatchFault.DELTA, 3),
        (BatchFault.EMPTY_PAYLOAD, 4024),
        (BatchFault.PAYLOAD_LIMIT, 4022),
        (BatchFault.USER_HEADERS_LIMIT, 4017),
        (BatchFault.BATCH_LIMIT, 4036),
        (BatchFault.TIME_SPAN, 4038),
        (BatchFault.FRAME_CHECKSUM, 4027),
        (BatchFault.BATCH_CHECKSUM, 4039),
    ],
)
def test_a_refused_batch_has_the_error_number_of_its_fault(fault: BatchFault, number: int) -> None:
    error = errors.of_storage(InvalidBatch(fault, "it is wrong", 3))
    assert (error.code, error.detail) == (number, "message 3: it is wrong")


def test_every_fault_of_a_batch_has_an_error_number() -> None:
    assert all(errors.of_storage(InvalidBatch(fault, "")).code for fault in BatchFault)


def _kinds(kind: type[StorageError]) -> Iterator[type[StorageError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


OTHERS = [kind for kind in _kinds(StorageError) if kind is not InvalidBatch]


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_every_failure_of_the_store_becomes_a_command_error(kind: type[StorageError]) -> None:
    error: StorageError
    if issubclass(kind, DiskError):
        error = kind("streams/1", OSError(28, ""))
    elif issubclass(kind, ProducerFenced | SequencePassed | SequenceForgotten | SequenceGap):
        error = kind("'p'", 1, 2)
    elif issubclass(kind, UnknownProducer):
        error = kind("'p'", 1)
    elif issubclass(kind, TopicFull):
        error = kind("stream", "topic", 1, 2, 3)
    elif issubclass(kind, DiskIsFull):
        error = kind()
    elif issubclass(kind, TooManyOffsets):
        error = kind("partition 0", "consumer", 1)
    else:
        error = kind("why")
    told = errors.of_storage(error)
    assert told.detail == str(error)
    assert str(told).endswith(str(error))
    assert told.code not in {8, 9, 30, 31, 32, 40, 61, 206, 304, 403, 404}


def test_failures_of_the_store_keep_their_meaning() -> None:
    assert errors.of_storage(storage_errors.InvalidOffset("7")).code == Code.INVALID_OFFSET
    assert errors.of_storage(storage_errors.PartitionClosed("gone")).code == Code.PARTITION_NOT_FOUND
    assert errors.of_storage(ProducerFenced("'p'", 1, 2)).code == Code.PRODUCER_FENCED
    assert errors.of_storage(SequencePassed("'p'", 1, 2)).code == Code.PRODUCER_SEQUENCE_PASSED
    assert errors.of_storage(SequenceForgotten("'p'", 1, 2)).code == Code.REQUEST_ALREADY_APPLIED
    assert errors.of_storage(TooManyOffsets("0", "group", 1)).code == Code.TOO_MANY_CONSUMER_OFFSETS
    full = storage_errors.WriteFailed("streams/1", OSError(28, ""))
    assert errors.of_storage(full).code == Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT
