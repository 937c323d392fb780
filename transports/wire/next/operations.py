"""Operations of the 0.12 protocol, where they differ from those of 0.9."""

from __future__ import annotations

from whippet.transports.wire.modern import operations as modern

BIND_SESSION, CANCEL = 15, 108
"""Codes that concern the connection; they are not commands."""
UPDATE_RESOURCE = 16
GET_METADATA_CHANGES = 17
"""Refused: only the CLI's `metadata changes` asks for the log of a cluster, which does not exist here."""
POLL, POLL_DEFERRED, AWAIT, FETCH = 100, 106, 107, 109
"""Clients of 0.12.0 have AWAIT instead of FETCH."""

RETIRED = frozenset({14, 35, 102, 103, 104, 123, 204, 205, 304, 305})
"""Commands that clients of this protocol no longer have."""

CODES = {operation: code for operation, code in modern.CODES.items() if code not in RETIRED} | {150: UPDATE_RESOURCE}
OF_CODE = {code: operation for operation, code in CODES.items()}

PARTITION_OPERATIONS = modern.OF_ONE_PARTITION
PARTITION_CODES = frozenset({100, 106, 120})
"""Requests for one partition, whose header holds its incarnation."""
