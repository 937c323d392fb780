"""FORMAT.md is normative: its table of constants is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from whippet import storage
from whippet.storage import batch, index, layout, offsets, packing, producer_file, producers

PAGE = Path(storage.__file__).with_name("FORMAT.md").read_text()

CONSTANTS = {
    "format version": layout.FORMAT_VERSION,
    "batch header bytes": batch.HEADER_BYTES,
    "frame header bytes": batch.FRAME_BYTES,
    "index header bytes": index.HEADER.size,
    "index entry bytes": index.ENTRY_BYTES,
    "index magic": index.MAGIC.decode(),
    "packed batch magic": packing.MAGIC.decode(),
    "index header bytes, version 2": index.HEADER_2.size,
    "index entry bytes, version 2": index.ENTRY_2_BYTES,
    "index magic, version 2": index.MAGIC_2.decode(),
    "offset file place bytes": offsets.PLACE.size,
    "offset file place bytes, encrypted": offsets.SEALED_PLACE.size,
    "producer record bytes": producer_file.RECORD.size,
    "producer id bytes, at most": producers.ID_BYTES_MAX,
}


def table() -> dict[str, str]:
    """The rows of the table with the head `| constant | value |`."""
    head = re.search(r"^\| constant \| value \|\n\|[-| ]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE)
    assert head is not None
    rows = [line.strip("|").split("|") for line in head[1].splitlines()]
    return {name.strip(): value.strip() for name, value in rows}


def test_the_page_states_the_constants_of_the_code() -> None:
    assert table() == {name: str(value) for name, value in CONSTANTS.items()}


def test_the_names_of_files_and_folders_are_on_the_page() -> None:
    names = [
        layout.FORMAT_FILE,
        layout.LOCK_FILE,
        layout.STREAM_FILE,
        layout.TOPIC_FILE,
        layout.INTENT_FILE,
        f"{layout.PRODUCERS_FILE}  ",
        f"{layout.GROUPS_FOLDER}/<id>.json",
        f"{layout.USERS_FOLDER}/<id>.json",
        f"{layout.TOKENS_FOLDER}/<id>.json",
        f"{layout.TRASH_FOLDER}/",
        f"{layout.STAGING_FOLDER}/",
        f"{layout.PLACEMENT_FILE}  ",
        f"{layout.ASIDE_FOLDER}/",
        f"{layout.OFFSETS_FOLDER}/{layout.CONSUMERS_FOLDER}/<id>",
        f"{layout.OFFSETS_FOLDER}/{layout.GROUPS_FOLDER}/<id>",
        f"{layout.OFFSETS_FOLDER}/{layout.EXTERNAL_GROUPS_FOLDER}/<id>",
    ]
    assert [name for name in names if name not in PAGE] == []


def test_the_fields_of_each_header_add_up_to_its_size() -> None:
    """The structures that the code unpacks end where the reserved bytes or the payload begin."""
    assert batch.HEADER.size == batch.RESERVED_AT
    assert batch.FRAME.size == batch.FRAME_BYTES
