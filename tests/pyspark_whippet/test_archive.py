"""Reading topics from an archive without the gateway: the same rows, in parallel, and nothing is skipped silently."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import pytest
import xxhash

from pyspark_whippet.errors import ArchiveError, DataLossError, OptionError
from pyspark_whippet.offsets import Range
from pyspark_whippet.options import check_source, decode
from tests.app.support.process import starting
from tests.storage.archive.support.buckets import BUCKET, REGION, Bucket, bucket
from tests.support.lake import PASSWORD, Lake
from tests.support.sizes import mostly_long
from whippet.app import encryption_keys
from whippet.storage import index as indexes
from whippet.storage.index import Index

pytest.importorskip("pyarrow", reason="pyarrow is not installed: install whippet-gateway[spark]")
pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark.sql.types import StructField, StructType

from pyspark_whippet import backends, columns
from pyspark_whippet.archive import ArchiveBackend
from pyspark_whippet.archive_reader import FETCH_BYTES
from pyspark_whippet.source import WhippetSource

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

COMPRESSIONS = ("none", "gzip", "zstd")
Options = dict[str, str]


class Archived(NamedTuple):
    """An archive whose server has stopped, and what the server had."""

    folder: Path
    topics: dict[str, str]
    """By their compression."""
    rows: dict[str, list[Row]]
    """By topic, read from the gateway by Spark."""
    keys: Path

    def options(self, **more: object) -> Options:
        return {"from": "archive", "archive": f"file://{self.folder}"} | {
            key: str(value) for key, value in more.items()
        }


def fill(lake: Lake, topic: str, start: int) -> None:
    """Large batches, messages of many sizes, single messages, and headers of several kinds, in two partitions."""
    header = {"key": {"kind": "string", "value": "aw=="}, "value": {"kind": "raw", "value": "dg=="}}
    number = {"key": {"kind": "uint32", "value": "KgAAAA=="}, "value": {"kind": "bool", "value": "AQ=="}}
    for partition in (0, 1):
        for each in range(start, start + 4):
            lake.send(topic, [f"{each} {row} {'x' * 200}" + os.urandom(100).hex() for row in range(1_000)], partition)
            lake.send(topic, [f"{each} {'y' * (row * 7 % 300)}" for row in range(200)], partition)
            for _ in range(10):
                lake.send(topic, [f"{each} alone"], partition)
    lake.send_json(topic, [{"payload": "eA==", "user_headers": [header, number], "id": 2**100 + start}])


def collect(spark: SparkSession, topic: str, options: Options) -> list[Row]:
    reader = spark.read.format("whippet").option("subscribe", topic).option("includeHeaders", "true")
    return reader.options(**options).load().orderBy("partition", "offset").collect()


def archive(spark: SparkSession, root: Path, *, encrypted: bool) -> Archived:
    """Two servers, one after the other, so that segments consist of several pieces, with a new key for the second."""
    keys, folder = root / "keys", root / "archive"
    topics: dict[str, str] = {}
    rows: dict[str, list[Row]] = {}
    for start in (0, 4):
        if encrypted:
            encryption_keys.add_key(str(keys), "now")
        with starting(root / "data") as begin:
            gateway = begin(
                IGGY_ROOT_USERNAME="iggy",
                IGGY_ROOT_PASSWORD=PASSWORD,
                IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED="true",
                IGGY_DATA_MAINTENANCE_ARCHIVER_KIND="disk",
                IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH=str(folder),
                **({"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true"} if encrypted else {}),
                **({"IGGY_SYSTEM_ENCRYPTION_KEY_FILE": str(keys)} if encrypted else {}),
            )
            lake = Lake(gateway, root / "data")
            for compression in COMPRESSIONS:
                if not start:
                    options = {"options": {"segment_size": "1 MiB"}, "compression_algorithm": compression}
                    topics[compression] = lake.topic(2, **options)
                fill(lake, topics[compression], start)
            rows = {topic: collect(spark, topic, lake.options) for topic in topics.values()}
            lake.http.close()
            gateway.signal(signal.SIGTERM)
            assert gateway.end() == 0
    return Archived(folder, topics, rows, keys)


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    return archive(spark, tmp_path_factory.mktemp("plain"), encrypted=False)


@pytest.fixture(scope="module")
def encrypted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    return archive(spark, tmp_path_factory.mktemp("encrypted"), encrypted=True)


@pytest.fixture
def copy(plain: Archived, tmp_path: Path) -> Archived:
    """A copy that a test may damage."""
    shutil.copytree(plain.folder, tmp_path / "copy")
    return plain._replace(folder=tmp_path / "copy")


def manifest_path(archived: Archived, topic: str, partition: int = 0) -> Path:
    catalogue = json.loads((archived.folder / "catalogue.json").read_bytes())
    for stream in catalogue["streams"]:
        if stream["document"]["name"] == topic.split("/", maxsplit=1)[0]:
            stream_id, topic_id = stream["document"]["id"], stream["topics"][0]["document"]["id"]
    return archived.folder / f"streams/{stream_id}/topics/{topic_id}/partitions/{partition}/manifest.json"


def plan(options: Options, topic: str, start: int = 0, end: int | None = None) -> Callable[[], list[dict[str, Any]]]:
    """Plans a read of partition 0, and returns what its tasks do."""
    settings = decode({**options, "subscribe": topic}, {})
    backend = ArchiveBackend(settings)
    bounds = backend.bounds_of(topic)
    assert bounds is not None
    splits = backend.plan_splits([Range(topic, 0, start, end or bounds[0].next_offset)], settings)
    wanted = StructType([StructField(name, kind) for name, kind in columns.TYPES.items()])

    def read() -> list[dict[str, Any]]:
        return [row for each in splits for batch in backends.read(settings, wanted, each) for row in batch.to_pylist()]

    return read


# ------------------------------------------------------------------------------------------------------- the same rows


@pytest.mark.parametrize(
    ("way", "compression"),
    [
        pytest.param(*case, marks=[] if case in {("plain", "none"), ("encrypted", "zstd")} else pytest.mark.long)
        for case in itertools.product(("plain", "encrypted"), COMPRESSIONS)
    ],
)
def test_spark_reads_the_same_rows_as_from_the_gateway(
    spark: SparkSession, request: pytest.FixtureRequest, way: str, compression: str
) -> None:
    archived: Archived = request.getfixturevalue(way)
    topic = archived.topics[compression]
    more = {"encryption.keyFile": archived.keys} if way == "encrypted" else {}
    found = collect(spark, topic, archived.options(**more))
    expected = archived.rows[topic]
    assert len(expected) == 2 * 8 * 1_210 + 2
    assert sum(row.headers is not None for row in expected) == 2
    assert found == expected


@pytest.mark.parametrize("compression", mostly_long(["none", "zstd"], usual={"zstd"}))
def test_a_job_has_a_task_for_each_piece_or_as_many_as_wanted(
    spark: SparkSession, plain: Archived, compression: str
) -> None:
    topic = plain.topics[compression]
    pieces = [
        piece
        for partition in (0, 1)
        for piece in json.loads(manifest_path(plain, topic, partition).read_bytes())["pieces"]
    ]
    # Several segments, or several pieces of one.
    assert len([piece for piece in pieces if piece["first"] < piece["next"]]) >= 4
    reader = spark.read.format("whippet").option("subscribe", topic).options(**plain.options())
    assert reader.load().rdd.getNumPartitions() == sum(piece["first"] < piece["next"] for piece in pieces)
    many = reader.option("minPartitions", "12").option("maxRecordsPerPartition", "1500").load()
    assert many.rdd.getNumPartitions() >= 12
    assert many.orderBy("partition", "offset").collect() == reader.load().orderBy("partition", "offset").collect()


@pytest.mark.parametrize("compression", mostly_long(COMPRESSIONS, usual={"zstd"}))
def test_offsets_and_times_select_the_same_rows(plain: Archived, spark: SparkSession, compression: str) -> None:
    topic = plain.topics[compression]
    rows = [row for row in plain.rows[topic] if row.partition == 0]
    moment = rows[3_000].timestamp
    start = moment.astimezone(UTC).isoformat()
    found = collect(spark, topic, plain.options(startingTimestamp=start))
    assert found == [row for row in plain.rows[topic] if row.timestamp >= moment]
    first, last = json.dumps({topic: {"0": 1_215, "1": -2}}), json.dumps({topic: {"0": 4_321, "1": 0}})
    found = collect(spark, topic, plain.options(startingOffsets=first, endingOffsets=last))
    assert found == rows[1_215:4_321]
    never = plain.options(startingTimestamp="2100-01-01T00:00:00Z")
    with pytest.raises(Exception, match="no message was appended at 4102444800000 ms or later"):
        collect(spark, topic, never)


def test_patterns_match_the_topics_of_the_archive(plain: Archived, spark: SparkSession) -> None:
    reader = spark.read.format("whippet").options(**plain.options(subscribePattern="s.*/t"))
    assert reader.load().count() == sum(map(len, plain.rows.values()))
    with pytest.raises(Exception, match="topic 's0/other' does not exist"):
        collect(spark, "s0/other", plain.options())


def test_an_archive_in_a_bucket_is_read_with_keys_that_nothing_shows(
    spark: SparkSession, encrypted: Archived, service: Bucket
) -> None:
    upload(encrypted.folder, service, "some/prefix")
    secrets = {"s3.accessKeyId": "key", "s3.secretAccessKey": "a-secret-that-nobody-may-see"}
    keys = ",".join(line for line in encrypted.keys.read_text().splitlines() if not line.startswith("#"))
    options = {
        "from": "archive",
        "archive": f"s3://{BUCKET}/some/prefix",
        "s3.endpoint": service.endpoint,
        "s3.region": REGION,
        "encryption.secretKey": keys,
        **secrets,
    }
    topic = encrypted.topics["zstd"]
    assert collect(spark, topic, options) == encrypted.rows[topic]
    frame = spark.read.format("whippet").option("subscribe", topic).options(**options).load()
    shown = frame._jdf.queryExecution().toString() + repr(decode({**options, "subscribe": topic}, {}))
    assert not any(secret in shown for secret in ("nobody-may-see", *keys.split(",")))


# -------------------------------------------------------------------------------------------- damaged, missing, changed


@pytest.mark.parametrize("damage", ["gone", "shorter", "a byte", "reserved bytes"])
def test_a_damaged_or_missing_object_fails_the_job_and_is_named(
    copy: Archived, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = copy.topics["none"]
    logs = sorted(manifest_path(copy, topic).parent.glob("*.log"))
    log = logs[1]
    content = log.read_bytes()
    if damage == "gone":
        log.unlink()
    else:
        broken = {
            "shorter": content[:-1],
            "a byte": content[:99_999] + bytes([content[99_999] ^ 1]) + content[100_000:],
            # No checksum of a batch covers them, but that of the object does.
            "reserved bytes": content[:200] + b"?" + content[201:],
        }
        log.write_bytes(broken[damage])
    with pytest.raises(DataLossError, match=str(log)):
        plan(copy.options(), topic)()
    expected = plan_rows(copy, topic)
    found = plan(copy.options(failOnDataLoss=False), topic)()
    missing = {"gone": None, "shorter": None, "a byte": 1_000, "reserved bytes": 0}[damage]
    assert str(log) in caplog.text
    assert found == [row for row in expected if row in found]
    if missing is not None:
        assert len(expected) - len(found) == missing
    else:
        assert 0 < len(expected) - len(found) < len(expected)
        assert "skipped" in caplog.text


def plan_rows(archived: Archived, topic: str) -> list[dict[str, Any]]:
    """The rows of partition 0, as a reader without Spark returns them."""
    rows = [row.asDict(recursive=True) for row in archived.rows[topic] if row.partition == 0]
    return [
        row
        | {name: row[name].astimezone(UTC) for name in ("timestamp", "originTimestamp")}
        | {name: bytes(row[name]) for name in ("value", "id")}
        | {"headers": row["headers"] and [each | {"value": bytes(each["value"])} for each in row["headers"]]}
        for row in rows
    ]


@pytest.mark.parametrize("name", ["archive.json", "catalogue.json", "manifest.json", "an index"])
@pytest.mark.parametrize("damage", ["gone", "a byte", "another version"])
def test_a_damaged_or_missing_document_fails_the_plan_and_is_named(copy: Archived, name: str, damage: str) -> None:
    topic = copy.topics["zstd"]
    manifest = manifest_path(copy, topic)
    path = {"manifest.json": manifest, "an index": sorted(manifest.parent.glob("*.index"))[0]}.get(
        name, copy.folder / name
    )
    content = path.read_bytes()
    path.unlink()
    if damage == "a byte":
        path.write_bytes(content[:50] + b"\xff" + content[51:])
    elif damage == "another version":
        path.write_bytes(content.replace(b'"whippet_archive":1', b'"whippet_archive":2').replace(b"INDX2", b"INDX3"))
    sentence = f"{copy.folder} is not an archive" if (name, damage) == ("archive.json", "gone") else str(path)
    with pytest.raises((ArchiveError, DataLossError), match=sentence):
        plan(copy.options(), topic, 1, 99)()


def test_a_job_goes_on_if_pieces_are_joined_meanwhile(copy: Archived) -> None:
    topic = copy.topics["zstd"]
    read, expected = plan(copy.options(), topic), plan_rows(copy, topic)
    path = manifest_path(copy, topic)
    manifest = json.loads(path.read_bytes())
    # Like the archiver: the bytes of both, and the entries of both, under another name.
    at = next(i for i, piece in enumerate(manifest["pieces"]) if piece["position"])
    one, other = manifest["pieces"][at - 1 : at + 1]
    join(path.parent, one, other)
    del manifest["pieces"][at]
    path.write_text(json.dumps(manifest))
    assert read() == expected
    assert plan(copy.options(), topic)() == expected
    read = plan(copy.options(), topic)
    manifest["epoch"] += 1
    (path.parent / one["log"]["name"]).rename(path.parent / "elsewhere")
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataLossError, match=one["log"]["name"]):
        read()


def join(folder: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    index = Index()
    for piece in (one, other):
        found = indexes.decode((folder / piece["index"]["name"]).read_bytes(), piece["start"])
        assert found is not None
        index.extend(found[0])
    contents = {
        "log": b"".join((folder / piece["log"]["name"]).read_bytes() for piece in (one, other)),
        "index": indexes.encode(index, one["start"], other["end"]),
    }
    for kind, content in contents.items():
        for piece in (one, other):
            (folder / piece[kind]["name"]).unlink()
        one[kind] = {"name": f"joined.{kind}", "size": len(content), "xxh3": xxhash.xxh3_64_hexdigest(content)}
        (folder / f"joined.{kind}").write_bytes(content)
    one |= {key: other[key] for key in ("end", "next", "last_timestamp")} | {"batches": len(index)}


def test_offsets_that_the_archive_does_not_have_are_reported(copy: Archived, caplog: pytest.LogCaptureFixture) -> None:
    topic = copy.topics["none"]
    path = manifest_path(copy, topic)
    manifest = json.loads(path.read_bytes())
    segments = sorted({piece["start"] for piece in manifest["pieces"]})
    gone = [piece for piece in manifest["pieces"] if piece["start"] == segments[1]]
    manifest["pieces"] = [piece for piece in manifest["pieces"] if piece not in gone]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataLossError, match=rf"offset {gone[0]['first']} is gone \({copy.folder} does not have it\)"):
        plan(copy.options(), topic)
    expected = plan_rows(copy, topic)
    found = plan(copy.options(failOnDataLoss=False), topic)()
    assert found == expected[: gone[0]["first"]] + expected[gone[-1]["next"] :]
    assert f"offsets {gone[0]['first']} to {gone[-1]['next'] - 1}" in caplog.text


def test_a_topic_that_was_created_again_has_no_messages_of_the_one_before(copy: Archived) -> None:
    topic = copy.topics["none"]
    path = manifest_path(copy, topic)
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps(manifest | {"incarnation": manifest["incarnation"] + 1}))
    bounds = ArchiveBackend(decode({**copy.options(), "subscribe": topic}, {})).bounds_of(topic)
    assert bounds is not None
    assert (bounds[0].next_offset, bounds[0].messages) == (0, 0)
    assert bounds[1].messages > 0


def test_a_key_that_is_missing_or_wrong_fails_the_job_whatever_may_be_lost(encrypted: Archived) -> None:
    topic = encrypted.topics["gzip"]
    lines = [line for line in encrypted.keys.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    for keys in ({}, {"encryption.secretKey": lines[0]}, {"encryption.secretKey": lines[1]}):
        with pytest.raises(OptionError, match=r"encryption\.secretKey.*encrypted with the key [0-9a-f]{32}, but"):
            plan(encrypted.options(failOnDataLoss=False, **keys), topic)()
    rows = plan(encrypted.options(**{"encryption.secretKey": f"{lines[1]}, {lines[0]}"}), topic)()
    assert rows == plan_rows(encrypted, topic)


@pytest.fixture(scope="module")
def service() -> Iterator[Bucket]:
    with bucket() as found:
        yield found


def upload(folder: Path, service: Bucket, prefix: str) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=service.endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name=REGION,
    )
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(folder)}", Body=path.read_bytes())
    client.close()


def test_credentials_region_and_endpoint_may_come_from_the_environment(
    plain: Archived, service: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(plain.folder, service, "environment")
    for name, value in {
        "AWS_ENDPOINT_URL": service.endpoint,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "of-the-environment",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    topic = plain.topics["gzip"]
    assert plan({"from": "archive", "archive": f"s3://{BUCKET}/environment"}, topic)() == plan_rows(plain, topic)
    assert "Credential=of-the-environment/" in service.fault.authorizations[-1]


def test_a_bucket_that_fails_is_tried_again_and_then_named(plain: Archived, service: Bucket) -> None:
    upload(plain.folder, service, "failing")
    topic = plain.topics["none"]
    options = {
        "from": "archive",
        "archive": f"s3://{BUCKET}/failing",
        "s3.endpoint": service.endpoint,
        "s3.region": REGION,
        "s3.accessKeyId": "key",
        "s3.secretAccessKey": "secret",
        "failOnDataLoss": "false",
    }
    seen: list[str] = []

    def every_second(method: str, path: str) -> tuple[int, bytes] | None:
        seen.append(path)
        return (503, b"slow down") if ".log" in path and len(seen) % 2 else None

    service.fault.answer = every_second
    read = plan(options, topic)
    assert read() == plan_rows(plain, topic)
    read = plan(options | {"http.retries": "0"}, topic)
    service.fault.answer = lambda method, path: (503, b"slow down") if method == "GET" and ".log" in path else None
    try:
        with pytest.raises(ArchiveError, match=rf"s3://{BUCKET}/failing/streams/.*\.log cannot be read: .*503"):
            read()
        service.fault.answer = lambda method, path: (404, b"") if path.endswith("archive.json") else None
        with pytest.raises(ArchiveError, match=rf"s3://{BUCKET}/failing is not an archive"):
            plan(options, topic)
    finally:
        service.fault.answer = lambda method, path: None


# ------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"from": "archive"}, "option 'archive' is required with from=archive: s3://bucket/prefix, or file:///folder"),
        ({"archive": "/folder"}, "option 'archive': '/folder': s3://bucket/prefix is needed, or file:///folder"),
        ({"archive": "s3://"}, "option 'archive': 's3://': s3://bucket/prefix is needed"),
        ({"archive": "file://host/folder"}, "option 'archive': 'file://host/folder': a folder is needed that driver"),
        ({"path": "/folder"}, "option 'path', which load(...) and save(...) set as well, is for from=files"),
        ({"s3.endpoint": "nowhere"}, "option 's3.endpoint': 'nowhere': the URL of the service is needed"),
        ({"encryption.secretKey": "bm8="}, "option 'encryption.secretKey': keys of 32 bytes in base64 are needed"),
        ({"encryption.keyFile": "/nowhere"}, "option 'encryption.keyFile': '/nowhere': the driver cannot read it"),
        ({"s3.accessKeyId": "key"}, "option 's3.secretAccessKey' is required with 's3.accessKeyId'"),
        ({"s3.sessionToken": "token"}, "option 's3.accessKeyId' is required with 's3.sessionToken'"),
        *(
            ({name: "1"}, f"option '{name}' is for the gateway, which from=archive never uses; leave it out")
            for name in ("token", "consumerName", "pageSize")
        ),
        ({"url": "http://host"}, "option 'url' is for the gateway"),
        ({"username": "x", "password": "y"}, "option 'password' is for the gateway"),
        *(
            ({name: "1"}, f"option '{name}' is for streams, and from=archive reads tables; leave it out")
            for name in ("maxOffsetsPerTrigger", "pollIntervalMs")
        ),
        *(
            (
                {"archive": "file:///x", name: value},
                f"option '{name}' is for archives in a bucket, and this is a folder",
            )
            for name, value in {"s3.region": "x", "http.retries": "1", "http.verify": "false"}.items()
        ),
        ({"from": "files", "path": "/x"}, "option 'archive' is for from=archive, and this is from=files"),
        ({"from": "gateway"}, "option 'archive' is for from=archive, and this is from=gateway"),
        ({"from": "gateway", "archive": None, "encryption.keyFile": "/dev/null"}, "keys of 32 bytes"),
        (
            {"from": "gateway", "archive": None, "encryption.secretKey": "A" * 43 + "="},
            "option 'encryption.secretKey' is for from=archive and from=files",
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused_by_name(given: dict[str, str | None], sentence: str) -> None:
    options = {"subscribe": "s/t", "from": "archive"} | ({} if given == {"from": "archive"} else {"archive": "s3://b"})
    options = {name: value for name, value in (options | given).items() if value is not None}
    with pytest.raises(OptionError) as refused:
        check_source(decode(options, {}))
    assert sentence in str(refused.value)


def test_the_key_may_come_from_the_environment(encrypted: Archived) -> None:
    text = encrypted.keys.read_text()
    options = {**encrypted.options(), "subscribe": "s/t"}
    found = decode(options, {"WHIPPET_ENCRYPTION_KEY": text})
    assert len(found.keys) == 2
    assert found.keys == decode({**options, "encryption.keyFile": str(encrypted.keys)}, {}).keys
    with pytest.raises(OptionError, match="WHIPPET_ENCRYPTION_KEY: keys of 32 bytes in base64 are needed") as refused:
        decode(options, {"WHIPPET_ENCRYPTION_KEY": "secret"})
    assert "secret" not in str(refused.value)
    assert decode({"subscribe": "s/t"}, {"WHIPPET_ENCRYPTION_KEY": "secret"}).keys == ()


def test_streams_are_refused(spark: SparkSession, plain: Archived) -> None:
    topic = plain.topics["none"]
    reader = WhippetSource({**plain.options(), "subscribe": topic}).streamReader(StructType())
    with pytest.raises(OptionError, match="from=archive is for tables: read streams from the gateway"):
        reader.initialOffset()


def test_objects_larger_than_a_request_are_read_in_several(copy: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FETCH_BYTES > 1_000_000
    monkeypatch.setattr("pyspark_whippet.archive_reader.FETCH_BYTES", 100_000)
    monkeypatch.setattr("pyspark_whippet.stored_log.PIECE_BYTES", 70_000)
    for topic in copy.topics.values():
        assert plan(copy.options(), topic)() == plan_rows(copy, topic)
