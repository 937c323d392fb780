"""The operations that the header of a 0.9 request can name, and their commands.

Everything that changes something has an operation of its own and a request number; everything else is READ, with the
code of the command in the header.
"""

from __future__ import annotations

REGISTER, READ, LOGOUT = 1, 2, 3
SEND_MESSAGES = 160
DELETE_SEGMENTS = 138

CODES = {
    LOGOUT: 39,
    128: 202,
    129: 204,
    130: 203,
    131: 205,
    132: 302,
    133: 304,
    134: 303,
    135: 305,
    136: 402,
    137: 403,
    DELETE_SEGMENTS: 503,
    139: 602,
    140: 603,
    141: 33,
    142: 35,
    143: 34,
    144: 37,
    145: 36,
    146: 42,
    147: 43,
    148: 604,
    149: 605,
    SEND_MESSAGES: 101,
    161: 121,
    162: 122,
}
"""The command of each operation that has a request number."""

OF_CODE = {code: operation for operation, code in CODES.items()}

PLAIN = frozenset({READ, LOGOUT, DELETE_SEGMENTS, SEND_MESSAGES})
"""Their replies have no section of results; those of all others begin with one."""

OF_ONE_PARTITION = frozenset({SEND_MESSAGES, 161, 162})
"""Clients need not count these among the requests of a session: unless the body has a checksum, they do not."""

MEMBERSHIPS = frozenset({148, 149})
"""Joining and leaving a consumer group: both end with the connection."""

LOGINS = frozenset({38, 40, 44, 45})
"""Codes that log in, which is only possible with REGISTER."""
