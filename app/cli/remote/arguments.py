"""Arguments that several commands have, and how their texts become values."""

from __future__ import annotations

from typing import Annotated

import typer

from whippet.app.cli.remote import name_completion
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.output import NEVER

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="its name or id", autocompletion=name_completion.streams)]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="its name or id", autocompletion=name_completion.topics)]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="its id, from 0")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="its name or id", autocompletion=name_completion.groups)]
User = Annotated[str, typer.Argument(metavar="USER", help="its name or id", autocompletion=name_completion.users)]
Expiry = Annotated[
    list[str] | None,
    typer.Argument(metavar="EXPIRY", help="such as 7d or 1h 30m, `never`, or `server_default`"),
]
MaxSize = Annotated[str, typer.Option("--max-topic-size", "-m", help="such as 10GB, `unlimited`, or `server_default`")]


def expiry(words: list[str] | None) -> int:
    """Returns microseconds, as the protocol has them: 0 is the server's default."""
    from whippet.app.config.formats import Invalid, parse_expiry  # noqa: PLC0415 -- not for --help

    text = " ".join(words or ())
    if text in ("", "server_default", "0"):
        return 0
    if text in ("never", "unlimited", "none"):
        return NEVER
    try:
        found = parse_expiry(text)
    except Invalid:
        raise UsageFailure(f"{text!r} is no duration; examples are 7d, 1h 30m, never and server_default") from None
    return NEVER if found is None else found


def topic_size(text: str) -> int:
    """Returns bytes, as the protocol has them: 0 is the server's default."""
    from whippet.app.config.formats import Invalid, parse_size  # noqa: PLC0415

    if text in ("", "server_default", "0"):
        return 0
    if text == "unlimited":
        return NEVER
    try:
        return parse_size(text)
    except Invalid:
        raise UsageFailure(f"{text!r} is no size; examples are 10GB, 512MiB, unlimited and server_default") from None
