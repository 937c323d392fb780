"""The numbers of the operations and their commands, as the protocol 0.9 defines them. The clients of the other tests
take them from the server's table: only here are they written down a second time.
"""

from __future__ import annotations

import pytest

from whippet.transports.wire.modern import operations

COMMANDS = {
    3: 39,  # logout
    128: 202,  # create a stream
    129: 204,  # update a stream
    130: 203,  # delete a stream
    131: 205,  # purge a stream
    132: 302,  # create a topic
    133: 304,  # update a topic
    134: 303,  # delete a topic
    135: 305,  # purge a topic
    136: 402,  # create partitions
    137: 403,  # delete partitions
    138: 503,  # delete segments
    139: 602,  # create a consumer group
    140: 603,  # delete a consumer group
    141: 33,  # create a user
    142: 35,  # update a user
    143: 34,  # delete a user
    144: 37,  # change a password
    145: 36,  # update permissions
    146: 42,  # create a personal access token
    147: 43,  # delete a personal access token
    148: 604,  # join a consumer group
    149: 605,  # leave a consumer group
    160: 101,  # send messages
    161: 121,  # store a consumer offset
    162: 122,  # delete a consumer offset
}
WITHOUT_RESULTS = {2, 3, 138, 160}


def test_register_and_read_are_the_operations_without_a_command_of_their_own() -> None:
    assert (operations.REGISTER, operations.READ) == (1, 2)
    assert {38, 40, 44, 45} == operations.LOGINS


def test_every_operation_stands_for_its_command() -> None:
    assert operations.CODES == COMMANDS


@pytest.mark.parametrize(("operation", "code"), COMMANDS.items())
def test_a_command_is_requested_by_its_operation(operation: int, code: int) -> None:
    assert operations.OF_CODE[code] == operation


def test_only_replies_to_commands_that_change_something_have_a_section_of_results() -> None:
    assert operations.PLAIN == WITHOUT_RESULTS


def test_joining_and_leaving_a_group_end_with_the_connection() -> None:
    assert {COMMANDS[operation] for operation in operations.MEMBERSHIPS} == {604, 605}
