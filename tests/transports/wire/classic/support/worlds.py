"""Hypothesis strategies for any request and any response."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import requests, responses
from whippet.storage import batch as batches
from whippet.storage.options import Durability
from whippet.transports.wire import numbered_sends

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
F32 = st.floats(width=32, allow_nan=False)
TEXT = st.text(max_size=60)
NAME = st.text(min_size=1, max_size=60)
IDENTIFIER = st.one_of(U32, NAME)
POLLING = (requests.ConsumerKind.CONSUMER, requests.ConsumerKind.GROUP)
CONSUMER = st.builds(requests.Consumer, kind=st.sampled_from(POLLING), id=IDENTIFIER)
PARTITION = st.none() | U32
PARTITIONING = st.one_of(
    st.just(requests.Partitioning(requests.PartitioningKind.BALANCED)),
    st.builds(requests.Partitioning, kind=st.just(requests.PartitioningKind.PARTITION_ID), partition_id=U32),
    st.builds(
        requests.Partitioning,
        kind=st.just(requests.PartitioningKind.MESSAGES_KEY),
        key=st.binary(min_size=1, max_size=255),
    ),
)
STRATEGY = st.one_of(
    st.builds(
        requests.Strategy,
        kind=st.sampled_from([requests.StrategyKind.OFFSET, requests.StrategyKind.TIMESTAMP]),
        value=U64,
    ),
    st.sampled_from([requests.StrategyKind.FIRST, requests.StrategyKind.LAST, requests.StrategyKind.NEXT]).map(
        requests.Strategy
    ),
)
COMPRESSION = st.sampled_from([1, 2])
FLAG = st.booleans()


def _flags(kind: type[Any], **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = [name for name in kind.__struct_fields__ if name not in others]
    return st.builds(kind, **dict.fromkeys(names, FLAG), **others)


PERMISSIONS: st.SearchStrategy[Permissions] = st.builds(
    Permissions,
    everywhere=_flags(GlobalPermissions),
    streams=st.dictionaries(
        U32,
        _flags(StreamPermissions, topics=st.dictionaries(U32, _flags(TopicPermissions), max_size=3)),
        max_size=3,
    ),
)

MESSAGE = st.builds(
    batches.Message,
    payload=st.binary(min_size=1, max_size=40),
    id=st.integers(1, 2**128 - 1),
    user_headers=st.just(b"") | st.binary(max_size=20),
    origin_timestamp=st.integers(10**15, 10**15 + 2**32 - 1),
)
BATCH = st.lists(MESSAGE, min_size=1, max_size=20).map(lambda messages: batches.build(messages, 0, lambda n: b"\7" * n))

_S, _T, _G = {"stream": IDENTIFIER}, {"topic": IDENTIFIER}, {"group": IDENTIFIER}
_PLACE = {"consumer": CONSUMER, **_S, **_T, "partition_id": PARTITION}
_TOPIC = {
    "name": NAME,
    "compression_algorithm": COMPRESSION,
    "message_expiry": U64,
    "max_topic_size": U64,
    "replication_factor": U8,
}
REQUESTS: dict[type[requests.Request], dict[str, st.SearchStrategy[Any]]] = {
    requests.Ping: {},
    requests.GetStats: {},
    requests.GetSnapshot: {"compression": U8, "types": st.lists(U8, max_size=8).map(tuple)},
    requests.GetClusterMetadata: {},
    requests.GetMe: {},
    requests.GetClient: {"client_id": U32},
    requests.GetClients: {},
    requests.GetUser: {"user": IDENTIFIER},
    requests.GetUsers: {},
    requests.CreateUser: {
        "username": NAME,
        "password": TEXT,
        "status": st.sampled_from(requests.UserStatus),
        "permissions": st.none() | PERMISSIONS,
    },
    requests.DeleteUser: {"user": IDENTIFIER},
    requests.UpdateUser: {
        "user": IDENTIFIER,
        "username": st.none() | NAME,
        "status": st.none() | st.sampled_from(requests.UserStatus),
    },
    requests.UpdatePermissions: {"user": IDENTIFIER, "permissions": st.none() | PERMISSIONS},
    requests.ChangePassword: {"user": IDENTIFIER, "current_password": TEXT, "new_password": TEXT},
    requests.LoginUser: {"username": NAME, "password": TEXT, "version": TEXT, "context": TEXT},
    requests.LogoutUser: {},
    requests.GetPersonalAccessTokens: {},
    requests.CreatePersonalAccessToken: {"name": NAME, "expiry": U64},
    requests.DeletePersonalAccessToken: {"name": NAME},
    requests.LoginWithPersonalAccessToken: {"token": NAME},
    requests.PollMessages: {**_PLACE, "strategy": STRATEGY, "count": U32, "auto_commit": FLAG},
    requests.SendMessages: {**_S, **_T, "partitioning": PARTITIONING, "batches": BATCH.map(lambda batch: (batch,))},
    requests.FlushUnsavedBuffer: {**_S, **_T, "partition_id": U32, "fsync": FLAG},
    requests.GetConsumerOffset: _PLACE,
    requests.StoreConsumerOffset: {**_PLACE, "offset": U64},
    requests.DeleteConsumerOffset: _PLACE,
    requests.GetStream: _S,
    requests.GetStreams: {},
    requests.CreateStream: {"name": NAME},
    requests.DeleteStream: _S,
    requests.UpdateStream: {**_S, "name": NAME},
    requests.PurgeStream: _S,
    requests.GetTopic: {**_S, **_T},
    requests.GetTopics: _S,
    requests.CreateTopic: {**_S, **_TOPIC, "partitions_count": U32},
    requests.DeleteTopic: {**_S, **_T},
    requests.UpdateTopic: {**_S, **_T, **_TOPIC},
    requests.PurgeTopic: {**_S, **_T},
    requests.CreatePartitions: {**_S, **_T, "count": U32},
    requests.DeletePartitions: {**_S, **_T, "count": U32},
    requests.DeleteSegments: {**_S, **_T, "partition_id": U32, "count": U32},
    requests.GetConsumerGroup: {**_S, **_T, **_G},
    requests.GetConsumerGroups: {**_S, **_T},
    requests.CreateConsumerGroup: {**_S, **_T, "name": NAME},
    requests.DeleteConsumerGroup: {**_S, **_T, **_G},
    requests.JoinConsumerGroup: {**_S, **_T, **_G},
    requests.LeaveConsumerGroup: {**_S, **_T, **_G},
}


def request(kind: type[requests.Request]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **REQUESTS[kind])


ANY_REQUEST = st.sampled_from(list(REQUESTS)).flatmap(request)

# ------------------------------------------------------------------------------------------------------------ answers


def _fields(**parts: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return parts


STREAM_FIELDS = _fields(id=U32, created_at=U64, size_bytes=U64, messages_count=U64, name=NAME)
TOPIC_FIELDS = _fields(
    id=U32,
    created_at=U64,
    message_expiry=U64,
    # zstd, which clients do not know, is sent as gzip.
    compression_algorithm=U8.filter(lambda algorithm: algorithm != 3),
    max_topic_size=U64,
    replication_factor=U8,
    size_bytes=U64,
    messages_count=U64,
    name=NAME,
)
TOPIC = st.builds(responses.TopicInfo, **TOPIC_FIELDS, partitions_count=U32)
STREAM = st.builds(responses.StreamInfo, **STREAM_FIELDS, topics_count=U32)
PARTITION_INFO = st.builds(
    responses.PartitionInfo,
    id=U32,
    created_at=U64,
    segments_count=U32,
    current_offset=U64,
    size_bytes=U64,
    messages_count=U64,
)
GROUP = st.builds(responses.GroupInfo, id=U32, partitions_count=U32, members_count=U32, name=NAME)
MEMBER = st.builds(responses.GroupMember, id=U32, partitions=st.lists(U32, max_size=4).map(tuple))


@st.composite
def stream_details(draw: st.DrawFn) -> responses.StreamDetails:
    topics = tuple(draw(st.lists(TOPIC, max_size=3)))
    return responses.StreamDetails(
        draw(st.builds(responses.StreamInfo, **STREAM_FIELDS, topics_count=st.just(len(topics)))), topics
    )


@st.composite
def topic_details(draw: st.DrawFn) -> responses.TopicDetails:
    partitions = tuple(draw(st.lists(PARTITION_INFO, max_size=3)))
    return responses.TopicDetails(
        draw(st.builds(responses.TopicInfo, **TOPIC_FIELDS, partitions_count=st.just(len(partitions)))), partitions
    )


@st.composite
def group_details(draw: st.DrawFn) -> responses.GroupDetails:
    members = tuple(draw(st.lists(MEMBER, max_size=3)))
    info = st.builds(responses.GroupInfo, id=U32, partitions_count=U32, members_count=st.just(len(members)), name=NAME)
    return responses.GroupDetails(draw(info), members)


USER = st.builds(responses.UserInfo, id=U32, created_at=U64, status=st.sampled_from(requests.UserStatus), username=NAME)
USER_DETAILS = st.builds(responses.UserDetails, info=USER, permissions=st.none() | PERMISSIONS)
CLIENT_FIELDS = _fields(client_id=U32, user_id=st.none() | st.integers(0, 2**32 - 2), transport=U8, address=TEXT)
MEMBERSHIP = st.builds(responses.GroupMembership, stream_id=U32, topic_id=U32, group_id=U32)
CLIENT = st.builds(responses.ClientInfo, **CLIENT_FIELDS, groups=st.lists(MEMBERSHIP, max_size=3).map(tuple))
CLIENT_WITHOUT_GROUPS = st.builds(responses.ClientInfo, **CLIENT_FIELDS, groups=st.just(()))
NODE = st.builds(
    responses.ClusterNode,
    name=TEXT,
    ip=TEXT,
    tcp_port=U16,
    quic_port=U16,
    http_port=U16,
    websocket_port=U16,
    role=U8,
    status=U8,
)
_OF_A_COUNT = dict.fromkeys(
    (
        "process_id",
        "server_semver",
        "threads_count",
        "streams_count",
        "topics_count",
        "partitions_count",
        "segments_count",
        "clients_count",
        "consumer_groups_count",
    ),
    U32,
)
_OF_A_TYPE: dict[str, st.SearchStrategy[Any]] = {"int": U64, "float": F32, "str": TEXT}
STATS = st.builds(
    responses.Stats,
    **{
        name: _OF_A_COUNT.get(name, _OF_A_TYPE[str(kind)])
        for name, kind in responses.Stats.__annotations__.items()
        if name not in ("classic_size_bytes", "open_files_count", "open_files_limit")
    },
)
_LOGGED_IN = st.builds(responses.LoggedIn, user_id=U32)


def _list_of(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=4).map(tuple)


ANSWERS: dict[int, st.SearchStrategy[Any]] = {
    1: st.none(),
    10: STATS,
    11: st.builds(responses.Snapshot, content=st.binary(min_size=2, max_size=100)),
    12: st.builds(responses.ClusterMetadata, name=TEXT, nodes=_list_of(NODE)),
    20: CLIENT,
    21: st.none() | CLIENT,
    22: _list_of(CLIENT_WITHOUT_GROUPS),
    31: st.none() | USER_DETAILS,
    32: _list_of(USER),
    33: USER_DETAILS,
    38: _LOGGED_IN,
    41: _list_of(st.builds(responses.TokenInfo, name=NAME, expires_at=U64)),
    42: st.builds(responses.RawToken, token=NAME),
    44: _LOGGED_IN,
    120: st.none() | st.builds(responses.ConsumerOffset, partition_id=U32, current_offset=U64, stored_offset=U64),
    200: st.none() | stream_details(),
    201: _list_of(STREAM),
    202: stream_details(),
    300: st.none() | topic_details(),
    301: _list_of(TOPIC),
    302: topic_details(),
    600: st.none() | group_details(),
    601: _list_of(GROUP),
    602: group_details(),
    numbered_sends.CODE: st.builds(
        responses.Sent,
        **dict.fromkeys(("stream_id", "topic_id", "partition_id"), U32),
        **dict.fromkeys(("base_offset", "messages_count"), U64),
        durability=st.sampled_from(Durability),
        repeated=FLAG,
    ),
}
