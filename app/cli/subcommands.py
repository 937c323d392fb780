"""The table of subcommands: what is typed, and where the function is. It imports none of them."""

from __future__ import annotations

from typing import NamedTuple


class Subcommand(NamedTuple):
    words: tuple[str, ...]
    """A subcommand, as typed after `whippet`."""
    module: str
    summary: str
    """A line without a full stop, for lists; the docstring of the function follows it in the help."""
    function: str = "run"
    """Its parameters are the arguments and options. It returns the exit code."""
    aliases: tuple[str, ...] = ()
    """What may be typed instead of the last word."""


class Group(NamedTuple):
    summary: str
    aliases: tuple[str, ...] = ()


SUBCOMMANDS = (
    Subcommand(("serve",), "whippet.app.cli.serve", "run the gateway until SIGTERM or Ctrl-C"),
    Subcommand(
        ("config",), "whippet.app.cli.config", "show the effective configuration and where each value comes from"
    ),
    Subcommand(
        ("doctor",), "whippet.app.cli.doctor", "check what a server on this machine needs, and say what to change"
    ),
    Subcommand(
        ("check",), "whippet.app.cli.check", "read every message of a data folder or an archive and report damage"
    ),
    Subcommand(("repair",), "whippet.app.cli.repair", "repair a damaged data folder from its archive"),
    Subcommand(("backup",), "whippet.app.cli.backup", "copy a data folder, also while a server has it open"),
    Subcommand(("restore",), "whippet.app.cli.restore", "make a data folder from the archive"),
    Subcommand(
        ("keys", "new"), "whippet.app.cli.keys", "create a key file for encryption at rest, with one key", "new"
    ),
    Subcommand(("keys", "rotate"), "whippet.app.cli.keys", "add a key; older data stays readable", "rotate"),
    Subcommand(("keys", "list"), "whippet.app.cli.keys", "list the ids of the keys in a key file", "show"),
    Subcommand(
        ("root-password",),
        "whippet.app.cli.root_password",
        "set a new password for the root user while the server is stopped",
    ),
    Subcommand(
        ("import", "iggy"), "whippet.app.cli.import_iggy", "import the data folder of a stopped Apache Iggy server"
    ),
    Subcommand(("certs",), "whippet.app.cli.certs", "create an authority and a certificate for development"),
    Subcommand(
        ("pipeline", "run"), "whippet.app.cli.pipeline_run", "run a pipeline on Spark: source, transforms, sinks"
    ),
    Subcommand(
        ("pipeline", "check"),
        "whippet.app.cli.pipeline_check",
        "report what a pipeline would do, or what is wrong with it",
    ),
    Subcommand(("bench", "run"), "whippet.bench.run.command", "put load on a running server and measure it"),
    Subcommand(("bench", "compare"), "whippet.bench.run.compare", "tell whether runs differ by more than their noise"),
    Subcommand(
        ("bench", "storage"), "whippet.bench.storage", "measure the store on this machine, next to its yardsticks"
    ),
    Subcommand(
        ("bench", "archive"), "whippet.bench.archive", "measure the archive on this machine, next to its yardsticks"
    ),
    Subcommand(("bench", "tcp"), "whippet.bench.tcp", "measure the server over TCP, next to a bare one"),
    Subcommand(("bench", "http"), "whippet.bench.http", "measure the HTTP API, next to a bare application"),
    Subcommand(("bench", "quic"), "whippet.bench.quic", "measure the server over QUIC, next to plain aioquic"),
    Subcommand(("bench", "cli"), "whippet.bench.cli", "measure the command line: its start, sending and following"),
    Subcommand(("bench", "ws"), "whippet.bench.ws", "measure the server over WebSocket, next to a bare one"),
    Subcommand(("bench", "spark"), "whippet.bench.spark", "measure the data source of Spark, next to Parquet"),
    Subcommand(("send",), "whippet.app.cli.remote.sending", "send lines or files to a topic", "send"),
    Subcommand(("tail",), "whippet.app.cli.remote.reading", "print messages as they arrive", "tail"),
    Subcommand(("cat",), "whippet.app.cli.remote.reading", "print the messages that there are", "cat"),
    Subcommand(
        ("export", "topic"), "whippet.app.cli.remote.exporting", "write the messages of a topic to a file", "export"
    ),
    Subcommand(
        ("import", "topic"), "whippet.app.cli.remote.importing", "send the messages of such a file", "import_topic"
    ),
    Subcommand(("copy",), "whippet.app.cli.remote.copying", "copy messages to another topic, exactly once", "copy"),
    Subcommand(("top",), "whippet.app.cli.remote.top", "show rates, lag and connections, live", "top"),
    Subcommand(("groups", "lag"), "whippet.app.cli.remote.group_progress", "show how far a group is behind", "lag"),
    Subcommand(("groups", "reset"), "whippet.app.cli.remote.group_progress", "set a group back or forth", "reset"),
    Subcommand(("stream", "create"), "whippet.app.cli.remote.streams", "create a stream", "create", ("c",)),
    Subcommand(("stream", "list"), "whippet.app.cli.remote.streams", "list all streams", "list_all", ("l",)),
    Subcommand(("stream", "get"), "whippet.app.cli.remote.streams", "show a stream and its topics", "get", ("g",)),
    Subcommand(("stream", "update"), "whippet.app.cli.remote.streams", "rename a stream", "update", ("u",)),
    Subcommand(
        ("stream", "purge"), "whippet.app.cli.remote.streams", "delete all messages of a stream", "purge", ("p",)
    ),
    Subcommand(("stream", "delete"), "whippet.app.cli.remote.streams", "delete a stream", "delete", ("d",)),
    Subcommand(("topic", "create"), "whippet.app.cli.remote.topics", "create a topic", "create", ("c",)),
    Subcommand(("topic", "list"), "whippet.app.cli.remote.topics", "list the topics of a stream", "list_all", ("l",)),
    Subcommand(("topic", "get"), "whippet.app.cli.remote.topics", "show a topic and its partitions", "get", ("g",)),
    Subcommand(
        ("topic", "update"), "whippet.app.cli.remote.topics", "rename a topic or change its settings", "update", ("u",)
    ),
    Subcommand(("topic", "purge"), "whippet.app.cli.remote.topics", "delete all messages of a topic", "purge", ("p",)),
    Subcommand(("topic", "delete"), "whippet.app.cli.remote.topics", "delete a topic", "delete", ("d",)),
    Subcommand(
        ("partition", "create"), "whippet.app.cli.remote.partitions", "add partitions to a topic", "create", ("c",)
    ),
    Subcommand(
        ("partition", "delete"),
        "whippet.app.cli.remote.partitions",
        "delete the last partitions of a topic",
        "delete",
        ("d",),
    ),
    Subcommand(
        ("segment", "delete"),
        "whippet.app.cli.remote.partitions",
        "delete the oldest segments of a partition",
        "delete_segments",
        ("d",),
    ),
    Subcommand(("message", "send"), "whippet.app.cli.remote.messages", "send messages", "send", ("s",)),
    Subcommand(("message", "poll"), "whippet.app.cli.remote.messages", "read messages of a partition", "poll", ("p",)),
    Subcommand(
        ("message", "flush"), "whippet.app.cli.remote.messages", "write what a partition has in memory", "flush", ("f",)
    ),
    Subcommand(
        ("consumer-group", "create"), "whippet.app.cli.remote.groups", "create a consumer group", "create", ("c",)
    ),
    Subcommand(
        ("consumer-group", "list"),
        "whippet.app.cli.remote.groups",
        "list the consumer groups of a topic",
        "list_all",
        ("l",),
    ),
    Subcommand(
        ("consumer-group", "get"),
        "whippet.app.cli.remote.groups",
        "show a consumer group and its members",
        "get",
        ("g",),
    ),
    Subcommand(
        ("consumer-group", "delete"), "whippet.app.cli.remote.groups", "delete a consumer group", "delete", ("d",)
    ),
    Subcommand(
        ("consumer-offset", "get"),
        "whippet.app.cli.remote.groups",
        "show the stored offset of a consumer or a group",
        "get_offset",
        ("g",),
    ),
    Subcommand(
        ("consumer-offset", "set"),
        "whippet.app.cli.remote.groups",
        "store an offset for a consumer or a group",
        "set_offset",
        ("s",),
    ),
    Subcommand(("user", "create"), "whippet.app.cli.remote.users", "create a user", "create", ("c",)),
    Subcommand(("user", "list"), "whippet.app.cli.remote.users", "list all users", "list_all", ("l",)),
    Subcommand(("user", "get"), "whippet.app.cli.remote.users", "show a user and the permissions", "get", ("g",)),
    Subcommand(("user", "name"), "whippet.app.cli.remote.users", "rename a user", "name", ("n",)),
    Subcommand(("user", "status"), "whippet.app.cli.remote.users", "activate or deactivate a user", "status", ("s",)),
    Subcommand(
        ("user", "password"), "whippet.app.cli.remote.users", "change the password of a user", "password", ("pwd",)
    ),
    Subcommand(
        ("user", "permissions"),
        "whippet.app.cli.remote.users",
        "replace the permissions of a user",
        "permissions",
        ("p",),
    ),
    Subcommand(("user", "delete"), "whippet.app.cli.remote.users", "delete a user", "delete", ("d",)),
    Subcommand(("pat", "create"), "whippet.app.cli.remote.tokens", "create a personal access token", "create", ("c",)),
    Subcommand(
        ("pat", "list"), "whippet.app.cli.remote.tokens", "list your personal access tokens", "list_all", ("l",)
    ),
    Subcommand(("pat", "delete"), "whippet.app.cli.remote.tokens", "delete a personal access token", "delete", ("d",)),
    Subcommand(
        ("login",), "whippet.app.cli.remote.sessions", "log in, and stay logged in for a while", "login", ("li",)
    ),
    Subcommand(("logout",), "whippet.app.cli.remote.sessions", "end the session of a login", "logout", ("lo",)),
    Subcommand(
        ("session", "login"), "whippet.app.cli.remote.sessions", "log in, and stay logged in for a while", "login"
    ),
    Subcommand(("session", "logout"), "whippet.app.cli.remote.sessions", "end the session of a login", "logout"),
    Subcommand(("context", "create"), "whippet.app.cli.remote.context_commands", "name a server", "create", ("c",)),
    Subcommand(("context", "list"), "whippet.app.cli.remote.context_commands", "list all contexts", "list_all", ("l",)),
    Subcommand(("context", "show"), "whippet.app.cli.remote.context_commands", "show a context", "show"),
    Subcommand(
        ("context", "use"), "whippet.app.cli.remote.context_commands", "use a context from now on", "use", ("u",)
    ),
    Subcommand(("context", "delete"), "whippet.app.cli.remote.context_commands", "delete a context", "delete", ("d",)),
    Subcommand(("ping",), "whippet.app.cli.remote.system", "measure the round trip to the server", "ping"),
    Subcommand(("stats",), "whippet.app.cli.remote.system", "show what the server has and uses", "stats"),
    Subcommand(("me",), "whippet.app.cli.remote.system", "show the connection of this command", "me"),
    Subcommand(
        ("client", "list"),
        "whippet.app.cli.remote.system",
        "list the clients that are connected",
        "list_clients",
        ("l",),
    ),
    Subcommand(
        ("client", "get"), "whippet.app.cli.remote.system", "show a client and its groups", "get_client", ("g",)
    ),
    Subcommand(
        ("cluster", "metadata"), "whippet.app.cli.remote.system", "show the nodes of the cluster", "cluster", ("m",)
    ),
    Subcommand(
        ("snapshot",), "whippet.app.cli.remote.system", "save a description of the server for a report", "snapshot"
    ),
    Subcommand(("mcp",), "whippet.app.cli.remote.mcp", "serve the Model Context Protocol to an assistant", "serve"),
    Subcommand(("completion",), "whippet.app.cli.completion", "print the completion script of a shell"),
    Subcommand(("version",), "whippet.app.cli.version", "print the version"),
)

GROUPS = {
    "bench": Group("measure speed"),
    "client": Group("the clients that are connected", ("c",)),
    "cluster": Group("the nodes of the cluster", ("cl",)),
    "consumer-group": Group("consumers that share the partitions of a topic", ("g",)),
    "consumer-offset": Group("how far consumers have read", ("o",)),
    "context": Group("named servers, with their credentials", ("ctx",)),
    "groups": Group("the progress of consumer groups"),
    "export": Group("write messages to files"),
    "import": Group("take over messages from files, or the data of another server"),
    "keys": Group("keys for encryption at rest"),
    "message": Group("send and read messages", ("m",)),
    "partition": Group("partitions of a topic", ("p",)),
    "pat": Group("your personal access tokens"),
    "pipeline": Group("move data with Spark"),
    "segment": Group("segments of a partition", ("seg",)),
    "session": Group("log in and out"),
    "stream": Group("streams", ("s",)),
    "topic": Group("topics of a stream", ("t",)),
    "user": Group("users and their permissions", ("u",)),
}
"""The first words that several subcommands have in common."""
