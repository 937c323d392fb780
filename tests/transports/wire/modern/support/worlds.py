"""Hypothesis strategies for any request and response of the 0.9 protocol: the classic ones, and those that differ."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.transports.wire.classic.support import worlds as classic
from tests.transports.wire.classic.support.worlds import IDENTIFIER, NAME, TEXT, U8, U32, U64
from whippet.app.commands import requests, responses
from whippet.app.model.options import Option, OptionScope, ValueKind

CLIENT = st.binary(min_size=16, max_size=16)
OPTION = st.builds(
    Option,
    key=st.text(min_size=1, max_size=60),
    kind=st.sampled_from(ValueKind),
    value=st.binary(min_size=1, max_size=255),
)
OPTIONS = st.lists(OPTION, max_size=5, unique_by=lambda option: option.key).map(tuple)
IN_ORDER = OPTIONS.map(lambda options: tuple(sorted(options, key=lambda option: option.key)))
"""As our client sends those of topics."""

_S, _T, _G = {"stream": IDENTIFIER}, {"topic": IDENTIFIER}, {"group": IDENTIFIER}
REQUESTS: dict[type[requests.Request], dict[str, st.SearchStrategy[Any]]] = {
    kind: fields
    for kind, fields in classic.REQUESTS.items()
    if kind not in (requests.LoginUser, requests.LoginWithPersonalAccessToken)
} | {
    requests.DescribeOptions: {"scope": st.sampled_from(OptionScope)},
    requests.AttachSession: {"client": CLIENT, "number": U64},
    requests.GetPollRouting: classic.REQUESTS[requests.PollMessages],
    requests.GetOffsetRouting: classic.REQUESTS[requests.GetConsumerOffset],
    requests.CreateUser: classic.REQUESTS[requests.CreateUser] | {"options": OPTIONS},
    requests.UpdateUser: classic.REQUESTS[requests.UpdateUser] | {"options": OPTIONS},
    requests.CreateStream: {"name": NAME, "options": OPTIONS},
    requests.UpdateStream: {**_S, "name": NAME, "options": OPTIONS},
    requests.CreateTopic: {**_S, "name": NAME, "partitions_count": U32, "options": IN_ORDER},
    requests.UpdateTopic: {**_S, **_T, "name": NAME, "options": IN_ORDER},
    requests.SyncConsumerGroup: {**_S, **_T, **_G},
}


def request(kind: type[requests.Request]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **REQUESTS[kind])


ANY_REQUEST = st.sampled_from(list(REQUESTS)).flatmap(request)

# ------------------------------------------------------------------------------------------------------------ answers

TOPIC_FIELDS = classic.TOPIC_FIELDS | {
    "compression_algorithm": classic.COMPRESSION,
    "replication_factor": st.just(1),
    "explicit": OPTIONS,
    "derived": OPTIONS,
}
TOPIC = st.builds(responses.TopicInfo, **TOPIC_FIELDS, partitions_count=U32)


@st.composite
def stream_details(draw: st.DrawFn) -> responses.StreamDetails:
    topics = tuple(draw(st.lists(TOPIC, max_size=3)))
    info = st.builds(responses.StreamInfo, **classic.STREAM_FIELDS, topics_count=st.just(len(topics)))
    return responses.StreamDetails(draw(info), topics)


@st.composite
def topic_details(draw: st.DrawFn) -> responses.TopicDetails:
    partitions = tuple(draw(st.lists(classic.PARTITION_INFO, max_size=3)))
    info = st.builds(responses.TopicInfo, **TOPIC_FIELDS, partitions_count=st.just(len(partitions)))
    return responses.TopicDetails(draw(info), partitions)


def _list_of(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(one, max_size=4).map(tuple)


ROUTING = st.builds(responses.Routing, client=CLIENT, number=U64, watermark=U64, node=classic.NODE)
ANSWERS: dict[int, st.SearchStrategy[Any]] = classic.ANSWERS | {
    13: _list_of(
        st.builds(responses.OptionDescription, key=NAME, kind=U8, default=st.binary(max_size=20), description=TEXT)
    ),
    103: ROUTING,
    123: ROUTING,
    200: st.none() | stream_details(),
    202: stream_details(),
    300: st.none() | topic_details(),
    301: _list_of(TOPIC),
    302: topic_details(),
    606: st.none() | st.builds(responses.GroupAssignment, generation=U64, partitions=_list_of(U32)),
}
