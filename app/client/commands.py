"""Every command as a method. Each client implements `call`, which executes them.

A method sends when it is called, not when its future is awaited: several requests may be in progress on one connection.
A query for something that does not exist returns None, an operation on it is refused.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from whippet.app.access.permissions import Permissions
from whippet.app.client.batching import as_batch
from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Consumer, Identifier, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.model.options import Option, OptionScope
from whippet.storage.batch import Message
from whippet.storage.producers import Producer

Future = asyncio.Future

BALANCED = Partitioning(PartitioningKind.BALANCED)
NEXT = Strategy(StrategyKind.NEXT)
FIRST = Strategy(StrategyKind.FIRST)
LAST = Strategy(StrategyKind.LAST)


def to_partition(partition_id: int) -> Partitioning:
    return Partitioning(PartitioningKind.PARTITION_ID, partition_id)


def by_key(key: bytes) -> Partitioning:
    return Partitioning(PartitioningKind.MESSAGES_KEY, key=key)


def from_offset(offset: int) -> Strategy:
    return Strategy(StrategyKind.OFFSET, offset)


def from_time(timestamp_us: int) -> Strategy:
    return Strategy(StrategyKind.TIMESTAMP, timestamp_us)


class Commands(ABC):
    @abstractmethod
    def call(self, request: requests.Request) -> Future[Any]:
        """Executes any command."""

    # ------------------------------------------------------------------------------------------------------- system

    def ping(self) -> Future[None]:
        return self.call(requests.Ping())

    def get_stats(self) -> Future[responses.Stats]:
        return self.call(requests.GetStats())

    def get_snapshot(self, compression: int = 2, types: Sequence[int] = (100,)) -> Future[responses.Snapshot]:
        """A ZIP archive; the numbers are those of the protocol, 100 is everything."""
        return self.call(requests.GetSnapshot(compression, tuple(types)))

    def get_cluster_metadata(self) -> Future[responses.ClusterMetadata]:
        return self.call(requests.GetClusterMetadata())

    def describe_options(self, scope: OptionScope) -> Future[tuple[responses.OptionDescription, ...]]:
        """Only in the modern protocol, like options."""
        return self.call(requests.DescribeOptions(scope))

    def get_me(self) -> Future[responses.ClientInfo]:
        return self.call(requests.GetMe())

    def get_client(self, client_id: int) -> Future[responses.ClientInfo | None]:
        return self.call(requests.GetClient(client_id))

    def get_clients(self) -> Future[tuple[responses.ClientInfo, ...]]:
        """Groups are only counted in this response, so each client has none; `get_client` returns them."""
        return self.call(requests.GetClients())

    # ------------------------------------------------------------------------------------------- users and sessions

    def get_user(self, user: Identifier) -> Future[responses.UserDetails | None]:
        return self.call(requests.GetUser(user))

    def get_users(self) -> Future[tuple[responses.UserInfo, ...]]:
        return self.call(requests.GetUsers())

    def create_user(
        self,
        username: str,
        password: str,
        permissions: Permissions | None = None,
        status: requests.UserStatus = requests.UserStatus.ACTIVE,
    ) -> Future[responses.UserDetails]:
        return self.call(requests.CreateUser(username, password, status, permissions))

    def delete_user(self, user: Identifier) -> Future[None]:
        return self.call(requests.DeleteUser(user))

    def update_user(
        self, user: Identifier, username: str | None = None, status: requests.UserStatus | None = None
    ) -> Future[None]:
        return self.call(requests.UpdateUser(user, username, status))

    def update_permissions(self, user: Identifier, permissions: Permissions | None) -> Future[None]:
        return self.call(requests.UpdatePermissions(user, permissions))

    def change_password(self, user: Identifier, current_password: str, new_password: str) -> Future[None]:
        return self.call(requests.ChangePassword(user, current_password, new_password))

    def login_user(self, username: str, password: str) -> Future[responses.LoggedIn]:
        """Logs in on this connection only: a reconnection uses the credentials of the connection string again."""
        return self.call(requests.LoginUser(username, password))

    def login_with_personal_access_token(self, token: str) -> Future[responses.LoggedIn]:
        """Like `login_user`."""
        return self.call(requests.LoginWithPersonalAccessToken(token))

    def logout_user(self) -> Future[None]:
        return self.call(requests.LogoutUser())

    def get_personal_access_tokens(self) -> Future[tuple[responses.TokenInfo, ...]]:
        return self.call(requests.GetPersonalAccessTokens())

    def create_personal_access_token(self, name: str, expiry_us: int = 0) -> Future[responses.RawToken]:
        """`expiry_us` from now; 0 is never."""
        return self.call(requests.CreatePersonalAccessToken(name, expiry_us))

    def delete_personal_access_token(self, name: str) -> Future[None]:
        return self.call(requests.DeletePersonalAccessToken(name))

    # ----------------------------------------------------------------------------------------- messages and offsets

    def send_messages(
        self,
        stream: Identifier,
        topic: Identifier,
        messages: Sequence[bytes | Message] | bytearray | memoryview,
        partitioning: Partitioning = BALANCED,
        *,
        number: Producer | None = None,
    ) -> Future[responses.Sent | None]:
        """`messages` are payloads, messages with ids and headers, or a finished batch. A send with a number may be
        repeated: it is stored once.

        Returns None with the classic protocol, which does not tell where they were stored, unless there is a number.
        """
        return self.call(requests.SendMessages(stream, topic, partitioning, (as_batch(messages),), producer=number))

    def poll_messages(
        self,
        stream: Identifier,
        topic: Identifier,
        consumer: Consumer,
        *,
        partition_id: int | None = None,
        strategy: Strategy = NEXT,
        count: int = 1000,
        auto_commit: bool = False,
    ) -> Future[responses.Polled]:
        """Returns batches; `whippet.storage.batch.messages` decodes their messages."""
        return self.call(requests.PollMessages(consumer, stream, topic, partition_id, strategy, count, auto_commit))

    def flush_unsaved_buffer(
        self, stream: Identifier, topic: Identifier, partition_id: int, *, fsync: bool = False
    ) -> Future[None]:
        return self.call(requests.FlushUnsavedBuffer(stream, topic, partition_id, fsync))

    def get_consumer_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, partition_id: int | None = None
    ) -> Future[responses.ConsumerOffset | None]:
        return self.call(requests.GetConsumerOffset(consumer, stream, topic, partition_id))

    def store_consumer_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, offset: int, partition_id: int | None = None
    ) -> Future[None]:
        return self.call(requests.StoreConsumerOffset(consumer, stream, topic, partition_id, offset))

    def delete_consumer_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, partition_id: int | None = None
    ) -> Future[None]:
        return self.call(requests.DeleteConsumerOffset(consumer, stream, topic, partition_id))

    # ------------------------------------------------------------------------------------------- streams and topics

    def get_stream(self, stream: Identifier) -> Future[responses.StreamDetails | None]:
        return self.call(requests.GetStream(stream))

    def get_streams(self) -> Future[tuple[responses.StreamInfo, ...]]:
        return self.call(requests.GetStreams())

    def create_stream(self, name: str) -> Future[responses.StreamDetails]:
        return self.call(requests.CreateStream(name))

    def delete_stream(self, stream: Identifier) -> Future[None]:
        return self.call(requests.DeleteStream(stream))

    def update_stream(self, stream: Identifier, name: str) -> Future[None]:
        return self.call(requests.UpdateStream(stream, name))

    def purge_stream(self, stream: Identifier) -> Future[None]:
        return self.call(requests.PurgeStream(stream))

    def get_topic(self, stream: Identifier, topic: Identifier) -> Future[responses.TopicDetails | None]:
        return self.call(requests.GetTopic(stream, topic))

    def get_topics(self, stream: Identifier) -> Future[tuple[responses.TopicInfo, ...]]:
        return self.call(requests.GetTopics(stream))

    def create_topic(
        self,
        stream: Identifier,
        name: str,
        partitions_count: int = 1,
        *,
        compression_algorithm: int = 1,
        message_expiry: int = 0,
        max_topic_size: int = 0,
        replication_factor: int = 0,
        options: Sequence[Option] = (),
    ) -> Future[responses.TopicDetails]:
        """Expiry in us and size in bytes; 0 is the server's default, 2**64 - 1 never and unlimited."""
        settings = (compression_algorithm, message_expiry, max_topic_size, replication_factor)
        return self.call(requests.CreateTopic(stream, name, partitions_count, *settings, tuple(options)))

    def delete_topic(self, stream: Identifier, topic: Identifier) -> Future[None]:
        return self.call(requests.DeleteTopic(stream, topic))

    def update_topic(
        self,
        stream: Identifier,
        topic: Identifier,
        name: str,
        *,
        compression_algorithm: int = 1,
        message_expiry: int = 0,
        max_topic_size: int = 0,
        replication_factor: int = 0,
    ) -> Future[None]:
        """Settings mean the same as for `create_topic`, but 0 keeps the present value."""
        settings = (compression_algorithm, message_expiry, max_topic_size, replication_factor)
        return self.call(requests.UpdateTopic(stream, topic, name, *settings))

    def purge_topic(self, stream: Identifier, topic: Identifier) -> Future[None]:
        return self.call(requests.PurgeTopic(stream, topic))

    def create_partitions(self, stream: Identifier, topic: Identifier, count: int) -> Future[None]:
        return self.call(requests.CreatePartitions(stream, topic, count))

    def delete_partitions(self, stream: Identifier, topic: Identifier, count: int) -> Future[None]:
        return self.call(requests.DeletePartitions(stream, topic, count))

    def delete_segments(self, stream: Identifier, topic: Identifier, partition_id: int, count: int) -> Future[None]:
        return self.call(requests.DeleteSegments(stream, topic, partition_id, count))

    # ----------------------------------------------------------------------------------------------- consumer groups

    def get_consumer_group(
        self, stream: Identifier, topic: Identifier, group: Identifier
    ) -> Future[responses.GroupDetails | None]:
        return self.call(requests.GetConsumerGroup(stream, topic, group))

    def get_consumer_groups(self, stream: Identifier, topic: Identifier) -> Future[tuple[responses.GroupInfo, ...]]:
        return self.call(requests.GetConsumerGroups(stream, topic))

    def create_consumer_group(self, stream: Identifier, topic: Identifier, name: str) -> Future[responses.GroupDetails]:
        return self.call(requests.CreateConsumerGroup(stream, topic, name))

    def delete_consumer_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Future[None]:
        return self.call(requests.DeleteConsumerGroup(stream, topic, group))

    def join_consumer_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Future[None]:
        """The connection joins: a new one has to join again."""
        return self.call(requests.JoinConsumerGroup(stream, topic, group))

    def leave_consumer_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Future[None]:
        return self.call(requests.LeaveConsumerGroup(stream, topic, group))

    def sync_consumer_group(
        self, stream: Identifier, topic: Identifier, group: Identifier
    ) -> Future[responses.GroupAssignment | None]:
        """Returns the partitions that this member may poll; None if it is no member. Only in the modern protocol, and
        unnecessary for a member that names no partition when polling."""
        return self.call(requests.SyncConsumerGroup(stream, topic, group))
