"""Any request and any answer, as hypothesis makes them up."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.commands import answers as say
from whippet.app.commands import requests as ask
from whippet.storage import batch as batches

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
F32 = st.floats(width=32, allow_nan=False)
TEXT = st.text(max_size=60)
NAME = st.text(min_size=1, max_size=60)
IDENTIFIER = st.one_of(U32, NAME)
CONSUMER = st.builds(ask.Consumer, kind=st.sampled_from(ask.ConsumerKind), id=IDENTIFIER)
PARTITION = st.none() | U32
PARTITIONING = st.one_of(
    st.just(ask.Partitioning(ask.PartitioningKind.BALANCED)),
    st.builds(ask.Partitioning, kind=st.just(ask.PartitioningKind.PARTITION_ID), partition_id=U32),
    st.builds(
        ask.Partitioning, kind=st.just(ask.PartitioningKind.MESSAGES_KEY), key=st.binary(min_size=1, max_size=255)
    ),
)
STRATEGY = st.one_of(
    st.builds(ask.Strategy, kind=st.sampled_from([ask.StrategyKind.OFFSET, ask.StrategyKind.TIMESTAMP]), value=U64),
    st.sampled_from([ask.StrategyKind.FIRST, ask.StrategyKind.LAST, ask.StrategyKind.NEXT]).map(ask.Strategy),
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
REQUESTS: dict[type[ask.Request], dict[str, st.SearchStrategy[Any]]] = {
    ask.Ping: {},
    ask.GetStats: {},
    ask.GetSnapshot: {"compression": U8, "types": st.lists(U8, max_size=8).map(tuple)},
    ask.GetClusterMetadata: {},
    ask.GetMe: {},
    ask.GetClient: {"client_id": U32},
    ask.GetClients: {},
    ask.GetUser: {"user": IDENTIFIER},
    ask.GetUsers: {},
    ask.CreateUser: {
        "username": NAME,
        "password": TEXT,
        "status": st.sampled_from(ask.UserStatus),
        "permissions": st.none() | PERMISSIONS,
    },
    ask.DeleteUser: {"user": IDENTIFIER},
    ask.UpdateUser: {
        "user": IDENTIFIER,
        "username": st.none() | NAME,
        "status": st.none() | st.sampled_from(ask.UserStatus),
    },
    ask.UpdatePermissions: {"user": IDENTIFIER, "permissions": st.none() | PERMISSIONS},
    ask.ChangePassword: {"user": IDENTIFIER, "current_password": TEXT, "new_password": TEXT},
    ask.LoginUser: {"username": NAME, "password": TEXT, "version": TEXT, "context": TEXT},
    ask.LogoutUser: {},
    ask.GetPersonalAccessTokens: {},
    ask.CreatePersonalAccessToken: {"name": NAME, "expiry": U64},
    ask.DeletePersonalAccessToken: {"name": NAME},
    ask.LoginWithPersonalAccessToken: {"token": NAME},
    ask.PollMessages: {**_PLACE, "strategy": STRATEGY, "count": U32, "auto_commit": FLAG},
    ask.SendMessages: {**_S, **_T, "partitioning": PARTITIONING, "batches": BATCH.map(lambda batch: (batch,))},
    ask.FlushUnsavedBuffer: {**_S, **_T, "partition_id": U32, "fsync": FLAG},
    ask.GetConsumerOffset: _PLACE,
    ask.StoreConsumerOffset: {**_PLACE, "offset": U64},
    ask.DeleteConsumerOffset: _PLACE,
    ask.GetStream: _S,
    ask.GetStreams: {},
    ask.CreateStream: {"name": NAME},
    ask.DeleteStream: _S,
    ask.UpdateStream: {**_S, "name": NAME},
    ask.PurgeStream: _S,
    ask.GetTopic: {**_S, **_T},
    ask.GetTopics: _S,
    ask.CreateTopic: {**_S, **_TOPIC, "partitions_count": U32},
    ask.DeleteTopic: {**_S, **_T},
    ask.UpdateTopic: {**_S, **_T, **_TOPIC},
    ask.PurgeTopic: {**_S, **_T},
    ask.CreatePartitions: {**_S, **_T, "count": U32},
    ask.DeletePartitions: {**_S, **_T, "count": U32},
    ask.DeleteSegments: {**_S, **_T, "partition_id": U32, "count": U32},
    ask.GetConsumerGroup: {**_S, **_T, **_G},
    ask.GetConsumerGroups: {**_S, **_T},
    ask.CreateConsumerGroup: {**_S, **_T, "name": NAME},
    ask.DeleteConsumerGroup: {**_S, **_T, **_G},
    ask.JoinConsumerGroup: {**_S, **_T, **_G},
    ask.LeaveConsumerGroup: {**_S, **_T, **_G},
}


def request(kind: type[ask.Request]) -> st.SearchStrategy[Any]:
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
    compression_algorithm=U8,
    max_topic_size=U64,
    replication_factor=U8,
    size_bytes=U64,
    messages_count=U64,
    name=NAME,
)
TOPIC = st.builds(say.TopicInfo, **TOPIC_FIELDS, partitions_count=U32)
STREAM = st.builds(say.StreamInfo, **STREAM_FIELDS, topics_count=U32)
PARTITION_INFO = st.builds(
    say.PartitionInfo,
    id=U32,
    created_at=U64,
    segments_count=U32,
    current_offset=U64,
    size_bytes=U64,
    messages_count=U64,
)
GROUP = st.builds(say.GroupInfo, id=U32, partitions_count=U32, members_count=U32, name=NAME)
MEMBER = st.builds(say.GroupMember, id=U32, partitions=st.lists(U32, max_size=4).map(tuple))


@st.composite
def stream_details(draw: st.DrawFn) -> say.StreamDetails:
    topics = tuple(draw(st.lists(TOPIC, max_size=3)))
    return say.StreamDetails(
        draw(st.builds(say.StreamInfo, **STREAM_FIELDS, topics_count=st.just(len(topics)))), topics
    )


@st.composite
def topic_details(draw: st.DrawFn) -> say.TopicDetails:
    partitions = tuple(draw(st.lists(PARTITION_INFO, max_size=3)))
    return say.TopicDetails(
        draw(st.builds(say.TopicInfo, **TOPIC_FIELDS, partitions_count=st.just(len(partitions)))), partitions
    )


@st.composite
def group_details(draw: st.DrawFn) -> say.GroupDetails:
    members = tuple(draw(st.lists(MEMBER, max_size=3)))
    info = st.builds(say.GroupInfo, id=U32, partitions_count=U32, members_count=st.just(len(members)), name=NAME)
    return say.GroupDetails(draw(info), members)


USER = st.builds(say.UserInfo, id=U32, created_at=U64, status=st.sampled_from(ask.UserStatus), username=NAME)
USER_DETAILS = st.builds(say.UserDetails, info=USER, permissions=st.none() | PERMISSIONS)
CLIENT_FIELDS = _fields(client_id=U32, user_id=st.none() | st.integers(0, 2**32 - 2), transport=U8, address=TEXT)
MEMBERSHIP = st.builds(say.GroupMembership, stream_id=U32, topic_id=U32, group_id=U32)
CLIENT = st.builds(say.ClientInfo, **CLIENT_FIELDS, groups=st.lists(MEMBERSHIP, max_size=3).map(tuple))
CLIENT_WITHOUT_GROUPS = st.builds(say.ClientInfo, **CLIENT_FIELDS, groups=st.just(()))
NODE = st.builds(
    say.ClusterNode,
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
    say.Stats,
    **{
        name: _OF_A_COUNT.get(name, _OF_A_TYPE[str(kind)])
        for name, kind in say.Stats.__annotations__.items()
        if name != "classic_size_bytes"
    },
)
_LOGGED_IN = st.builds(say.LoggedIn, user_id=U32)


def _list_of(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=4).map(tuple)


ANSWERS: dict[int, st.SearchStrategy[Any]] = {
    1: st.none(),
    10: STATS,
    11: st.builds(say.Snapshot, content=st.binary(min_size=2, max_size=100)),
    12: st.builds(say.ClusterMetadata, name=TEXT, nodes=_list_of(NODE)),
    20: CLIENT,
    21: st.none() | CLIENT,
    22: _list_of(CLIENT_WITHOUT_GROUPS),
    31: st.none() | USER_DETAILS,
    32: _list_of(USER),
    33: USER_DETAILS,
    38: _LOGGED_IN,
    41: _list_of(st.builds(say.TokenInfo, name=NAME, expires_at=U64)),
    42: st.builds(say.RawToken, token=NAME),
    44: _LOGGED_IN,
    120: st.none() | st.builds(say.ConsumerOffset, partition_id=U32, current_offset=U64, stored_offset=U64),
    200: st.none() | stream_details(),
    201: _list_of(STREAM),
    202: stream_details(),
    300: st.none() | topic_details(),
    301: _list_of(TOPIC),
    302: topic_details(),
    600: st.none() | group_details(),
    601: _list_of(GROUP),
    602: group_details(),
}
