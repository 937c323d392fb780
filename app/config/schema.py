"""The whole configuration as one frozen value, created by `whippet.app.config.load` and read by the composition root.

The sections about listeners and about the data have modules of their own; the rest is here: background work and what
clients learn about the cluster. The docstring of a field is its sentence in the documentation.
"""

from __future__ import annotations

from typing import Annotated, Literal

from whippet.app.config import formats
from whippet.app.config.engine import Engine
from whippet.app.config.formats import Secret, choice, integer, optional
from whippet.app.config.listeners import (
    Boolean,
    Bytes,
    Hidden,
    Http,
    Mcp,
    Metrics,
    Name,
    OptionalBytes,
    Quic,
    Seconds,
    Tcp,
    Text,
    Websocket,
)
from whippet.app.config.section import Section
from whippet.app.config.system import Period, System

Transport = Annotated[Literal["grpc", "http"], choice("grpc", "http")]
OptionalPort = Annotated[int | None, optional(integer(1, 65_535))]


class MessageSaver(Section, frozen=True):
    """The task that writes the messages that partitions have gathered in memory."""

    enabled: Boolean = True
    """Run it."""
    enforce_fsync: Boolean = True
    """Sync what it writes, and what was written before."""
    interval: Seconds = 30.0
    """Period of its runs."""


class MessagesMaintenance(Section, frozen=True):
    """Retention: expired messages and topics above their size."""

    cleaner_enabled: Boolean = True
    """Delete segments whose messages have expired or that exceed their topic's size; has no effect on a topic without
    either limit."""
    interval: Seconds = 60.0
    """Period of the cleaner."""
    archiver_enabled: Boolean = False
    """Archive every closed segment, not only expired ones; true is refused, because
    `data_maintenance.archiver.enabled` does that."""


class StateMaintenance(Section, frozen=True):
    """Copies of the catalogue by themselves. They are not supported: a start that enables them is refused."""

    archiver_enabled: Boolean = False
    """Copy the catalogue to the archive; true is refused, because `data_maintenance.archiver.enabled` does that."""
    overwrite: Boolean = True
    """Replace the last copy; otherwise each copy gets a folder named after its time."""
    interval: Seconds = 60.0
    """Period of the copies."""


class Retention(Section, frozen=True):
    """What retention respects besides the limits of a topic: the cleaner, and deletions of segments on request."""

    respects_consumers: Annotated[Literal["none", "groups", "all"], choice("none", "groups", "all")] = "groups"
    """Keep a segment until these have read it: consumer `groups` that have stored an offset in its partition; `all`:
    single consumers that have, too, so a consumer that is gone for good keeps everything after its offset; `none`:
    nobody."""


class DiskArchive(Section, frozen=True):
    """An archive in a folder."""

    path: Text = "local_data/archive"
    """The folder, relative to the working directory."""


class S3Archive(Section, frozen=True):
    """An archive in a bucket of S3, or of a service with the same API and conditional writes."""

    bucket: Text = "iggy"
    """Name of the bucket."""
    endpoint: Text = "http://localhost:9000"
    """URL of the service; empty: Amazon's."""
    region: Text = "eu-west-1"
    """Region of the bucket; other services need one, too."""
    tmp_upload_dir: Name = "local_data/s3_tmp"
    """Folder for copies that are being uploaded; any other than the default is refused, because segments are uploaded
    from where they are."""
    access_key_id: Text = ""
    """Name of the access key; empty: credentials come from the environment (`AWS_ACCESS_KEY_ID`, and so on) or the
    machine's role."""
    secret_access_key: Hidden = Secret("")
    """The access key's secret; empty: the environment or the machine's role."""
    key_prefix: Text = ""
    """Text put before the names of all objects, with a slash after it. Each data folder needs a prefix of its own."""


class GcsArchive(Section, frozen=True):
    """An archive in a bucket of Google Cloud Storage."""

    bucket: Text = ""
    """Name of the bucket."""
    key_prefix: Text = ""
    """Text put before the names of all objects, with a slash after it. Each data folder needs a prefix of its own."""
    service_account_file: Text = ""
    """File with the key of a service account, in JSON; empty: credentials come from the environment
    (`GOOGLE_APPLICATION_CREDENTIALS`, and so on) or the machine's role."""


class AzureArchive(Section, frozen=True):
    """An archive in a container of Azure Blob Storage."""

    account: Text = ""
    """Name of the storage account."""
    container: Text = ""
    """Name of the container."""
    key_prefix: Text = ""
    """Text put before the names of all objects, with a slash after it. Each data folder needs a prefix of its own."""
    access_key: Hidden = Secret("")
    """Key of the storage account; empty: credentials come from the environment (`AZURE_STORAGE_ACCOUNT_KEY`,
    `AZURE_CLIENT_ID`, and so on) or the machine's identity."""
    endpoint: Text = ""
    """URL of the service with the account's name, if it is not Azure's."""


class Archiver(Section, frozen=True):
    """Copies of all messages, the catalogue, users and stored offsets, from which `whippet restore` and `whippet serve
    --from-archive` make a data folder. [Archive](archive.md) describes it."""

    enabled: Boolean = False
    """Archive everything, at an interval: closed segments, and what is new in open ones."""
    kind: Annotated[Literal["disk", "s3", "gcs", "azure"], choice("disk", "s3", "gcs", "azure")] = "disk"
    """Archive to a folder, or to a bucket of one of these services."""
    interval: Annotated[float | None, optional(formats.PERIOD)] = None
    """Pause between two rounds, so about the most that the loss of the machine costs; not set: 60 s."""
    bandwidth: Bytes = 0
    """Bytes that are sent in a second, at most and on average; 0: no limit."""
    local_limit: OptionalBytes = None
    """Bytes that may wait for the archive; while there are more, messages are refused (error 3009). Not set: producers
    never notice the archive."""
    cache_size: Bytes = 1 << 30
    """Disk space, in the data folder, for what was read from the archive and may be read again."""
    request_timeout: Period = 30.0
    """Time after which a request to a bucket has failed. A request moves at most 8 MiB."""
    disk: DiskArchive = DiskArchive()
    s3: S3Archive = S3Archive()
    gcs: GcsArchive = GcsArchive()
    azure: AzureArchive = AzureArchive()


class DataMaintenance(Section, frozen=True):
    """The treatment of old data."""

    messages: MessagesMaintenance = MessagesMaintenance()
    state: StateMaintenance = StateMaintenance()
    archiver: Archiver = Archiver()


class ConsumerGroup(Section, frozen=True):
    """How partitions move between the members of a group."""

    rebalancing_timeout: Seconds = 30.0
    """Time that a member has to finish with a partition before the partition is taken away."""
    rebalancing_check_interval: Period = 5.0
    """Period of the check for members that have exceeded it."""


class TokenCleaner(Section, frozen=True):
    """The task that removes expired personal access tokens."""

    enabled: Boolean = True
    """Run it."""
    interval: Seconds = 60.0
    """Period of its runs."""


class PersonalAccessToken(Section, frozen=True):
    """Tokens that users create for their programs."""

    max_tokens_per_user: Annotated[int, integer(1)] = 100
    """Number of tokens per user; one more is refused (error 52)."""
    cleaner: TokenCleaner = TokenCleaner()


class Heartbeat(Section, frozen=True):
    """Detection of clients that are gone although their connection is still open."""

    enabled: Boolean = False
    """Evict members of consumer groups that have not pinged for 1.2 times the interval, so that others get their
    partitions. It does not apply to browsers, which are pinged instead (`websocket.channel`), or to leases over
    HTTP."""
    interval: Seconds = 5.0
    """Period at which members must ping, and are checked."""


class TelemetryLogs(Section, frozen=True):
    """Destination of logs."""

    transport: Transport = "grpc"
    """Protocol of the collector."""
    endpoint: Text = "http://localhost:7281/v1/logs"
    """URL of the collector; over gRPC, its path has no meaning."""


class TelemetryTraces(Section, frozen=True):
    """Destination of traces."""

    transport: Transport = "grpc"
    """Protocol of the collector."""
    endpoint: Text = "http://localhost:7281/v1/traces"
    """URL of the collector; over gRPC, its path has no meaning."""


class TelemetryMetrics(Section, frozen=True):
    """Destination of metrics. Iggy has no such keys."""

    transport: Transport = "grpc"
    """Protocol of the collector."""
    endpoint: Text = "http://localhost:7281/v1/metrics"
    """URL of the collector; over gRPC, its path has no meaning."""
    interval: Period = 60.0
    """Period at which they are sent."""


class Telemetry(Section, frozen=True):
    """Export of traces, logs and metrics to a collector of OpenTelemetry, over OTLP. It needs the extra `telemetry`.
    [Operating](operating.md) describes it."""

    enabled: Boolean = False
    """Export traces, metrics and logs. Every command becomes a span, and sends are slower."""
    service_name: Text = "iggy"
    """Name under which this server appears."""
    logs: TelemetryLogs = TelemetryLogs()
    traces: TelemetryTraces = TelemetryTraces()
    metrics: TelemetryMetrics = TelemetryMetrics()


class Audit(Section, frozen=True):
    """The audit log: who has logged in or failed to, and who has changed what: the catalogue, users, tokens, offsets.
    [Operating](operating.md) describes it. Iggy has no such keys."""

    enabled: Boolean = True
    """Keep an audit log: lines of JSON in the file `audit.log` in the folder `audit.path`."""
    path: Name = "audit"
    """Folder in the data folder for it."""
    max_file_size: Bytes = 64 << 20
    """Size at which the file is closed and the next one started; 0: unlimited."""
    max_total_size: Bytes = 1 << 30
    """Total size of all these files above which the oldest are removed; 0: unlimited."""
    retention: Annotated[float, formats.SECONDS_OR_MORE] = 365 * 86_400.0
    """Age at which a file is closed and the next one started; a closed file is kept for as long again."""
    required: Boolean = False
    """While the file cannot be written, refuse logins and changes (error 10006, over HTTP 503
    `audit_unavailable`) instead of making them without a record."""
    commits: Boolean = False
    """Also record every offset that a consumer stores, not only those that somebody deletes, moves back, or sets for a
    group without being a member. Offsets that polls store by themselves are never recorded."""
    stream: Text = ""
    """Name of a stream in which the server keeps the entries, too, as messages of the topic `entries`, where they can
    be queried and read like others. It is created if it is missing, and nobody else can write to it. Empty: none."""


class NodePorts(Section, frozen=True):
    """Ports of the other node."""

    tcp: OptionalPort = None
    """Port of its TCP listener; not set: the same as here."""
    quic: OptionalPort = None
    """Port of its QUIC listener; not set: the same as here."""
    http: OptionalPort = None
    """Port of its HTTP listener; not set: the same as here."""
    websocket: OptionalPort = None
    """Port of its WebSocket listener; not set: the same as here."""


class OtherNode(Section, frozen=True):
    """Another node, one table each. While `cluster.enabled` is true, any is refused: nothing is replicated, and clients
    are sent to no other node."""

    name: Text = ""
    """Its name."""
    ip: Text = ""
    """Its address, as clients reach it."""
    ports: NodePorts = NodePorts()


class CurrentNode(Section, frozen=True):
    """This node."""

    name: Text = "iggy-node-1"
    """Its name."""
    ip: Text = "127.0.0.1"
    """Its address, as clients reach it. Clients get it while `cluster.enabled` is true."""


class Nodes(Section, frozen=True):
    """The nodes of the cluster."""

    current: CurrentNode = CurrentNode()
    others: tuple[OtherNode, ...] = ()


class RosterPorts(Section, frozen=True):
    """Ports of the node; its listeners use them instead of the ports in their addresses."""

    tcp: OptionalPort = None
    """Port of its TCP listener; not set: that of `tcp.address`."""
    quic: OptionalPort = None
    """Port of its QUIC listener; not set: that of `quic.address`."""
    http: OptionalPort = None
    """Port of its HTTP listener; not set: that of `http.address`."""
    websocket: OptionalPort = None
    """Port of its WebSocket listener; not set: that of `websocket.address`."""


class RosterNode(Section, frozen=True):
    """The roster of newer Iggy releases, which replaces `cluster.node`; one table per node. While `cluster.enabled` is
    true, it may list one node, this server: more are refused, because nothing is replicated and clients are sent to no
    other node."""

    name: Text = ""
    """Its name."""
    ip: Text = ""
    """Its address."""
    advertised_address: Text = ""
    """Its address, as clients reach it; empty: `ip`."""
    replica_id: Annotated[int, integer(0, 255)] = 0
    """Its number; `whippet serve --replica-id`, if given, must be the same."""
    ports: RosterPorts = RosterPorts()


class Cluster(Section, frozen=True):
    """The cluster that clients see, of which this is the only node; nothing is replicated."""

    enabled: Boolean = False
    """Tell clients the names and addresses given here instead of those that the server determines itself."""
    name: Text = "iggy-cluster"
    """Name of the cluster."""
    node: Nodes = Nodes()
    nodes: tuple[RosterNode, ...] = ()


class Config(Section, frozen=True):
    """The whole configuration."""

    http: Http = Http()
    mcp: Mcp = Mcp()
    tcp: Tcp = Tcp()
    quic: Quic = Quic()
    websocket: Websocket = Websocket()
    system: System = System()
    engine: Engine = Engine()
    message_saver: MessageSaver = MessageSaver()
    data_maintenance: DataMaintenance = DataMaintenance()
    retention: Retention = Retention()
    consumer_group: ConsumerGroup = ConsumerGroup()
    personal_access_token: PersonalAccessToken = PersonalAccessToken()
    heartbeat: Heartbeat = Heartbeat()
    audit: Audit = Audit()
    telemetry: Telemetry = Telemetry()
    metrics: Metrics = Metrics()
    cluster: Cluster = Cluster()
