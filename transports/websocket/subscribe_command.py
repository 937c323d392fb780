"""The command `subscribe`, which selects the kind of subscription."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import request_bodies
from whippet.transports.websocket import group_subscription, stats_and_events, topic_subscription
from whippet.transports.websocket.group_subscription import ToGroup
from whippet.transports.websocket.stats_and_events import ToEvents, ToStats
from whippet.transports.websocket.subscription import Subscription
from whippet.transports.websocket.topic_subscription import ToTopic

if TYPE_CHECKING:
    from whippet.transports.websocket.channel import Channel
    from whippet.transports.websocket.commands import Members

_decoder = msgspec.json.Decoder(ToTopic | ToGroup | ToStats | ToEvents)
_encode = msgspec.json.Encoder().encode


async def open_subscription(channel: Channel, number: int, said: Members) -> Subscription:
    wanted: Any
    try:
        wanted = _decoder.decode(_encode(said))
    except msgspec.ValidationError as error:
        raise request_bodies.wrong_type(error, _decoder.type) from None
    match wanted:
        case ToTopic():
            return await topic_subscription.subscribe(channel, number, wanted)
        case ToGroup():
            return await group_subscription.subscribe(channel, number, wanted)
        case ToStats():
            return await stats_and_events.subscribe_to_stats(channel, number, wanted)
        case ToEvents():
            return await stats_and_events.subscribe_to_events(channel, number, wanted)
    raise Refused(HTTPStatus.BAD_REQUEST, "The kind of subscription is unknown", "to")
