"""Every command as a method. What carries them out is `call`, which each client has in its own way.

A method sends when it is called, not when its future is awaited: several may be under way on one connection. What is
not there is None where a question is asked, and a refusal where something is to be done with it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from whippet.app.access.permissions import Permissions
from whippet.app.client.packing import as_batch
from whippet.app.commands import answers
from whippet.app.commands import requests as ask
from whippet.app.commands.requests import Consumer, Identifier, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.model.options import Option, OptionScope
from whippet.storage.batch import Message

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
    def call(self, request: ask.Request) -> Future[Any]:
        """Carries out any command."""

    # ------------------------------------------------------------------------------------------------------- system

    def ping(self) -> Future[None]:
        return self.call(ask.Ping())

    def get_stats(self) -> Future[answers.Stats]:
        return self.call(ask.GetStats())

    def get_snapshot(self, compression: int = 2, types: Sequence[int] = (100,)) -> Future[answers.Snapshot]:
        """A ZIP archive; the numbers are those of the protocol, 100 is everything."""
        return self.call(ask.GetSnapshot(compression, tuple(types)))

    def get_cluster_metadata(self) -> Future[answers.ClusterMetadata]:
        return self.call(ask.GetClusterMetadata())

    def describe_options(self, scope: OptionScope) -> Future[tuple[answers.OptionDescription, ...]]:
        """Of the modern wire alone, as are options."""
        return self.call(ask.DescribeOptions(scope))

    def get_me(self) -> Future[answers.ClientInfo]:
        return self.call(ask.GetMe())

    def get_client(self, client_id: int) -> Future[answers.ClientInfo | None]:
        return self.call(ask.GetClient(client_id))

    def get_clients(self) -> Future[tuple[answers.ClientInfo, ...]]:
        """Their groups are only counted in this answer, so each has none; `get_client` names them."""
        return self.call(ask.GetClients())

    # ------------------------------------------------------------------------------------------- users and sessions

    def get_user(self, user: Identifier) -> Future[answers.UserDetails | None]:
        return self.call(ask.GetUser(user))

    def get_users(self) -> Future[tuple[answers.UserInfo, ...]]:
        return self.call(ask.GetUsers())

    def create_user(
        self,
        username: str,
        password: str,
        permissions: Permissions | None = None,
        status: ask.UserStatus = ask.UserStatus.ACTIVE,
    ) -> Future[answers.UserDetails]:
        return self.call(ask.CreateUser(username, password, status, permissions))

    def delete_user(self, user: Identifier) -> Future[None]:
        return self.call(ask.DeleteUser(user))

    def update_user(
        self, user: Identifier, username: str | None = None, status: ask.UserStatus | None = None
    ) -> Future[None]:
        return self.call(ask.UpdateUser(user, username, status))

    def update_permissions(self, user: Identifier, permissions: Permissions | None) -> Future[None]:
        return self.call(ask.UpdatePermissions(user, permissions))

    def change_password(self, user: Identifier, current_password: str, new_password: str) -> Future[None]:
        return self.call(ask.ChangePassword(user, current_password, new_password))

    def login_user(self, username: str, password: str) -> Future[answers.LoggedIn]:
        """For this connection: after a reconnection it is again who the connection string says."""
        return self.call(ask.LoginUser(username, password))

    def login_with_personal_access_token(self, token: str) -> Future[answers.LoggedIn]:
        """As `login_user`."""
        return self.call(ask.LoginWithPersonalAccessToken(token))

    def logout_user(self) -> Future[None]:
        return self.call(ask.LogoutUser())

    def get_personal_access_tokens(self) -> Future[tuple[answers.TokenInfo, ...]]:
        return self.call(ask.GetPersonalAccessTokens())

    def create_personal_access_token(self, name: str, expiry_us: int = 0) -> Future[answers.RawToken]:
        """`expiry_us` from now; 0 is never."""
        return self.call(ask.CreatePersonalAccessToken(name, expiry_us))

    def delete_personal_access_token(self, name: str) -> Future[None]:
        return self.call(ask.DeletePersonalAccessToken(name))

    # ----------------------------------------------------------------------------------------- messages and offsets

    def send_messages(
        self,
        stream: Identifier,
        topic: Identifier,
        messages: Sequence[bytes | Message] | bytearray | memoryview,
        partitioning: Partitioning = BALANCED,
    ) -> Future[answers.Sent | None]:
        """`messages` are payloads, messages with ids and headers, or a batch that is ready.

        The classic protocol does not say where they went: None.
        """
        return self.call(ask.SendMessages(stream, topic, partitioning, (as_batch(messages),)))

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
    ) -> Future[answers.Polled]:
        """Batches; `whippet.storage.batch.messages` makes single messages of one."""
        return self.call(ask.PollMessages(consumer, stream, topic, partition_id, strategy, count, auto_commit))

    def flush_unsaved_buffer(
        self, stream: Identifier, topic: Identifier, partition_id: int, *, fsync: bool = False
    ) -> Future[None]:
        return self.call(ask.FlushUnsavedBuffer(stream, topic, partition_id, fsync))

    def get_consumer_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, partition_id: int | None = None
    ) -> Future[answers.ConsumerOffset | None]:
        return self.call(ask.GetConsumerOffset(consumer, stream, topic, partition_id))

    def store_consumer_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, offset: int, partition_id: int | None = None
    ) -> Future[None]:
        return self.call(ask.StoreConsumerOffset(consumer, stream, topic, partition_id, offset))

    def delete_consumer_offset(
        self, stream: Identifier, topic: Identifier, consumer: Consumer, partition_id: int | None = None
    ) -> Future[None]:
        return self.call(ask.DeleteConsumerOffset(consumer, stream, topic, partition_id))

    # ------------------------------------------------------------------------------------------- streams and topics

    def get_stream(self, stream: Identifier) -> Future[answers.StreamDetails | None]:
        return self.call(ask.GetStream(stream))

    def get_streams(self) -> Future[tuple[answers.StreamInfo, ...]]:
        return self.call(ask.GetStreams())

    def create_stream(self, name: str) -> Future[answers.StreamDetails]:
        return self.call(ask.CreateStream(name))

    def delete_stream(self, stream: Identifier) -> Future[None]:
        return self.call(ask.DeleteStream(stream))

    def update_stream(self, stream: Identifier, name: str) -> Future[None]:
        return self.call(ask.UpdateStream(stream, name))

    def purge_stream(self, stream: Identifier) -> Future[None]:
        return self.call(ask.PurgeStream(stream))

    def get_topic(self, stream: Identifier, topic: Identifier) -> Future[answers.TopicDetails | None]:
        return self.call(ask.GetTopic(stream, topic))

    def get_topics(self, stream: Identifier) -> Future[tuple[answers.TopicInfo, ...]]:
        return self.call(ask.GetTopics(stream))

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
    ) -> Future[answers.TopicDetails]:
        """Expiry in us and size in bytes; 0 is the server's default, 2**64 - 1 never and unlimited."""
        settings = (compression_algorithm, message_expiry, max_topic_size, replication_factor)
        return self.call(ask.CreateTopic(stream, name, partitions_count, *settings, tuple(options)))

    def delete_topic(self, stream: Identifier, topic: Identifier) -> Future[None]:
        return self.call(ask.DeleteTopic(stream, topic))

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
        """Settings mean what they mean for `create_topic`, but 0 keeps what is."""
        settings = (compression_algorithm, message_expiry, max_topic_size, replication_factor)
        return self.call(ask.UpdateTopic(stream, topic, name, *settings))

    def purge_topic(self, stream: Identifier, topic: Identifier) -> Future[None]:
        return self.call(ask.PurgeTopic(stream, topic))

    def create_partitions(self, stream: Identifier, topic: Identifier, count: int) -> Future[None]:
        return self.call(ask.CreatePartitions(stream, topic, count))

    def delete_partitions(self, stream: Identifier, topic: Identifier, count: int) -> Future[None]:
        return self.call(ask.DeletePartitions(stream, topic, count))

    def delete_segments(self, stream: Identifier, topic: Identifier, partition_id: int, count: int) -> Future[None]:
        return self.call(ask.DeleteSegments(stream, topic, partition_id, count))

    # ----------------------------------------------------------------------------------------------- consumer groups

    def get_consumer_group(
        self, stream: Identifier, topic: Identifier, group: Identifier
    ) -> Future[answers.GroupDetails | None]:
        return self.call(ask.GetConsumerGroup(stream, topic, group))

    def get_consumer_groups(self, stream: Identifier, topic: Identifier) -> Future[tuple[answers.GroupInfo, ...]]:
        return self.call(ask.GetConsumerGroups(stream, topic))

    def create_consumer_group(self, stream: Identifier, topic: Identifier, name: str) -> Future[answers.GroupDetails]:
        return self.call(ask.CreateConsumerGroup(stream, topic, name))

    def delete_consumer_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Future[None]:
        return self.call(ask.DeleteConsumerGroup(stream, topic, group))

    def join_consumer_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Future[None]:
        """It is the connection that joins: a new one has to join again."""
        return self.call(ask.JoinConsumerGroup(stream, topic, group))

    def leave_consumer_group(self, stream: Identifier, topic: Identifier, group: Identifier) -> Future[None]:
        return self.call(ask.LeaveConsumerGroup(stream, topic, group))

    def sync_consumer_group(
        self, stream: Identifier, topic: Identifier, group: Identifier
    ) -> Future[answers.GroupAssignment | None]:
        """What this member may poll, None when it is none. Of the modern wire alone; nobody needs it who names no
        partition when polling as a member."""
        return self.call(ask.SyncConsumerGroup(stream, topic, group))
