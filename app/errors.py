"""The one table of errors: number, name, HTTP status and sentence of every refusal.

Numbers and names are Iggy's, so that every SDK knows them; the binary protocols carry only the number. An expected
failure is a CommandError with its number; any other exception that leaves a command is a bug.

Clients take some numbers for a lost connection: they reconnect, log in and repeat the request. Never use DISCONNECTED,
CANNOT_ESTABLISH_CONNECTION, STALE_CLIENT, TCP_ERROR, QUIC_ERROR or UNAUTHENTICATED for an ordinary refusal, nor any of
them after a batch was appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from whippet.app.error_codes import Code
from whippet.storage import errors as storage_errors
from whippet.storage.errors import BatchFault

__all__ = ["TABLE", "Code", "CommandError", "Row", "of_storage", "on_the_wire"]


class Row(NamedTuple):
    """The name, sentence and status of a code."""

    name: str
    words: str
    """Iggy's sentence, which programs look for in the text of an error: up to its first parameter, or, where that would
    be half a sentence, with a place for each parameter. Empty if Iggy has no such error, or if its sentence is about
    something else."""
    more: str = ""
    """Follows the words if there is no more precise detail, and replaces words whose parameters are unknown."""
    status: int = 400
    field: str | None = None
    """The field of an HTTP request that the error is about."""

    def text(self, detail: str | None, about: Sequence[object]) -> str:
        has_places = "{}" in self.words
        words = "" if has_places and not about else self.words.format(*about)
        if detail is None:
            detail = "" if words and has_places else self.more
        return f"{words.removesuffix('.')}: {detail}" if words and detail else words or detail


E = Row
C = Code
TABLE: dict[Code, Row] = {
    C.ERROR: E("error", "Error", "something went wrong in the server."),
    C.INVALID_CONFIGURATION: E(
        "invalid_configuration", "Invalid configuration", "the configuration of the server does not allow this."
    ),
    C.INVALID_COMMAND: E("invalid_command", "Invalid command", "this server does not understand the request."),
    C.INVALID_FORMAT: E("invalid_format", "Invalid format", "a part of the request is malformed."),
    C.FEATURE_UNAVAILABLE: E("feature_unavailable", "Feature is unavailable", "it is disabled or does not exist."),
    C.INVALID_IDENTIFIER: E(
        "invalid_identifier", "Invalid identifier", "it must be a number or a name of 1 to 255 bytes."
    ),
    C.DISCONNECTED: E("disconnected", "Disconnected", "the server is shutting down."),
    C.CANNOT_ESTABLISH_CONNECTION: E("cannot_establish_connection", "Cannot establish connection"),
    C.RESOURCE_NOT_FOUND: E(
        "resource_not_found",
        "Resource with key: {} was not found.",
        "The resource that the request names does not exist.",
        status=404,
    ),
    C.STALE_CLIENT: E("stale_client", "Stale client", "it was silent for too long and must reconnect."),
    C.TCP_ERROR: E("tcp_error", "TCP error", "the connection failed."),
    C.QUIC_ERROR: E("quic_error", "QUIC error", "the connection failed."),
    C.HTTP_ERROR: E("http_error", "Http error", "the exchange failed."),
    C.UNAUTHENTICATED: E("unauthenticated", "Unauthenticated", "log in first.", status=401),
    C.UNAUTHORIZED: E("unauthorized", "Unauthorized", "the user has no permission for this.", status=403),
    C.INVALID_CREDENTIALS: E("invalid_credentials", "Invalid credentials", "the user name or the password is wrong."),
    C.INVALID_USERNAME: E("invalid_username", "Invalid username", "it must have 3 to 50 bytes."),
    C.INVALID_PASSWORD: E("invalid_password", "Invalid password", "it must have 3 to 100 bytes."),
    C.INVALID_USER_STATUS: E("invalid_user_status", "Invalid user status", "it must be active or inactive."),
    C.USER_ALREADY_EXISTS: E("user_already_exists", "User already exists", "choose another name.", field="username"),
    C.USER_INACTIVE: E("user_inactive", "User inactive"),
    C.CANNOT_DELETE_USER: E("cannot_delete_user", "Cannot delete user with ID: {}", "The root user cannot be deleted."),
    C.CANNOT_CHANGE_PERMISSIONS: E(
        "cannot_change_permissions",
        "Cannot change permissions for user with ID: {}",
        "The permissions of the root user cannot be changed.",
    ),
    C.INVALID_PERSONAL_ACCESS_TOKEN_NAME: E(
        "invalid_personal_access_token_name", "Invalid personal access token name", "it must have 3 to 30 bytes."
    ),
    C.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS: E(
        "personal_access_token_already_exists",
        "Personal access token: {} for user with ID: {} already exists",
        "The user has a token with this name.",
        field="name",
    ),
    C.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED: E(
        "personal_access_tokens_limit_reached",
        "User with ID: {} has reached the maximum number of personal access tokens: {}",
        "The user has reached the maximum number of tokens (personal_access_token.max_tokens_per_user).",
    ),
    C.INVALID_PERSONAL_ACCESS_TOKEN: E(
        "invalid_personal_access_token", "Invalid personal access token", "no user has it.", status=401
    ),
    C.PERSONAL_ACCESS_TOKEN_EXPIRED: E(
        "personal_access_token_expired",
        "Personal access token: {} for user with ID: {} has expired.",
        "The token has expired.",
    ),
    C.USERS_LIMIT_REACHED: E("users_limit_reached", "Users limit reached", "the maximum number of users is reached."),
    C.INVALID_PERSONAL_ACCESS_TOKEN_EXPIRY: E(
        "invalid_personal_access_token_expiry", "Invalid personal access token expiry"
    ),
    C.TRANSIENT_NOT_COMMITTED: E(
        "transient_not_committed", "Request transiently not committed; retry", "it is not finished yet.", status=503
    ),
    C.TRANSIENT_NOT_ACCEPTED: E(
        "transient_not_accepted",
        "Request transiently not accepted; retry",
        "the server has no memory for it now.",
        status=503,
    ),
    C.REQUEST_ALREADY_APPLIED: E(
        "request_already_applied", "Request already applied; its reply is no longer available", status=409
    ),
    C.CANNOT_ENCRYPT_DATA: E("cannot_encrypt_data", "Cannot encrypt data"),
    C.CANNOT_DECRYPT_DATA: E("cannot_decrypt_data", "Cannot decrypt data"),
    C.INVALID_JWT_ALGORITHM: E(
        "invalid_jwt_algorithm", "Invalid JWT algorithm", "access tokens cannot be signed with it."
    ),
    C.INVALID_JWT_SECRET: E("invalid_jwt_secret", "Invalid JWT secret", "access tokens cannot be signed with it."),
    C.JWT_MISSING: E("jwt_missing", "JWT is missing"),
    C.CANNOT_GENERATE_JWT: E("cannot_generate_jwt", "Cannot generate JWT"),
    C.ACCESS_TOKEN_MISSING: E("access_token_missing", "Access token is missing", status=401),
    C.INVALID_ACCESS_TOKEN: E("invalid_access_token", "Invalid access token", status=401),
    C.CANNOT_FETCH_JWKS: E(
        "cannot_fetch_jwks", "Cannot fetch JWKS", "the keys of the token's issuer could not be fetched."
    ),
    C.INVALID_SIZE_BYTES: E(
        "invalid_size_bytes", "Invalid size bytes", "a size in the request does not fit the bytes that follow it."
    ),
    C.INVALID_UTF8: E("invalid_utf8", "Invalid UTF-8"),
    C.INVALID_NUMBER_ENCODING: E(
        "invalid_number_encoding", "Invalid number encoding", "a number in the request is cut off."
    ),
    C.INVALID_BOOLEAN_VALUE: E("invalid_boolean_value", "Invalid boolean value", "it must be true or false."),
    C.INVALID_NUMBER_VALUE: E("invalid_number_value", "Invalid number value", "it is out of range."),
    C.REQUEST_TOO_OLD: E(
        "request_too_old",
        "Request is below the deduplication window",
        "it is no longer known whether it was executed.",
        status=409,
    ),
    C.PARTITION_RECREATED: E(
        "partition_recreated",
        "The partition history is no longer available",
        "the partition was deleted and created again since it was looked up.",
        status=409,
    ),
    C.TOO_MANY_WAITING_POLLS: E(
        "too_many_waiting_polls",
        "Deferred poll capacity exceeded",
        "the maximum number of polls is waiting already.",
        status=429,
    ),
    C.PRODUCER_OUT_OF_ORDER: E(
        "producer_out_of_order", "The producer batch does not follow the last batch of its producer", status=409
    ),
    C.PRODUCER_EPOCH_FENCED: E("producer_epoch_fenced", "A newer epoch of the producer fenced this batch", status=409),
    C.UNKNOWN_PRODUCER: E(
        "unknown_producer",
        "The partition does not know this producer",
        "its first batch there has sequence 0.",
        status=409,
    ),
    C.PRODUCER_WITHOUT_PARTITION: E("producer_without_partition", "A producer batch must name its partition"),
    C.CLIENT_NOT_FOUND: E(
        "client_not_found",
        "Client with ID: {} was not found.",
        "There is no such client.",
        status=404,
        field="client_id",
    ),
    C.INVALID_CLIENT_ID: E("invalid_client_id", "Invalid client ID"),
    C.CANNOT_PARSE_HEADER_KIND: E(
        "cannot_parse_header_kind", "Cannot parse header kind", "the kind of a user header is unknown."
    ),
    C.INVALID_HTTP_REQUEST: E("invalid_http_request", "Invalid HTTP request"),
    C.CANNOT_CREATE_STREAM_DIRECTORY: E(
        "cannot_create_stream_directory", "Cannot create stream", "its folder could not be created."
    ),
    C.CANNOT_DELETE_STREAM_DIRECTORY: E("cannot_delete_stream_directory", "Failed to delete stream directory"),
    C.STREAM_ID_NOT_FOUND: E(
        "stream_id_not_found",
        "Stream with ID: {} was not found.",
        "There is no such stream.",
        status=404,
        field="stream_id",
    ),
    C.STREAM_NAME_NOT_FOUND: E(
        "stream_name_not_found", "Stream with name: {} was not found.", "There is no stream with this name."
    ),
    C.STREAM_NAME_ALREADY_EXISTS: E(
        "stream_name_already_exists",
        "Stream with name: {} already exists.",
        "Another stream has this name.",
        field="name",
    ),
    C.INVALID_STREAM_NAME: E(
        "invalid_stream_name", "Invalid stream name", "it must have 1 to 255 bytes.", field="name"
    ),
    C.INVALID_STREAM_ID: E("invalid_stream_id", "Invalid stream ID", field="stream_id"),
    C.INVALID_TOPIC_SIZE: E("invalid_topic_size", "Max topic size cannot be lower than segment size."),
    C.TOO_MANY_STREAMS: E("too_many_streams", "Too many streams", "the maximum is reached (system.limits.streams)."),
    C.CANNOT_CREATE_TOPIC_DIRECTORY: E("cannot_create_topic_directory", "Failed to create directory for topic"),
    C.CANNOT_DELETE_TOPIC_DIRECTORY: E("cannot_delete_topic_directory", "Failed to delete topic directory"),
    C.TOPIC_ID_NOT_FOUND: E(
        "topic_id_not_found",
        "Topic with ID: {} for stream with ID: {} was not found.",
        "There is no such topic in the stream.",
        status=404,
        field="topic_id",
    ),
    C.TOPIC_NAME_NOT_FOUND: E(
        "topic_name_not_found",
        "Topic with name: {} for stream with ID: {} was not found.",
        "There is no topic with this name in the stream.",
    ),
    C.TOPIC_NAME_ALREADY_EXISTS: E(
        "topic_name_already_exists",
        "Topic with name: {} for stream with ID: {} already exists.",
        "Another topic of the stream has this name.",
        field="name",
    ),
    C.INVALID_TOPIC_NAME: E("invalid_topic_name", "Invalid topic name", "it must have 1 to 255 bytes.", field="name"),
    C.TOO_MANY_PARTITIONS: E("too_many_partitions", "Too many partitions"),
    C.INVALID_TOPIC_ID: E("invalid_topic_id", "Invalid topic ID", field="topic_id"),
    C.INVALID_REPLICATION_FACTOR: E("invalid_replication_factor", "Invalid replication factor"),
    C.INVALID_PARTITIONS_COUNT: E(
        "invalid_partitions_count", "Invalid partitions count", "the topic has fewer partitions."
    ),
    C.TOO_MANY_TOPICS: E(
        "too_many_topics", "Too many topics", "the stream has reached the maximum (system.limits.topics_per_stream)."
    ),
    C.PARTITION_RESIZE_DISABLED: E(
        "partition_resize_disabled",
        "Partition resizing is disabled for this fixed topic",
        "it was created with partition_resize_policy = fixed.",
    ),
    C.CANNOT_CREATE_PARTITION: E("cannot_create_partition", "Cannot create partition"),
    C.CANNOT_CREATE_PARTITION_DIRECTORY: E(
        "cannot_create_partition_directory", "Failed to create directory for partition"
    ),
    C.CANNOT_READ_PARTITIONS: E("cannot_read_partitions", "Cannot read partitions directories"),
    C.CANNOT_DELETE_PARTITION_DIRECTORY: E("cannot_delete_partition_directory", "Failed to delete partition directory"),
    C.PARTITION_NOT_FOUND: E(
        "partition_not_found",
        "Partition with ID: {} for topic with ID: {} for stream with ID: {} was not found.",
        "There is no such partition in the topic.",
        status=404,
        field="partition_id",
    ),
    C.NO_PARTITIONS: E(
        "no_partitions", "Topic with ID: {} for stream with ID: {} has no partitions.", "The topic has no partitions."
    ),
    C.TOPIC_FULL: E("topic_full", "", "The topic has reached its maximum size, and old segments are not deleted."),
    C.CANNOT_DELETE_CONSUMER_OFFSET_FILE: E(
        "cannot_delete_consumer_offset_file", "Failed to delete consumer offset file"
    ),
    C.PARTITION_ID_SPACE_EXHAUSTED: E("partition_id_space_exhausted", "Partition id space exhausted for this topic"),
    C.CONSUMER_OFFSET_NOT_FOUND: E(
        "consumer_offset_not_found",
        "Consumer offset for consumer with ID: {} was not found.",
        "The consumer has stored no offset here.",
        status=404,
    ),
    C.NOT_RESOLVED_CONSUMER: E(
        "not_resolved_consumer",
        "Failed to resolve consumer with ID: {}",
        "The member of the group does not own this partition.",
    ),
    C.CANNOT_OPEN_CONSUMER_OFFSETS_FILE: E("cannot_open_consumer_offsets_file", "Cannot open consumer offsets file"),
    C.TOO_MANY_CONSUMER_OFFSETS: E(
        "too_many_consumer_offsets",
        "",
        "The partition has reached the maximum of stored offsets (system.partition.consumer_offsets_max).",
    ),
    C.SEGMENT_NOT_FOUND: E("segment_not_found", "Segment not found", status=404, field="segment_id"),
    C.CANNOT_SAVE_MESSAGES_TO_SEGMENT: E("cannot_save_messages_to_segment", "Cannot save messages to segment"),
    C.CANNOT_SAVE_INDEX_TO_SEGMENT: E("cannot_save_index_to_segment", "Cannot save index to segment"),
    C.INVALID_MESSAGES_COUNT: E("invalid_messages_count", "Invalid messages count"),
    C.CANNOT_READ_MESSAGE: E("cannot_read_message", "Cannot read message"),
    C.TOO_BIG_USER_HEADERS: E(
        "too_big_user_headers", "Too big headers payload", "the user headers of a message are too long."
    ),
    C.INVALID_HEADER_KEY: E("invalid_header_key", "Invalid header key", "the key of a user header is invalid."),
    C.INVALID_HEADER_VALUE: E("invalid_header_value", "Invalid header value", "the value of a user header is invalid."),
    C.TOO_BIG_MESSAGE_PAYLOAD: E("too_big_message_payload", "Too big message payload"),
    C.TOO_MANY_MESSAGES: E("too_many_messages", "Too many messages", "a request may have fewer."),
    C.EMPTY_MESSAGE_PAYLOAD: E("empty_message_payload", "Empty message payload", "a message must have a payload."),
    C.INVALID_MESSAGE_PAYLOAD_LENGTH: E("invalid_message_payload_length", "Invalid message payload length"),
    C.INVALID_MESSAGE_CHECKSUM: E("invalid_message_checksum", "Invalid message checksum"),
    C.INVALID_KEY_VALUE_LENGTH: E(
        "invalid_key_value_length", "Invalid key value length", "a partitioning key must have 1 to 255 bytes."
    ),
    C.INVALID_SEGMENTS_COUNT: E("invalid_segments_count", "Incorrect Segments Count size"),
    C.NON_ZERO_OFFSET: E("non_zero_offset", "Non-zero offset", "the server assigns offsets: a producer sends 0."),
    C.NON_ZERO_TIMESTAMP: E(
        "non_zero_timestamp", "Non-zero timestamp", "the server assigns timestamps: a producer sends 0."
    ),
    C.MISSING_INDEX: E("missing_index", "Missing index", "the index of the batch does not describe whole messages."),
    C.INVALID_INDEXES_BYTE_SIZE: E("invalid_indexes_byte_size", "Invalid indexes byte size"),
    C.INVALID_INDEXES_COUNT: E("invalid_indexes_count", "Invalid indexes count"),
    C.INVALID_MESSAGES_SIZE: E(
        "invalid_messages_size", "Invalid messages byte size", "the sizes of the messages do not add up."
    ),
    C.TOO_SMALL_MESSAGE: E("too_small_message", "Too small message", "it is shorter than its header."),
    C.INVALID_MESSAGE_TIMESTAMP_DELTA: E(
        "invalid_message_timestamp_delta",
        "Invalid message timestamp delta",
        "the times of the messages are too far apart for one batch.",
    ),
    C.INVALID_BATCH_CHECKSUM: E("invalid_batch_checksum", "Invalid batch checksum"),
    C.INVALID_HEADER_KIND: E("invalid_header_kind", "Invalid header kind code"),
    C.UNSUPPORTED_OPTION_KEY: E("unsupported_option_key", "Unsupported option key"),
    C.INVALID_OPTION_VALUE: E("invalid_option_value", "Invalid option value for key"),
    C.OPTIONS_BLOCK_TOO_LARGE: E(
        "options_block_too_large", "Options block exceeds its limits", "the options are too many or too long."
    ),
    C.INVALID_OFFSET: E("invalid_offset", "Invalid offset", "the partition has no message with it.", field="offset"),
    C.INVALID_RESERVED_FIELD: E(
        "invalid_reserved_field", "Invalid reserved field value", "reserved bytes must be zeros."
    ),
    C.OPTION_NOT_UPDATABLE: E(
        "option_not_updatable", "Option cannot be updated after creation", "it is fixed when the resource is created."
    ),
    C.OPTION_NOT_RESETTABLE: E("option_not_resettable", "Option cannot be reset", "it has no default value."),
    C.OPTION_READ_ONLY: E("option_read_only", "Option is read-only", "the server sets it itself."),
    C.ENCRYPTION_UNAVAILABLE: E(
        "encryption_unavailable",
        "Stream encryption key requires a server encryption key",
        "this server does not encrypt streams.",
    ),
    C.ROOT_USER_UNCHANGEABLE: E(
        "root_user_unchangeable",
        "Cannot modify root user",
        "it can be neither renamed nor deactivated.",
        status=403,
    ),
    C.CONSUMER_GROUP_ID_NOT_FOUND: E(
        "consumer_group_id_not_found",
        "Consumer group with ID: {} for topic with ID: {} was not found.",
        "The topic has no such consumer group.",
        status=404,
    ),
    C.INVALID_CONSUMER_GROUP_ID: E("invalid_consumer_group_id", "Invalid consumer group ID", field="consumer_group_id"),
    C.CONSUMER_GROUP_NAME_NOT_FOUND: E(
        "consumer_group_name_not_found",
        "Consumer group with name: {} for topic with ID: {} was not found.",
        "The topic has no consumer group with this name.",
        status=404,
    ),
    C.CONSUMER_GROUP_NAME_ALREADY_EXISTS: E(
        "consumer_group_name_already_exists",
        "Consumer group with name: {} for topic with ID: {} already exists.",
        "Another consumer group of the topic has this name.",
        field="name",
    ),
    C.INVALID_CONSUMER_GROUP_NAME: E(
        "invalid_consumer_group_name", "Invalid consumer group name", "it must have 1 to 255 bytes."
    ),
    C.CONSUMER_GROUP_MEMBER_NOT_FOUND: E(
        "consumer_group_member_not_found",
        "Consumer group member with client ID: {} for group with ID: {} for topic with ID: {} was not found.",
        "The client is not a member of the consumer group.",
        status=404,
    ),
    C.CONSUMER_GROUP_PARTITION_NOT_OWNED: E(
        "consumer_group_partition_not_owned",
        "Consumer group member with client ID: {} does not own partition: {} at the current generation",
        "The partition belongs to another member of the consumer group.",
    ),
    C.SNAPSHOT_FILE_COMPLETION_FAILED: E("snapshot_file_completion_failed", "Snapshot file completion failed"),
    C.CANNOT_READ_FILE: E("cannot_read_file", "Cannot read file"),
    C.CANNOT_READ_FILE_METADATA: E(
        "cannot_read_file_metadata", "Cannot read file metadata", "the size or the age of a file could not be read."
    ),
    C.CANNOT_APPEND_TO_FILE: E("cannot_append_to_file", "Cannot append to file"),
    C.CANNOT_WRITE_TO_FILE: E("cannot_write_to_file", "Cannot write to file"),
    C.CANNOT_DELETE_FILE: E("cannot_delete_file", "Cannot delete file"),
    C.CANNOT_SYNC_FILE: E("cannot_sync_file", "Cannot sync file", "the data written may not be on the disk."),
    C.CANNOT_READ_INDEX_POSITION: E(
        "cannot_read_index_position", "Cannot read index position", "the positions in the index must increase."
    ),
    C.TIMESTAMP_OUT_OF_RANGE: E("timestamp_out_of_range", "Timestamp out of range"),
    C.SHARD_COMMUNICATION_ERROR: E(
        "shard_communication_error", "Shard communication error", "a part of the server did not respond to another."
    ),
    C.TASK_TIMEOUT: E("task_timeout", "Task execution timeout"),
    C.IO_ERROR: E("io_error", "IO error", "a disk or a network failed."),
    C.INVALID_PRODUCER: E(
        "invalid_producer", "", "A producer has an id of 1 to 64 bytes, an epoch below 2^32 and a sequence below 2^64."
    ),
    C.PRODUCER_FENCED: E(
        "producer_fenced", "", "A producer with the same id and a higher epoch has replaced it.", status=409
    ),
    C.PRODUCER_SEQUENCE_PASSED: E(
        "producer_sequence_passed", "", "The send is not stored, and newer sends of its producer are.", status=409
    ),
    C.TOO_MANY_LOGINS: E("too_many_logins", "", "Too many logins have failed: try again later.", status=429),
    C.TOO_MANY_ENDED_TOKENS: E(
        "too_many_ended_tokens",
        "",
        "The user has ended or refreshed too many access tokens: try again later.",
        status=429,
    ),
    C.TOO_MANY_CONSUMER_GROUPS: E(
        "too_many_consumer_groups",
        "",
        "The topic has reached the maximum number of consumer groups (system.limits.consumer_groups_per_topic).",
    ),
    C.DISK_FULL: E("disk_full", "", "The disk of the server has no room for more (system.disk.reserve).", status=507),
    C.AUDIT_UNAVAILABLE: E(
        "audit_unavailable", "", "The audit log cannot be written, and it is required (audit.required).", status=503
    ),
}


class CommandError(Exception):
    """A refused command. The text is for people, and for programs that look for Iggy's words in it: it is logged, and
    clients get it over HTTP. Binary clients get only the number.

    `about` fills the places in Iggy's words, and `detail` adds to them. `retry_after_s` is when repeating the request
    may succeed, if that is known.
    """

    def __init__(
        self,
        code: Code,
        detail: str | None = None,
        retry_after_s: int | None = None,
        *,
        about: Sequence[object] = (),
    ) -> None:
        super().__init__(TABLE[code].text(detail, about))
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.about = tuple(about)

    def __reduce__(self) -> tuple[Callable[..., CommandError], tuple[object, ...]]:
        return _again, (self.code, self.detail, self.retry_after_s, self.about)


def _again(code: Code, detail: str | None, retry_after_s: int | None, about: tuple[object, ...]) -> CommandError:
    return CommandError(code, detail, retry_after_s, about=about)


_ON_THE_WIRE = {
    Code.TOO_MANY_LOGINS: Code.INVALID_CREDENTIALS,
    Code.TOO_MANY_CONSUMER_GROUPS: Code.INVALID_CONFIGURATION,
    Code.DISK_FULL: Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT,
    Code.AUDIT_UNAVAILABLE: Code.CANNOT_WRITE_TO_FILE,
}


def on_the_wire(code: Code) -> Code:
    """Returns the number for a client of the binary protocols. All SDKs report the number of a wrong password, and none
    of them responds to it by reconnecting in a loop. A disk without room is reported like one that refuses a write."""
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
    (storage_errors.ArchiveBehind, Code.TOPIC_FULL),
    (storage_errors.DiskFull, Code.DISK_FULL),
    (storage_errors.InvalidOffset, Code.INVALID_OFFSET),
    (storage_errors.TooManyOffsets, Code.TOO_MANY_CONSUMER_OFFSETS),
    (storage_errors.InvalidProducer, Code.INVALID_PRODUCER),
    (storage_errors.ProducerFenced, Code.PRODUCER_FENCED),
    (storage_errors.SequencePassed, Code.PRODUCER_SEQUENCE_PASSED),
    (storage_errors.SequenceForgotten, Code.REQUEST_ALREADY_APPLIED),
    (storage_errors.UnknownProducer, Code.UNKNOWN_PRODUCER),
    (storage_errors.SequenceGap, Code.PRODUCER_OUT_OF_ORDER),
    (storage_errors.Unsupported, Code.FEATURE_UNAVAILABLE),
    (storage_errors.WriteFailed, Code.CANNOT_SAVE_MESSAGES_TO_SEGMENT),
    (storage_errors.ReadFailed, Code.CANNOT_READ_MESSAGE),
    (storage_errors.PartitionFailed, Code.CANNOT_SYNC_FILE),
    (storage_errors.PartitionClosed, Code.PARTITION_NOT_FOUND),
    (storage_errors.StoreLocked, Code.INVALID_CONFIGURATION),
    (storage_errors.UnsupportedFormat, Code.INVALID_CONFIGURATION),
    (storage_errors.StorageError, Code.IO_ERROR),
)


def of_storage(error: storage_errors.StorageError) -> CommandError:
    """Converts a failure of the store to the error for clients; the first row that fits decides, and the text stays the
    store's."""
    if isinstance(error, storage_errors.InvalidBatch):
        code = _OF_FAULT[error.fault]
    else:
        code = next(code for kind, code in _OF_STORAGE if isinstance(error, kind))
    return CommandError(code, str(error))
