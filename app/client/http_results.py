"""The JSON of the HTTP API as the results of commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from whippet.app.access import permissions as granted
from whippet.app.commands import responses
from whippet.app.config.formats import parse_size
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import Option, ValueKind, encode
from whippet.app.model.sessions import Transport

COMPRESSIONS = {1: "none", 2: "gzip", 3: "zstd"}
_COMPRESSION_NUMBERS = {name: number for number, name in COMPRESSIONS.items()}
ROLES = ("leader", "follower")
STATUSES = ("healthy", "starting", "stopping", "unreachable", "maintenance")


def _options(found: Mapping[str, Any]) -> tuple[tuple[Option, ...], tuple[Option, ...]]:
    explicit: list[Option] = []
    derived: list[Option] = []
    for key, value in found.items():
        kind = ValueKind[value["kind"].upper()]
        option = Option(key, kind, _option_value(kind, value["value"]))
        (explicit if value["explicit"] else derived).append(option)
    return tuple(explicit), tuple(derived)


def _option_value(kind: ValueKind, text: str) -> bytes:
    if kind in (ValueKind.STRING, ValueKind.RAW):
        return text.encode()
    if kind is ValueKind.BOOL:
        return encode(kind, text == "true")
    if kind in (ValueKind.FLOAT32, ValueKind.FLOAT64):
        return encode(kind, float(text))
    return encode(kind, int(text))


def stream(each: Any) -> responses.StreamInfo:
    size = parse_size(each["size"])
    return responses.StreamInfo(
        each["id"], each["created_at"], each["topics_count"], size, each["messages_count"], each["name"]
    )


def stream_details(each: Any) -> responses.StreamDetails:
    return responses.StreamDetails(stream(each), tuple(map(topic, each["topics"])))


def topic(each: Any) -> responses.TopicInfo:
    explicit, derived = _options(each["options"])
    return responses.TopicInfo(
        id=each["id"],
        created_at=each["created_at"],
        partitions_count=each["partitions_count"],
        message_expiry=each["message_expiry"],
        compression_algorithm=_COMPRESSION_NUMBERS[each["compression_algorithm"]],
        max_topic_size=each["max_topic_size"],
        replication_factor=each["replication_factor"],
        size_bytes=parse_size(each["size"]),
        messages_count=each["messages_count"],
        name=each["name"],
        explicit=explicit,
        derived=derived,
        disk_bytes=each["disk_bytes"],
    )


def topic_details(each: Any) -> responses.TopicDetails:
    return responses.TopicDetails(topic(each), tuple(map(_partition, each["partitions"])))


def _partition(each: Any) -> responses.PartitionInfo:
    held_back = each["held_back"]
    return responses.PartitionInfo(
        id=each["id"],
        created_at=each["created_at"],
        segments_count=each["segments_count"],
        current_offset=each["current_offset"],
        size_bytes=parse_size(each["size"]),
        messages_count=each["messages_count"],
        first_offset=each["first_offset"],
        next_offset=each["next_offset"],
        incarnation=each["context"]["incarnation"],
        epoch=each.get("epoch", 0),
        disk_bytes=each["disk_bytes"],
        held_back=None if held_back is None else msgspec.convert(held_back, responses.HeldBack),
    )


def group(each: Any) -> responses.GroupInfo:
    return responses.GroupInfo(each["id"], each["partitions_count"], each["members_count"], each["name"])


def group_details(each: Any) -> responses.GroupDetails:
    members = [responses.GroupMember(member["id"], tuple(member["partitions"])) for member in each["members"]]
    return responses.GroupDetails(group(each), tuple(members))


def user(each: Any) -> responses.UserInfo:
    return responses.UserInfo(each["id"], each["created_at"], UserStatus[each["status"].upper()], each["username"])


def user_details(each: Any) -> responses.UserDetails:
    return responses.UserDetails(user(each), _permissions(each["permissions"]))


def _permissions(body: Any) -> granted.Permissions | None:
    if body is None:
        return None
    streams = {
        int(stream_id): granted.StreamPermissions(
            **{name: flag for name, flag in stream.items() if name != "topics"},
            topics={int(key): granted.TopicPermissions(**topic) for key, topic in (stream["topics"] or {}).items()},
        )
        for stream_id, stream in (body["streams"] or {}).items()
    }
    return granted.Permissions(granted.GlobalPermissions(**body["global"]), streams)


def client(each: Any) -> responses.ClientInfo:
    transport = Transport[each["transport"].upper()]
    groups = tuple(msgspec.convert(group, responses.GroupMembership) for group in each.get("consumer_groups", ()))
    return responses.ClientInfo(each["client_id"], each["user_id"], int(transport), each["address"], groups)


def _node(each: Any) -> responses.ClusterNode:
    ports = each["endpoints"]
    return responses.ClusterNode(
        each["name"],
        each["ip"],
        ports["tcp"],
        ports["quic"],
        ports["http"],
        ports["websocket"],
        ROLES.index(each["role"]),
        STATUSES.index(each["status"]),
    )


def cluster(each: Any) -> responses.ClusterMetadata:
    return responses.ClusterMetadata(each["name"], tuple(map(_node, each["nodes"])))


_SIZES = (
    "memory_usage",
    "total_memory",
    "available_memory",
    "read_bytes",
    "written_bytes",
    "messages_size_bytes",
    "free_disk_space",
    "total_disk_space",
)


def stats(each: Any) -> responses.Stats:
    each |= {name: parse_size(each[name]) for name in _SIZES}
    each |= {"server_version": each["iggy_server_version"], "server_semver": each["iggy_server_semver"]}
    return msgspec.convert(each, responses.Stats)


def option_description(each: Any) -> responses.OptionDescription:
    flags = responses.OptionFlags(0)
    for flag in responses.OptionFlags:
        if each[(flag.name or "").lower()]:
            flags |= flag
    kind = int(ValueKind[each["kind"].upper()])
    return responses.OptionDescription(each["key"], kind, bytes(each["default_value"]), each["description"], flags)
