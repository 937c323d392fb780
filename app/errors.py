"""The one table of errors: number, name, HTTP status and sentence of everything that Whippet refuses.

Numbers and names are Iggy's, so that every SDK knows them; only the number travels on the binary protocols. An expected
outcome is a CommandError with its number; any other exception that leaves a command is a bug.

Clients take some numbers for a lost connection: they reconnect, log in and repeat the request. Never use DISCONNECTED,
CANNOT_ESTABLISH_CONNECTION, STALE_CLIENT, TCP_ERROR, QUIC_ERROR or UNAUTHENTICATED for an ordinary refusal, nor any of
them after a batch was appended.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from whippet.storage import errors as storage_errors
from whippet.storage.errors import BatchFault


class Code(enum.IntEnum):
    """The numbers, in the order of the protocol."""

    ERROR = 1
    INVALID_CONFIGURATION = 2
    INVALID_COMMAND = 3
    INVALID_FORMAT = 4
    FEATURE_UNAVAILABLE = 5
    INVALID_IDENTIFIER = 6
    DISCONNECTED = 8
    CANNOT_ESTABLISH_CONNECTION = 9
    RESOURCE_NOT_FOUND = 20
    STALE_CLIENT = 30
    TCP_ERROR = 31
    QUIC_ERROR = 32
    HTTP_ERROR = 36
    UNAUTHENTICATED = 40
    UNAUTHORIZED = 41
    INVALID_CREDENTIALS = 42
    INVALID_USERNAME = 43
    INVALID_PASSWORD = 44
    INVALID_USER_STATUS = 45
    USER_ALREADY_EXISTS = 46
    USER_INACTIVE = 47
    CANNOT_DELETE_USER = 48
    CANNOT_CHANGE_PERMISSIONS = 49
    INVALID_PERSONAL_ACCESS_TOKEN_NAME = 50
    PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS = 51
    PERSONAL_ACCESS_TOKENS_LIMIT_REACHED = 52
    INVALID_PERSONAL_ACCESS_TOKEN = 53
    PERSONAL_ACCESS_TOKEN_EXPIRED = 54
    USERS_LIMIT_REACHED = 55
    INVALID_PERSONAL_ACCESS_TOKEN_EXPIRY = 56
    TRANSIENT_NOT_COMMITTED = 57
    TRANSIENT_NOT_ACCEPTED = 58
    REQUEST_ALREADY_APPLIED = 59
    CANNOT_ENCRYPT_DATA = 71
    CANNOT_DECRYPT_DATA = 72
    INVALID_JWT_ALGORITHM = 73
    INVALID_JWT_SECRET = 74
    JWT_MISSING = 75
    CANNOT_GENERATE_JWT = 76
    ACCESS_TOKEN_MISSING = 77
    INVALID_ACCESS_TOKEN = 78
    CANNOT_FETCH_JWKS = 79
    INVALID_SIZE_BYTES = 80
    INVALID_UTF8 = 81
    INVALID_NUMBER_ENCODING = 82
    INVALID_BOOLEAN_VALUE = 83
    INVALID_NUMBER_VALUE = 84
    CLIENT_NOT_FOUND = 100
    INVALID_CLIENT_ID = 101
    CANNOT_PARSE_HEADER_KIND = 209
    INVALID_HTTP_REQUEST = 301
    CANNOT_CREATE_STREAM_DIRECTORY = 1001
    CANNOT_DELETE_STREAM_DIRECTORY = 1008
    STREAM_ID_NOT_FOUND = 1009
    STREAM_NAME_NOT_FOUND = 1010
    STREAM_NAME_ALREADY_EXISTS = 1012
    INVALID_STREAM_NAME = 1013
    INVALID_STREAM_ID = 1014
    INVALID_TOPIC_SIZE = 1019
    TOO_MANY_STREAMS = 1020
    CANNOT_CREATE_TOPIC_DIRECTORY = 2001
    CANNOT_DELETE_TOPIC_DIRECTORY = 2008
    TOPIC_ID_NOT_FOUND = 2010
    TOPIC_NAME_NOT_FOUND = 2011
    TOPIC_NAME_ALREADY_EXISTS = 2013
    INVALID_TOPIC_NAME = 2014
    TOO_MANY_PARTITIONS = 2015
    INVALID_TOPIC_ID = 2016
    INVALID_REPLICATION_FACTOR = 2018
    INVALID_PARTITIONS_COUNT = 2019
    TOO_MANY_TOPICS = 2021
    CANNOT_CREATE_PARTITION = 3000
    CANNOT_CREATE_PARTITION_DIRECTORY = 3002
    CANNOT_READ_PARTITIONS = 3004
    CANNOT_DELETE_PARTITION_DIRECTORY = 3006
    PARTITION_NOT_FOUND = 3007
    NO_PARTITIONS = 3008
    TOPIC_FULL = 3009
    CANNOT_DELETE_CONSUMER_OFFSET_FILE = 3011
    PARTITION_ID_SPACE_EXHAUSTED = 3013
    CONSUMER_OFFSET_NOT_FOUND = 3021
    NOT_RESOLVED_CONSUMER = 3022
    CANNOT_OPEN_CONSUMER_OFFSETS_FILE = 3023
    TOO_MANY_CONSUMER_OFFSETS = 3024
    SEGMENT_NOT_FOUND = 4000
    CANNOT_SAVE_MESSAGES_TO_SEGMENT = 4006
    CANNOT_SAVE_INDEX_TO_SEGMENT = 4007
    INVALID_MESSAGES_COUNT = 4009
    CANNOT_READ_MESSAGE = 4011
    TOO_BIG_USER_HEADERS = 4017
    INVALID_HEADER_KEY = 4018
    INVALID_HEADER_VALUE = 4019
    TOO_BIG_MESSAGE_PAYLOAD = 4022
    TOO_MANY_MESSAGES = 4023
    EMPTY_MESSAGE_PAYLOAD = 4024
    INVALID_MESSAGE_PAYLOAD_LENGTH = 4025
    INVALID_MESSAGE_CHECKSUM = 4027
    INVALID_KEY_VALUE_LENGTH = 4028
    INVALID_SEGMENTS_COUNT = 4030
    NON_ZERO_OFFSET = 4031
    NON_ZERO_TIMESTAMP = 4032
    MISSING_INDEX = 4033
    INVALID_INDEXES_BYTE_SIZE = 4034
    INVALID_INDEXES_COUNT = 4035
    INVALID_MESSAGES_SIZE = 4036
    TOO_SMALL_MESSAGE = 4037
    INVALID_MESSAGE_TIMESTAMP_DELTA = 4038
    INVALID_BATCH_CHECKSUM = 4039
    INVALID_HEADER_KIND = 4040
    UNSUPPORTED_OPTION_KEY = 4041
    INVALID_OPTION_VALUE = 4042
    OPTIONS_BLOCK_TOO_LARGE = 4043
    INVALID_OFFSET = 4100
    INVALID_RESERVED_FIELD = 4101
    CONSUMER_GROUP_ID_NOT_FOUND = 5000
    INVALID_CONSUMER_GROUP_ID = 5002
    CONSUMER_GROUP_NAME_NOT_FOUND = 5003
    CONSUMER_GROUP_NAME_ALREADY_EXISTS = 5004
    INVALID_CONSUMER_GROUP_NAME = 5005
    CONSUMER_GROUP_MEMBER_NOT_FOUND = 5006
    CONSUMER_GROUP_PARTITION_NOT_OWNED = 5009
    SNAPSHOT_FILE_COMPLETION_FAILED = 9000
    CANNOT_READ_FILE = 10002
    CANNOT_READ_FILE_METADATA = 10003
    CANNOT_APPEND_TO_FILE = 10005
    CANNOT_WRITE_TO_FILE = 10006
    CANNOT_DELETE_FILE = 10008
    CANNOT_SYNC_FILE = 10009
    CANNOT_READ_INDEX_POSITION = 10011
    TIMESTAMP_OUT_OF_RANGE = 10013
    SHARD_COMMUNICATION_ERROR = 11001
    TASK_TIMEOUT = 12001
    IO_ERROR = 13000
    # Ours: Iggy has no numbers from 20000 on, and its clients, who do not number their sends, are never told these.
    INVALID_PRODUCER = 20001
    PRODUCER_FENCED = 20002
    PRODUCER_SEQUENCE_PASSED = 20003
    # Told over HTTP and to browsers; `on_the_wire` has what the binary protocols say instead.
    TOO_MANY_LOGINS = 20010
    TOO_MANY_ENDED_TOKENS = 20011
    TOO_MANY_CONSUMER_GROUPS = 20012


class Row(NamedTuple):
    """What is said of a code; `field` is the member of an HTTP request that it is about."""

    name: str
    sentence: str
    status: int = 400
    field: str | None = None


E = Row
C = Code
TABLE: dict[Code, Row] = {
    C.ERROR: E("error", "Something went wrong in the server."),
    C.INVALID_CONFIGURATION: E("invalid_configuration", "The configuration does not allow this."),
    C.INVALID_COMMAND: E("invalid_command", "The request is not a command that this server understands."),
    C.INVALID_FORMAT: E("invalid_format", "A part of the request is not in the form that it must have."),
    C.FEATURE_UNAVAILABLE: E("feature_unavailable", "This feature is switched off or not there."),
    C.INVALID_IDENTIFIER: E("invalid_identifier", "An identifier must be a number or a name of 1 to 255 bytes."),
    C.DISCONNECTED: E("disconnected", "The server is shutting down."),
    C.CANNOT_ESTABLISH_CONNECTION: E("cannot_establish_connection", "No connection could be made."),
    C.RESOURCE_NOT_FOUND: E("resource_not_found", "What the request names does not exist.", 404),
    C.STALE_CLIENT: E("stale_client", "The client was silent for too long; it has to connect again."),
    C.TCP_ERROR: E("tcp_error", "The TCP connection failed."),
    C.QUIC_ERROR: E("quic_error", "The QUIC connection failed."),
    C.HTTP_ERROR: E("http_error", "The HTTP exchange failed."),
    C.UNAUTHENTICATED: E("unauthenticated", "Log in first.", 401),
    C.UNAUTHORIZED: E("unauthorized", "The user has no permission for this.", 403),
    C.INVALID_CREDENTIALS: E("invalid_credentials", "The user name or the password is wrong."),
    C.INVALID_USERNAME: E("invalid_username", "A user name must have 3 to 50 bytes."),
    C.INVALID_PASSWORD: E("invalid_password", "A password must have 3 to 100 bytes."),
    C.INVALID_USER_STATUS: E("invalid_user_status", "The status of a user is active or inactive."),
    C.USER_ALREADY_EXISTS: E("user_already_exists", "Another user has this name.", field="username"),
    C.USER_INACTIVE: E("user_inactive", "The user is inactive."),
    C.CANNOT_DELETE_USER: E("cannot_delete_user", "The root user cannot be deleted."),
    C.CANNOT_CHANGE_PERMISSIONS: E("cannot_change_permissions", "The permissions of the root user cannot be changed."),
    C.INVALID_PERSONAL_ACCESS_TOKEN_NAME: E(
        "invalid_personal_access_token_name", "The name of a token must have 3 to 30 bytes."
    ),
    C.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS: E(
        "personal_access_token_already_exists", "The user has a token of this name.", field="name"
    ),
    C.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED: E(
        "personal_access_tokens_limit_reached", "The user has as many tokens as are allowed."
    ),
    C.INVALID_PERSONAL_ACCESS_TOKEN: E("invalid_personal_access_token", "The token is not known.", 401),
    C.PERSONAL_ACCESS_TOKEN_EXPIRED: E("personal_access_token_expired", "The token has expired."),
    C.USERS_LIMIT_REACHED: E("users_limit_reached", "There are as many users as are allowed."),
    C.INVALID_PERSONAL_ACCESS_TOKEN_EXPIRY: E(
        "invalid_personal_access_token_expiry", "The expiry of the token cannot be used."
    ),
    C.TRANSIENT_NOT_COMMITTED: E("transient_not_committed", "Not finished yet: send the same request again.", 503),
    C.TRANSIENT_NOT_ACCEPTED: E("transient_not_accepted", "Not taken on: the request may be sent again.", 503),
    C.REQUEST_ALREADY_APPLIED: E(
        "request_already_applied", "This was done already, and its answer is no longer known.", 409
    ),
    C.CANNOT_ENCRYPT_DATA: E("cannot_encrypt_data", "The data could not be encrypted."),
    C.CANNOT_DECRYPT_DATA: E("cannot_decrypt_data", "The data could not be decrypted."),
    C.INVALID_JWT_ALGORITHM: E("invalid_jwt_algorithm", "Access tokens cannot be signed with this algorithm."),
    C.INVALID_JWT_SECRET: E("invalid_jwt_secret", "The key for access tokens cannot be used."),
    C.JWT_MISSING: E("jwt_missing", "There is no access token in the request."),
    C.CANNOT_GENERATE_JWT: E("cannot_generate_jwt", "The access token could not be made."),
    C.ACCESS_TOKEN_MISSING: E("access_token_missing", "The request needs an access token.", 401),
    C.INVALID_ACCESS_TOKEN: E("invalid_access_token", "The access token is not valid.", 401),
    C.CANNOT_FETCH_JWKS: E("cannot_fetch_jwks", "The keys of the token's issuer could not be fetched."),
    C.INVALID_SIZE_BYTES: E("invalid_size_bytes", "A size in the request does not fit the bytes that are there."),
    C.INVALID_UTF8: E("invalid_utf8", "A text is not UTF-8."),
    C.INVALID_NUMBER_ENCODING: E("invalid_number_encoding", "A number in the request is cut off."),
    C.INVALID_BOOLEAN_VALUE: E("invalid_boolean_value", "A value must be true or false."),
    C.INVALID_NUMBER_VALUE: E("invalid_number_value", "A number is outside of its range."),
    C.CLIENT_NOT_FOUND: E("client_not_found", "There is no such client.", 404, "client_id"),
    C.INVALID_CLIENT_ID: E("invalid_client_id", "A client cannot have this number."),
    C.CANNOT_PARSE_HEADER_KIND: E("cannot_parse_header_kind", "There is no such kind of user header."),
    C.INVALID_HTTP_REQUEST: E("invalid_http_request", "The HTTP request cannot be read."),
    C.CANNOT_CREATE_STREAM_DIRECTORY: E("cannot_create_stream_directory", "The folder of the stream was not made."),
    C.CANNOT_DELETE_STREAM_DIRECTORY: E("cannot_delete_stream_directory", "The folder of the stream was not removed."),
    C.STREAM_ID_NOT_FOUND: E("stream_id_not_found", "There is no such stream.", 404, "stream_id"),
    C.STREAM_NAME_NOT_FOUND: E("stream_name_not_found", "There is no stream of this name."),
    C.STREAM_NAME_ALREADY_EXISTS: E("stream_name_already_exists", "Another stream has this name.", field="name"),
    C.INVALID_STREAM_NAME: E("invalid_stream_name", "The name of a stream must have 1 to 255 bytes.", field="name"),
    C.INVALID_STREAM_ID: E("invalid_stream_id", "A stream cannot have this number.", field="stream_id"),
    C.INVALID_TOPIC_SIZE: E("invalid_topic_size", "A topic cannot be limited to less than the size of a segment."),
    C.TOO_MANY_STREAMS: E("too_many_streams", "There are as many streams as are allowed."),
    C.CANNOT_CREATE_TOPIC_DIRECTORY: E("cannot_create_topic_directory", "The folder of the topic was not made."),
    C.CANNOT_DELETE_TOPIC_DIRECTORY: E("cannot_delete_topic_directory", "The folder of the topic was not removed."),
    C.TOPIC_ID_NOT_FOUND: E("topic_id_not_found", "There is no such topic in the stream.", 404, "topic_id"),
    C.TOPIC_NAME_NOT_FOUND: E("topic_name_not_found", "There is no topic of this name in the stream."),
    C.TOPIC_NAME_ALREADY_EXISTS: E(
        "topic_name_already_exists", "Another topic of the stream has this name.", field="name"
    ),
    C.INVALID_TOPIC_NAME: E("invalid_topic_name", "The name of a topic must have 1 to 255 bytes.", field="name"),
    C.TOO_MANY_PARTITIONS: E("too_many_partitions", "The number of partitions is outside of what is allowed."),
    C.INVALID_TOPIC_ID: E("invalid_topic_id", "A topic cannot have this number.", field="topic_id"),
    C.INVALID_REPLICATION_FACTOR: E("invalid_replication_factor", "The replication factor cannot be used."),
    C.INVALID_PARTITIONS_COUNT: E("invalid_partitions_count", "The topic does not have so many partitions."),
    C.TOO_MANY_TOPICS: E("too_many_topics", "The stream has as many topics as are allowed."),
    C.CANNOT_CREATE_PARTITION: E("cannot_create_partition", "The partition could not be made."),
    C.CANNOT_CREATE_PARTITION_DIRECTORY: E(
        "cannot_create_partition_directory", "The folder of the partition was not made."
    ),
    C.CANNOT_READ_PARTITIONS: E("cannot_read_partitions", "The partitions could not be read."),
    C.CANNOT_DELETE_PARTITION_DIRECTORY: E(
        "cannot_delete_partition_directory", "The folder of the partition was not removed."
    ),
    C.PARTITION_NOT_FOUND: E("partition_not_found", "There is no such partition in the topic.", 404, "partition_id"),
    C.NO_PARTITIONS: E("no_partitions", "The topic has no partitions."),
    C.TOPIC_FULL: E("topic_full", "The topic has reached its size, and nothing is deleted from it."),
    C.CANNOT_DELETE_CONSUMER_OFFSET_FILE: E(
        "cannot_delete_consumer_offset_file", "The stored offset could not be removed."
    ),
    C.PARTITION_ID_SPACE_EXHAUSTED: E(
        "partition_id_space_exhausted", "No numbers are left for new partitions of the topic."
    ),
    C.CONSUMER_OFFSET_NOT_FOUND: E("consumer_offset_not_found", "The consumer has stored no offset here.", 404),
    C.NOT_RESOLVED_CONSUMER: E("not_resolved_consumer", "The member of the group has no such partition."),
    C.CANNOT_OPEN_CONSUMER_OFFSETS_FILE: E(
        "cannot_open_consumer_offsets_file", "The file of stored offsets could not be opened."
    ),
    C.TOO_MANY_CONSUMER_OFFSETS: E(
        "too_many_consumer_offsets", "As many consumers as are allowed have stored an offset in the partition."
    ),
    C.SEGMENT_NOT_FOUND: E("segment_not_found", "There is no such segment.", 404, "segment_id"),
    C.CANNOT_SAVE_MESSAGES_TO_SEGMENT: E("cannot_save_messages_to_segment", "The messages could not be written."),
    C.CANNOT_SAVE_INDEX_TO_SEGMENT: E("cannot_save_index_to_segment", "The index could not be written."),
    C.INVALID_MESSAGES_COUNT: E("invalid_messages_count", "The number of messages cannot be accepted."),
    C.CANNOT_READ_MESSAGE: E("cannot_read_message", "The messages could not be read."),
    C.TOO_BIG_USER_HEADERS: E("too_big_user_headers", "The user headers of a message are too long."),
    C.INVALID_HEADER_KEY: E("invalid_header_key", "The key of a user header cannot be used."),
    C.INVALID_HEADER_VALUE: E("invalid_header_value", "The value of a user header cannot be used."),
    C.TOO_BIG_MESSAGE_PAYLOAD: E("too_big_message_payload", "The payload of a message is too long."),
    C.TOO_MANY_MESSAGES: E("too_many_messages", "These are more messages than one request may have."),
    C.EMPTY_MESSAGE_PAYLOAD: E("empty_message_payload", "A message must have a payload."),
    C.INVALID_MESSAGE_PAYLOAD_LENGTH: E("invalid_message_payload_length", "The length of a payload is wrong."),
    C.INVALID_MESSAGE_CHECKSUM: E("invalid_message_checksum", "The checksum of a message is wrong."),
    C.INVALID_KEY_VALUE_LENGTH: E("invalid_key_value_length", "A partitioning key must have 1 to 255 bytes."),
    C.INVALID_SEGMENTS_COUNT: E("invalid_segments_count", "The number of segments cannot be used."),
    C.NON_ZERO_OFFSET: E("non_zero_offset", "Offsets are given by the server: a producer sends 0."),
    C.NON_ZERO_TIMESTAMP: E("non_zero_timestamp", "Timestamps are given by the server: a producer sends 0."),
    C.MISSING_INDEX: E("missing_index", "The index of the batch does not name whole messages."),
    C.INVALID_INDEXES_BYTE_SIZE: E("invalid_indexes_byte_size", "The index of the batch has a wrong size."),
    C.INVALID_INDEXES_COUNT: E("invalid_indexes_count", "The index of the batch has a wrong number of entries."),
    C.INVALID_MESSAGES_SIZE: E("invalid_messages_size", "The sizes of the messages do not add up."),
    C.TOO_SMALL_MESSAGE: E("too_small_message", "A message is shorter than its header."),
    C.INVALID_MESSAGE_TIMESTAMP_DELTA: E(
        "invalid_message_timestamp_delta", "The times of the messages are too far apart for one batch."
    ),
    C.INVALID_BATCH_CHECKSUM: E("invalid_batch_checksum", "The checksum of the batch is wrong."),
    C.INVALID_HEADER_KIND: E("invalid_header_kind", "The kind of a user header cannot be used."),
    C.UNSUPPORTED_OPTION_KEY: E("unsupported_option_key", "There is no such option."),
    C.INVALID_OPTION_VALUE: E("invalid_option_value", "An option cannot have this value."),
    C.OPTIONS_BLOCK_TOO_LARGE: E("options_block_too_large", "The options are too many or too long."),
    C.INVALID_OFFSET: E("invalid_offset", "The partition has no message with this offset.", field="offset"),
    C.INVALID_RESERVED_FIELD: E("invalid_reserved_field", "Reserved bytes must be zeros."),
    C.CONSUMER_GROUP_ID_NOT_FOUND: E("consumer_group_id_not_found", "The topic has no such consumer group.", 404),
    C.INVALID_CONSUMER_GROUP_ID: E(
        "invalid_consumer_group_id", "A consumer group cannot have this number.", field="consumer_group_id"
    ),
    C.CONSUMER_GROUP_NAME_NOT_FOUND: E(
        "consumer_group_name_not_found", "The topic has no consumer group of this name.", 404
    ),
    C.CONSUMER_GROUP_NAME_ALREADY_EXISTS: E(
        "consumer_group_name_already_exists", "Another consumer group of the topic has this name.", field="name"
    ),
    C.INVALID_CONSUMER_GROUP_NAME: E(
        "invalid_consumer_group_name", "The name of a consumer group must have 1 to 255 bytes."
    ),
    C.CONSUMER_GROUP_MEMBER_NOT_FOUND: E(
        "consumer_group_member_not_found", "The client is not a member of the consumer group.", 404
    ),
    C.CONSUMER_GROUP_PARTITION_NOT_OWNED: E(
        "consumer_group_partition_not_owned", "The partition belongs to another member of the consumer group."
    ),
    C.SNAPSHOT_FILE_COMPLETION_FAILED: E("snapshot_file_completion_failed", "The snapshot could not be finished."),
    C.CANNOT_READ_FILE: E("cannot_read_file", "A file could not be read."),
    C.CANNOT_READ_FILE_METADATA: E("cannot_read_file_metadata", "The size or the age of a file could not be read."),
    C.CANNOT_APPEND_TO_FILE: E("cannot_append_to_file", "A file could not be made longer."),
    C.CANNOT_WRITE_TO_FILE: E("cannot_write_to_file", "A file could not be written."),
    C.CANNOT_DELETE_FILE: E("cannot_delete_file", "A file could not be removed."),
    C.CANNOT_SYNC_FILE: E("cannot_sync_file", "What was written is not known to be safe on the disk."),
    C.CANNOT_READ_INDEX_POSITION: E("cannot_read_index_position", "The positions in the index must not go back."),
    C.TIMESTAMP_OUT_OF_RANGE: E("timestamp_out_of_range", "A time cannot be represented."),
    C.SHARD_COMMUNICATION_ERROR: E("shard_communication_error", "A part of the server did not answer another."),
    C.TASK_TIMEOUT: E("task_timeout", "The work took longer than it may."),
    C.IO_ERROR: E("io_error", "A disk or a network failed."),
    C.INVALID_PRODUCER: E(
        "invalid_producer", "A producer has an id of 1 to 64 bytes, an epoch below 2^32 and a sequence below 2^64."
    ),
    C.PRODUCER_FENCED: E("producer_fenced", "A higher epoch of the producer has taken its place.", 409),
    C.PRODUCER_SEQUENCE_PASSED: E(
        "producer_sequence_passed", "The send is not stored, and newer ones of its producer are.", 409
    ),
    C.TOO_MANY_LOGINS: E("too_many_logins", "Too many logins have failed: try again later.", 429),
    C.TOO_MANY_ENDED_TOKENS: E(
        "too_many_ended_tokens", "The user has ended or refreshed too many access tokens: try again later.", 429
    ),
    C.TOO_MANY_CONSUMER_GROUPS: E("too_many_consumer_groups", "The topic has as many consumer groups as are allowed."),
}


class CommandError(Exception):
    """Why there is no answer. The text is for people: logs and HTTP; binary clients see the number alone.

    `retry_after_s` is when the same request is worth another try, where that is known.
    """

    def __init__(self, code: Code, detail: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(TABLE[code].sentence if detail is None else detail)
        self.code = code
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[CommandError], tuple[Code, str, int | None]]:
        return type(self), (self.code, str(self), self.retry_after_s)


_ON_THE_WIRE = {
    Code.TOO_MANY_LOGINS: Code.INVALID_CREDENTIALS,
    Code.TOO_MANY_CONSUMER_GROUPS: Code.INVALID_CONFIGURATION,
}


def on_the_wire(code: Code) -> Code:
    """The number for a client of the binary protocols. All SDKs report that of a wrong password, and none of them
    answers it by connecting again in a loop."""
    return _ON_THE_WIRE.get(code, code)


_OF_FAULT = {
    BatchFault.LENGTH: Code.INVALID_MESSAGES_SIZE,
    BatchFault.COUNT: Code.INVALID_MESSAGES_COUNT,
    BatchFault.RESERVED: Code.INVALID_RESERVED_FIELD,
    BatchFault.DELTA: Code.INVALID_COMMAND,
    BatchFault.EMPTY_PAYLOAD: Code.EMPTY_MESSAGE_PAYLOAD,
    BatchFault.PAYLOAD_LIMIT: Code.TOO_BIG_MESSAGE_PAYLOAD,
    BatchFault.USER_HEADERS_LIMIT: Code.TOO_BIG_USER_HEADERS,
    BatchFault.BATCH_LIMIT: Code.INVALID_MESSAGES_SIZE,
    BatchFault.TIME_SPAN: Code.INVALID_MESSAGE_TIMESTAMP_DELTA,
    BatchFault.FRAME_CHECKSUM: Code.INVALID_MESSAGE_CHECKSUM,
    BatchFault.BATCH_CHECKSUM: Code.INVALID_BATCH_CHECKSUM,
}

_OF_STORAGE: tuple[tuple[type[storage_errors.StorageError], Code], ...] = (
    (storage_errors.TopicFull, Code.TOPIC_FULL),
    (storage_errors.InvalidOffset, Code.INVALID_OFFSET),
    (storage_errors.TooManyOffsets, Code.TOO_MANY_CONSUMER_OFFSETS),
    (storage_errors.InvalidProducer, Code.INVALID_PRODUCER),
    (storage_errors.ProducerFenced, Code.PRODUCER_FENCED),
    (storage_errors.SequencePassed, Code.PRODUCER_SEQUENCE_PASSED),
    (storage_errors.SequenceForgotten, Code.REQUEST_ALREADY_APPLIED),
    (storage_errors.WriteFailed, Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT),
    (storage_errors.ReadFailed, Code.CANNOT_READ_MESSAGE),
    (storage_errors.PartitionFailed, Code.CANNOT_SYNC_FILE),
    (storage_errors.PartitionClosed, Code.PARTITION_NOT_FOUND),
    (storage_errors.StoreLocked, Code.INVALID_CONFIGURATION),
    (storage_errors.UnsupportedFormat, Code.INVALID_CONFIGURATION),
    (storage_errors.StorageError, Code.IO_ERROR),
)


def of_storage(error: storage_errors.StorageError) -> CommandError:
    """What a client is told of a failure of the store; the first row that fits decides, the text stays the store's."""
    if isinstance(error, storage_errors.InvalidBatch):
        code = _OF_FAULT[error.fault]
    else:
        code = next(code for kind, code in _OF_STORAGE if isinstance(error, kind))
    return CommandError(code, str(error))
