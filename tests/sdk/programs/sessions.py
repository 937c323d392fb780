"""Logs in and out in every way, and reports what works in between."""

import asyncio

from apache_iggy import AutoLogin, IggyClient, TcpConfig, TcpReconnectionConfig
from scenario import Task, connected, execute, heard, milliseconds, refusal, say

FINAL = TcpReconnectionConfig(enabled=False)


async def by_hand(task: Task) -> None:
    client = IggyClient(task["address"])
    before = [await refusal(client.ping), await refusal(client.get_stats)]
    await client.connect()
    steps = [
        (client.ping,),
        (client.get_stats,),
        (client.create_stream, "x"),
        (client.login_user, "iggy", "wrong"),
        (client.login_user, "ab", "iggy"),
        (client.login_user, "iggy", "iggy"),
        (client.get_stats,),
        (client.login_user, "iggy", "iggy"),
        (client.get_stats,),
        (client.logout_user,),
        (client.get_stats,),
        (client.login_user, "iggy", "iggy"),
        (client.get_stats,),
    ]
    say(before=before, by_hand=[await refusal(*step) for step in steps])


async def configured(task: Task) -> None:
    """Every way to set the credentials in a configuration."""
    address = task["address"]
    logins = {
        "password": AutoLogin.username_password("iggy", "iggy"),
        "wrong": AutoLogin.username_password("iggy", "wrong"),
        "token": AutoLogin.personal_access_token(task["token"]),
        "wrong token": AutoLogin.personal_access_token("A" * 40),
        "nobody": AutoLogin.disabled(),
    }
    answers: dict[str, list[object]] = {}
    for name, login in logins.items():
        config = TcpConfig(
            server_address=address,
            auto_login=login,
            reconnection=FINAL,
            heartbeat_interval=milliseconds(20),
            nodelay=True,
        )
        client = IggyClient(config)
        answers[name] = [await refusal(client.connect), await refusal(client.get_streams)]
    say(configured=answers)


async def over_tls(task: Task) -> None:
    """Results for clients that check the certificate against its file, against nothing they have, and not at all."""
    config = {
        "server_address": task["tls_address"],
        "auto_login": AutoLogin.username_password("iggy", "iggy"),
        "reconnection": FINAL,
        "tls_enabled": True,
        "tls_domain": "localhost",
    }
    variants = {
        "trusting": {"tls_ca_file": task["certificate"]},
        "by address": {"tls_ca_file": task["certificate"], "tls_domain": ""},
        "for another": {"tls_ca_file": task["certificate"], "tls_domain": "example.org"},
        "strict": {},
        "careless": {"tls_validate_certificate": False},
        "plain": {"tls_enabled": False},
    }
    answers = {}
    for name, variant in variants.items():
        client = IggyClient(TcpConfig(**(config | variant)))
        answers[name] = [await refusal(client.connect), await refusal(client.get_streams)]
    say(tls=answers)


async def restarted(task: Task) -> None:
    """A client that waits for a stopped server, one that gives up, and one that has changed its password."""
    patience = TcpReconnectionConfig(interval=milliseconds(20), reestablish_after=milliseconds(20))
    login = AutoLogin.username_password("iggy", "iggy")
    patient = IggyClient(TcpConfig(server_address=task["address"], auto_login=login, reconnection=patience))
    hasty = IggyClient(
        TcpConfig(
            server_address=task["address"],
            auto_login=login,
            reconnection=TcpReconnectionConfig(
                max_retries=1, interval=milliseconds(20), reestablish_after=milliseconds(20)
            ),
        )
    )
    by_hand = IggyClient(TcpConfig(server_address=task["address"], reconnection=patience))
    for client in (patient, hasty, by_hand):
        await client.connect()
    root = await connected(task)
    await root.create_user("changed", "secret")
    await by_hand.login_user("changed", "secret")
    await by_hand.change_password("changed", "secret", "new-secret")
    await patient.create_stream("kept")
    say(ready=True)
    await heard("stopped")
    given_up = await refusal(hasty.get_streams)
    reading = asyncio.ensure_future(patient.get_stream("kept"))
    say(given_up=given_up)
    await heard("started")
    say(
        read=(await reading).name,
        by_hand=[await refusal(by_hand.ping), await refusal(by_hand.get_stats)],
        made=await refusal(patient.create_stream, "after"),
        hasty=await refusal(hasty.get_streams),
    )


async def main(task: Task) -> None:
    for act in task["acts"]:
        await {"by_hand": by_hand, "configured": configured, "over_tls": over_tls, "restarted": restarted}[act](task)


execute(main)
