"""The text that SDK users read when something is refused: the name of the error or, since 0.9, a sentence.

Only the number of an error is sent; the details in a sentence are empty or 0.
"""

from __future__ import annotations

import re

SENTENCES = {
    "CannotChangePermissions": "Cannot change permissions for user with ID: {}",
    "CannotDeleteUser": "Cannot delete user with ID: {}",
    "CannotEstablishConnection": "Cannot establish connection",
    "CannotSaveMessagesToSegment": "Cannot save messages to segment.",
    "ClientNotFound": "Client with ID: {} was not found.",
    "ClientShutdown": "Client shutdown",
    "ConsumerGroupIdNotFound": "Consumer group with ID: {} for topic with ID: {} was not found.",
    "ConsumerGroupMemberNotFound": "Consumer group member with client ID: {} for group with ID: {} "
    "for topic with ID: {} was not found.",
    "ConsumerGroupNameAlreadyExists": "Consumer group with name: {} for topic with ID: {} already exists.",
    "ConsumerGroupNameNotFound": "Consumer group with name: {} for topic with ID: {} was not found.",
    "ConsumerGroupPartitionNotOwned": "Consumer group member with client ID: {} does not own partition: {} "
    "at the current generation (rebalance in progress).",
    "ConsumerOffsetNotFound": "Consumer offset for consumer with ID: {} was not found.",
    "Disconnected": "Disconnected",
    "FeatureUnavailable": "Feature is unavailable",
    "InvalidCommand": "Invalid command",
    "InvalidConsumerGroupName": "Invalid consumer group name",
    "InvalidConnectionString": "Invalid connection string",
    "InvalidCredentials": "Invalid credentials",
    "InvalidFormat": "Invalid format",
    "InvalidMessagesCount": "Invalid messages count",
    "InvalidOffset": "Invalid offset: {}",
    "InvalidOptionValue": "Invalid option value for key: {}",
    "InvalidPartitionsCount": "Invalid partitions count",
    "InvalidPassword": "Invalid password",
    "InvalidPersonalAccessToken": "Invalid personal access token",
    "InvalidStreamName": "Invalid stream name",
    "InvalidTopicName": "Invalid topic name",
    "InvalidTopicSize": "Max topic size cannot be lower than segment size. Max topic size: {} < segment size: {}.",
    "InvalidUsername": "Invalid username",
    "NotConnected": "Not connected",
    "PartitionNotFound": "Partition with ID: {} for topic with ID: {} for stream with ID: {} was not found.",
    "PersonalAccessTokenAlreadyExists": "Personal access token: {} for user with ID: {} already exists",
    "ProducerClosed": "Producer closed",
    "ResourceNotFound": "Resource with key: {} was not found.",
    "StreamIdNotFound": "Stream with ID: {} was not found.",
    "StreamNameAlreadyExists": "Stream with name: {} already exists.",
    "StreamNameNotFound": "Stream with name: {} was not found.",
    "TooManyPartitions": "Too many partitions",
    "TopicIdNotFound": "Topic with ID: {} for stream with ID: {} was not found.",
    "TopicNameAlreadyExists": "Topic with name: {} for stream with ID: {} already exists.",
    "TopicNameNotFound": "Topic with name: {} for stream with ID: {} was not found.",
    "Unauthenticated": "Unauthenticated",
    "Unauthorized": "Unauthorized",
    "UnsupportedOptionKey": "Unsupported option key: {}",
    "UserAlreadyExists": "User already exists",
    "UserInactive": "User inactive",
}
_PATTERNS = {
    name: re.compile(".*?".join(map(re.escape, sentence.split("{}"))), re.DOTALL)
    for name, sentence in SENTENCES.items()
}


def name_of(answer: str) -> str:
    """Returns the response itself if it is not the sentence of an error."""
    named = (name for name, pattern in _PATTERNS.items() if pattern.fullmatch(answer))
    return next(named, answer.split("(", 1)[0])
