"""The sinks for Elasticsearch and Quickwit, against a small, strict server with their `_bulk`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.pipelines.support.bulk_server import BulkServer, Document, Failure
from tests.pipelines.support.dead_letters import letters
from tests.pipelines.support.job import Job
from tests.support.lake import Lake
from tests.support.sizes import mostly_long

Source = Callable[..., str]
QUICKWIT_INDEX = 'index = """\nversion: 0.8\nindex_id: orders\ndoc_mapping: {mode: dynamic}\n"""\n'
NEXT = (("Retry-After", "0"),)


def sink(kind: str, bulk: BulkServer, more: str = "") -> str:
    index = QUICKWIT_INDEX if kind == "quickwit" else 'index = "orders"\n'
    return f'[sink]\ntype = "{kind}"\nurl = "{bulk.url}"\n{index}retry_delay = "1 ms"\n{more}'


def stored(kind: str, bulk: BulkServer) -> list[Document]:
    return bulk.appended if kind == "quickwit" else list(bulk.documents.values())


def ids(kind: str, bulk: BulkServer) -> list[int]:
    return sorted(document["id"] for document in stored(kind, bulk))


@pytest.mark.parametrize("kind", ["elasticsearch", "quickwit"])
def test_temporarily_rejected_documents_are_sent_again_and_refused_ones_become_dead_letters(
    kind: str, job: Job, lake: Lake, source: Source, bulk: BulkServer
) -> None:
    topic = lake.topic(partitions=2)
    lake.send(topic, [f'{{"id":{n},"name":"n"}}' for n in range(25)], 0)
    lake.send(topic, [f'{{"id":{n},"name":"n"}}' for n in range(25, 40)], 1)
    bulk.failures.extend([Failure(429, NEXT), Failure(503), Failure(413), Failure(429, NEXT)])
    put_off: set[int] = set()

    def judge(document: Document) -> tuple[int, str] | None:
        if document["id"] == 7:
            return 400, "failed to parse field [name]"
        if document["id"] % 10 == 3 and document["id"] not in put_off:
            put_off.add(document["id"])
            return 429, "rejected execution"
        return None

    bulk.judge = judge
    stream = topic.split("/")[0]
    dead = f'\n[dead_letter]\nstream = "{stream}"\ntopic = "bad"\n'
    ran = job(source(topic) + sink(kind, bulk, "batch_size = 10\n") + dead)
    assert ids(kind, bulk) == [n for n in range(40) if n != 7]
    assert put_off == {3, 13, 23, 33}
    assert bulk.errors == []
    assert max(bulk.requests) <= 10
    ((payload, headers),) = letters(lake, f"{stream}/bad")
    assert json.loads(payload)["id"] == 7
    assert headers["reason"] == "400 document_parsing_exception: failed to parse field [name]"
    assert (headers["step"], headers["partition"], headers["offset"]) == (f"[sink] ({kind})", "0", "7")
    assert ran.done.bad_records == 1
    assert (
        next(each for each in stored(kind, bulk) if each["id"] == 30).items()
        >= (
            {"_iggy_stream": stream, "_iggy_partition": 1, "_iggy_offset": 5}
            if kind == "elasticsearch"
            else {"iggy_stream": stream, "iggy_partition_id": 1, "iggy_offset": 5}
        ).items()
    )


def test_a_replayed_document_replaces_itself(job: Job, lake: Lake, source: Source, bulk: BulkServer) -> None:
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"tags":["a","a"]}', '{"id":1,"tags":["a","a"]}'])
    explode = '[transforms.sql]\nquery = "SELECT id, explode(tags) AS tag FROM input"\n'
    for text in (
        source(topic, "id bigint, tags array<string>") + sink("elasticsearch", bulk),
        source(topic, "id bigint, tags array<string>") + explode + sink("elasticsearch", bulk),
    ):
        job(text)
        job.crash()
        job(text)
        (job.folder / "state").rename(job.folder / f"state-{len(bulk.documents)}")
    assert sorted("tag" in each for each in bulk.documents.values()) == [False] * 2 + [True] * 4
    mapping = {"properties": {"id": {"type": "keyword"}}}
    table = '[sink.index_mapping]\nproperties.id.type = "keyword"\n'
    job(source(topic) + sink("elasticsearch", bulk).replace('"orders"', '"other"') + f'id_columns = ["id"]\n{table}')
    assert json.loads(bulk.indexes["other"]) == {"mappings": mapping}
    assert len(bulk.documents) == 7, "of equal ids the last one counts"


def test_an_unreachable_or_closed_sink_is_reported_in_one_sentence(
    job: Job, lake: Lake, source: Source, bulk: BulkServer
) -> None:
    from whippet.pipelines.errors import SinkError  # noqa: PLC0415 -- it needs pyspark

    topic = lake.topic()
    lake.send(topic, ['{"id":1}'])
    login = 'username = "me"\npassword = "a-secret"\nmax_retries = 1\n'
    closed = b'{"error":{"type":"security_exception","reason":"who are you?"}}'
    # Spark runs a task up to four times here.
    bulk.failures.extend([Failure(401, body=closed)] * 4)
    with pytest.raises(SinkError, match=r"POST http://.*/_bulk failed: 401 security_exception: who are you\?"):
        job(source(topic) + sink("elasticsearch", bulk, login))
    bulk.failures.extend([Failure(503)] * 8)
    with pytest.raises(SinkError, match=r"/_bulk failed after 2 attempts: 503") as error:
        job(source(topic) + sink("elasticsearch", bulk, login))
    assert "a-secret" not in str(error.value)
    job(source(topic) + sink("elasticsearch", bulk, login))
    assert len(bulk.documents) == 1


def test_pauses_follow_retry_after_and_otherwise_double(bulk: BulkServer) -> None:
    from whippet.pipelines.errors import SinkError  # noqa: PLC0415
    from whippet.pipelines.sinks.bulk import Client, Target  # noqa: PLC0415

    pauses: list[float] = []
    target = Target(bulk.url, "/_bulk", "index", "orders", retries=5, delay_ms=100)
    after = (("Retry-After", "7"),)
    bulk.failures.extend([Failure(503), Failure(502), Failure(429, after), Failure(429, (("Retry-After", "99999"),))])
    client = Client(target, pauses.append)
    bulk.indexes["orders"] = b"{}"
    body = b'{"index":{"_index":"orders","_id":"1"}}\n{"a":1}\n'
    assert client.call("POST", "/_bulk", body, "application/x-ndjson").status == 200
    assert pauses == [0.1, 0.2, 7.0, 300.0]
    client.close()
    nobody = Client(Target("http://127.0.0.1:9", "/_bulk", "index", "orders", retries=1), pauses.append)
    with pytest.raises(
        SinkError, match=r"POST http://127\.0\.0\.1:9/_bulk failed after 2 attempts: ConnectionRefusedError"
    ):
        nobody.call("POST", "/_bulk", body, "application/x-ndjson")


STRANGE = (
    b"<html>sign in first</html>",
    b"",
    b'{"took": 3}',
    b"[]",
    b'{"errors": true}',
    b'{"errors": false, "items": []}',
)


@pytest.mark.parametrize("body", STRANGE, ids=range(len(STRANGE)))
def test_documents_without_a_result_do_not_count_as_stored(bulk: BulkServer, body: bytes) -> None:
    from whippet.pipelines.errors import SinkError  # noqa: PLC0415
    from whippet.pipelines.sinks.bulk import Client, Target, send  # noqa: PLC0415
    from whippet.pipelines.sinks.bulk import Document as Lines  # noqa: PLC0415

    target = Target(bulk.url, "/_bulk", "index", "orders", retries=0)
    bulk.failures.append(Failure(200, body=body))
    with Client(target) as client, pytest.raises(SinkError, match="_bulk"):
        send(client, target, [Lines(0, b'{"index":{"_index":"orders","_id":"1"}}\n{"a":1}\n')])


@pytest.mark.parametrize("status", mostly_long([401, 403, 404], usual={403}))
def test_a_closed_index_stops_the_pipeline_without_dead_letters(
    status: int, job: Job, lake: Lake, source: Source, bulk: BulkServer
) -> None:
    from whippet.pipelines.errors import SinkError  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ['{"id":1}'])
    bulk.judge = lambda document: (status, "index read-only / allow delete (api)")
    with pytest.raises(SinkError, match=f"_bulk accepts no documents: {status} .*: index read-only"):
        job('on_error = "skip"\n' + source(topic) + sink("elasticsearch", bulk))
    bulk.judge = lambda document: None
    job('on_error = "skip"\n' + source(topic) + sink("elasticsearch", bulk))
    assert ids("elasticsearch", bulk) == [1]
