"""Two connections of one consumer, as the SDK uses them with a cluster: one joins the group, the other polls.

With a single node the SDK never does so by itself, so the requests are made by hand.
"""

import struct

from apache_iggy import GlobalPermissions, Permissions, SendMessage
from scenario import Task, connected, execute, refusal, say

ATTACH, ROUTING, POLL_ON_PRIMARY = 14, 103, 104
IDENTITY_BYTES = 32
"""The ids of the client, its session, and what the session has seen: the start of a route, and the whole of an
attachment."""


def named(name: str) -> bytes:
    return struct.pack("<BB", 2, len(name)) + name.encode()


async def main(task: Task) -> None:
    stream, user = task["name"], f"{task['name'][-30:]}-u"
    member, helper = await connected(task), await connected(task)
    await member.create_stream(stream)
    await member.create_topic(stream, "t", 1)
    await member.create_consumer_group(stream, "t", "g")
    await member.join_consumer_group(stream, "t", "g")
    await member.send_messages(stream, "t", 0, [SendMessage("a"), SendMessage("b")])
    of_group = b"\x02" + named("g") + named(stream) + named("t") + struct.pack("<BI", 1, 0)
    poll = of_group + struct.pack("<BQIB", 5, 0, 10, 1)
    identity = (await member.send_binary_request(ROUTING, poll))[:IDENTITY_BYTES]

    await member.create_user(user, "secret", permissions=Permissions(GlobalPermissions(read_streams=True)))
    stranger = await connected(task, credentials=f"{user}:secret")
    say(
        unattached=await refusal(helper.send_binary_request, POLL_ON_PRIMARY, poll),
        to_nobody=await refusal(helper.send_binary_request, ATTACH, bytes(15) + b"\x01" + identity[16:]),
        cut_off=await refusal(helper.send_binary_request, ATTACH, identity[:-1]),
        another_user=await refusal(stranger.send_binary_request, ATTACH, identity),
        attached=await refusal(helper.send_binary_request, ATTACH, identity),
    )
    polled = await helper.send_binary_request(POLL_ON_PRIMARY, poll)
    details = await member.get_consumer_group(stream, "t", "g")
    say(polled=struct.unpack_from("<IQI", polled), members=[one.partitions for one in details.members])
    await member.logout_user()
    say(
        after=await refusal(helper.send_binary_request, POLL_ON_PRIMARY, poll),
        again=await refusal(helper.send_binary_request, ATTACH, identity),
    )


execute(main)
