"""PostgreSQL as a source and a sink: a real server, real crashes, no row lost and none written twice."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.pipelines.support.crashes import CRASHES, ends, run_up_to
from tests.pipelines.support.dead_letters import letters
from tests.pipelines.support.job import Job
from tests.pipelines.support.postgres_server import PASSWORD, Database
from tests.support.lake import Lake
from tests.support.sizes import mostly_long

pytest.importorskip("psycopg", reason="psycopg is not installed: install whippet-gateway[postgres]")

Source = Callable[..., str]
ORDERS = "create table orders (id bigint, name text, amount numeric(10,2), tags jsonb, raw bytea, at timestamptz)"
FIELDS = "id bigint, name string, amount decimal(10,2), tags array<string>, at timestamp"
SELECT = '[transforms.sql]\nquery = "SELECT *, cast(name AS binary) AS raw FROM input"\n'
DEADLINE_S = 60


def sink(database: Database, **more: Any) -> str:
    from whippet.pipelines.keys import toml_text  # noqa: PLC0415 -- it needs pyspark

    keys = {"connection_string": database.url, "target_table": "orders", "include_metadata": False, **more}
    return "\n".join(['[sink]\ntype = "postgres"', *(f"{key} = {toml_text(value)}" for key, value in keys.items())])


def reading(database: Database, **more: Any) -> str:
    from whippet.pipelines.keys import toml_text  # noqa: PLC0415

    keys = {"connection_string": database.url, "tables": ["orders"], **more}
    return "\n".join(
        ['[source]\ntype = "postgres"', *(f"{key} = {toml_text(value)}" for key, value in keys.items()), ""]
    )


def into(lake: Lake) -> tuple[str, str]:
    stream, _ = lake.topic().split("/")
    return f'[sink]\ntype = "topic"\nstream = "{stream}"\ntopic = "rows"\ncreate_topic = 1\n', f"{stream}/rows"


# -------------------------------------------------------------------------------------------------------------- sink


def test_every_row_is_written_exactly_once_after_any_crash(
    job: Job, lake: Lake, source: Source, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines.sinks import postgres  # noqa: PLC0415

    database.run(ORDERS)
    topic = lake.topic(partitions=2)
    for partition in (0, 1):
        ids = range(partition, 40, 2)
        lake.send(topic, [f'{{"id":{n},"name":"n{n}","amount":"{n}.50"}}' for n in ids], partition)
    text = source(topic, FIELDS, batch_length=15) + SELECT + sink(database)

    def ends_before_the_rows_count(*_: object) -> None:
        raise RuntimeError("the process ended here")

    with monkeypatch.context() as patched:
        patched.setattr(postgres.PostgresSink, "_move", ends_before_the_rows_count)
        with pytest.raises(RuntimeError, match="the process ended here"):
            job(text)
    assert database.rows("select count(*) from orders") == [(0,)], "half a batch is never seen"
    job(text)
    job.crash()
    job(text)
    lake.send(topic, ['{"id":40,"name":"n40","amount":"40.50"}'])
    job(text)
    assert database.rows("select id, name, amount, convert_from(raw, 'UTF8') from orders order by id") == [
        (n, f"n{n}", Decimal(f"{n}.50"), f"n{n}") for n in range(41)
    ]
    left = database.rows("select relname from pg_class where relname like 'whippet%' and relkind = 'r'")
    assert left == [("whippet_markers",)]


def test_rows_lost_in_a_crash_of_the_server_are_written_again(
    job: Job, lake: Lake, source: Source, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines.sinks import postgres  # noqa: PLC0415

    database.run(ORDERS)
    topic = lake.topic(partitions=2)
    for partition in (0, 1):
        lake.send(topic, [f'{{"id":{n}}}' for n in range(partition, 40, 2)], partition)
    move, crashes = postgres.PostgresSink._move, list[int]()

    def after_a_crash(*given: Any) -> None:
        if not crashes:
            crashes.append(1)
            database.crash()
        move(*given)

    monkeypatch.setattr(postgres.PostgresSink, "_move", after_a_crash)
    job(source(topic, FIELDS) + sink(database, retry_delay="100 ms", max_retries=8))
    assert crashes, "what was copied is in a table that is not logged"
    assert database.rows("select count(*), count(distinct id) from orders") == [(40, 40)]


def test_values_of_every_type_arrive_unchanged(job: Job, lake: Lake, source: Source, database: Database) -> None:
    values = (
        "true, 1Y, 2, 3L, 1.5F, 2.5D, 12345.67891BD, 'a \"quoted\", text\nüber', X'00FF', "
        "TIMESTAMP '2026-01-02 03:04:05.123456Z', named_struct('x', 1, 'y', 'é'), array(1, 2), DATE '2026-01-02'"
    )
    names = "abcdefghijklm"
    pairs = ", ".join(f"({value}) AS {name}" for name, value in zip(names, _split(values), strict=True))
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":""}', '{"id":2}'])
    statement = f"SELECT *, {pairs} FROM input"
    query = f"[transforms.sql]\nquery = '''{statement}'''\n"
    job(source(topic) + query + sink(database, auto_create_table=True, include_metadata=True))
    found = database.rows(f"select id, name, {', '.join(names)}, iggy_offset from orders order by id")
    assert [(row[0], row[1], row[-1]) for row in found] == [(1, "", 0), (2, None, 1)]
    assert found[0][2:-1] == (
        True,
        1,
        2,
        3,
        1.5,
        2.5,
        Decimal("12345.67891"),
        'a "quoted", text\nüber',
        b"\x00\xff",
        datetime(2026, 1, 2, 3, 4, 5, 123456, UTC),
        {"x": 1, "y": "é"},
        [1, 2],
        date(2026, 1, 2),
    )


def _split(values: str) -> list[str]:
    """Splits at commas outside quotes and brackets."""
    found, depth, quoted, start = [], 0, False, 0
    for place, sign in enumerate(values):
        quoted ^= sign == "'"
        depth += (sign == "(") - (sign == ")") if not quoted else 0
        if sign == "," and not quoted and not depth:
            found.append(values[start:place].strip())
            start = place + 1
    return [*found, values[start:].strip()]


def test_a_record_can_be_written_as_one_json_column(job: Job, lake: Lake, source: Source, database: Database) -> None:
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":"x"}'])
    job(source(topic) + sink(database, auto_create_table=True, payload_format="json", include_metadata=True))
    columns = "payload, iggy_stream || '/' || iggy_topic, iggy_partition_id, iggy_offset, length(iggy_id)"
    assert database.rows(f"select {columns} from orders") == [({"id": 1, "name": "x"}, topic, 0, 0, 32)]


def test_database_errors_are_one_sentence_without_the_password(
    job: Job, lake: Lake, source: Source, database: Database
) -> None:
    from whippet.pipelines.errors import FileError, SinkError  # noqa: PLC0415

    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":"a"}', '{"id":1,"name":"b"}'])
    with pytest.raises(
        FileError, match=r"\(postgres\): table 'orders' does not exist; create it, or set auto_create_table"
    ):
        job(source(topic) + sink(database))
    database.run("create table orders (id bigint primary key)")
    with pytest.raises(FileError, match=r"table orders has no column 'name': add it, or drop the field"):
        job(source(topic) + sink(database))
    database.run("alter table orders add name text")
    wrong = Database(database.port)
    wrong.url = database.url.replace(PASSWORD, "not-the-password")
    with pytest.raises(SinkError, match="password authentication failed") as error:
        job(source(topic) + sink(wrong, max_retries=0))
    assert "not-the-password" not in str(error.value)


STRICT = """
    create table countries (code text primary key); insert into countries values ('de');
    create function no_thirteen() returns trigger language plpgsql as
      $$ begin if new.id = 13 then raise exception 'no thirteen'; end if; return new; end $$;
    create table orders (
      id bigint not null unique, name varchar(5), amount numeric(4,2) check (amount > 0), at timestamptz,
      country text references countries deferrable initially deferred);
    create trigger lucky before insert on orders for each row execute function no_thirteen();
"""
STRICT_FIELDS = "id bigint, name string, amount decimal(10,2), country string"
REFUSED = {
    '{"id":10,"name":"a\\u0000b"}': 'invalid byte sequence for encoding "UTF8": 0x00',
    '{"id":11,"name":"longer"}': 'value too long for type character varying(5) (column name: "longer")',
    '{"id":12,"amount":100.00}': "numeric field overflow (A field with precision 4, scale 2 must round to an absolute",
    '{"id":13}': "no thirteen",
    '{"name":"none"}': 'null value in column "id" of relation "orders" violates not-null constraint',
    '{"id":3,"name":"again"}': 'duplicate key value violates unique constraint "orders_id_key" (Key (id)=(3) already',
    '{"id":14,"amount":-1.00}': 'new row for relation "orders" violates check constraint "orders_amount_check"',
    '{"id":15,"country":"xx"}': 'insert or update on table "orders" violates foreign key constraint',
}


WITH_METADATA = """
    alter table orders add iggy_id text, add iggy_stream text, add iggy_topic text, add iggy_partition_id int,
      add iggy_offset bigint, add iggy_timestamp timestamptz, add iggy_origin_timestamp timestamptz,
      add iggy_headers jsonb;
"""


def letters_to(lake: Lake) -> tuple[str, str]:
    stream, _ = lake.topic().split("/")
    return f'\n[dead_letter]\nstream = "{stream}"\ntopic = "bad"\n', f"{stream}/bad"


def orders_with_refused_ones() -> list[str]:
    values = [f'{{"id":{n},"name":"n{n}","amount":"{n}.50","country":"de"}}' for n in range(9)]
    for place, value in enumerate(REFUSED):
        # Spread among the others, but the second row with an id comes after the first.
        values.insert(2 * place + 1 if place < 3 else len(values), value)
    return values


@pytest.mark.parametrize("crash", mostly_long(CRASHES, usual={"before the commit"}))
def test_rows_that_the_database_refuses_become_dead_letters_once_and_the_others_are_written(
    crash: str, job: Job, lake: Lake, source: Source, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(STRICT + WITH_METADATA)
    topic, values = lake.topic(), orders_with_refused_ones()
    lake.send(topic, values)
    dead, bad = letters_to(lake)
    text = source(topic, STRICT_FIELDS) + sink(database, include_metadata=True) + dead
    run_up_to(crash, job, text, monkeypatch)
    there = 0 if crash == "before the commit" else 9
    assert database.rows("select count(*) from orders") == [(there,)]
    ran = job(text)
    assert database.rows("select id, name, amount, country, iggy_offset from orders order by id") == [
        (n, f"n{n}", Decimal(f"{n}.50"), "de", offset)
        for n, offset in enumerate(place for place, value in enumerate(values) if value not in REFUSED)
    ]
    found = letters(lake, bad)
    assert sorted(payload for payload, _ in found) == sorted(REFUSED)
    for payload, headers in found:
        assert headers["reason"].startswith(REFUSED[payload])
        assert (headers["step"], headers["offset"]) == ("[sink] (postgres)", str(values.index(payload)))
    assert ran.done.bad_records == len(REFUSED)
    left = database.rows("select relname from pg_class where relname like 'whippet%' and relkind = 'r'")
    assert left == [("whippet_markers",)]


def test_a_refused_row_that_is_accepted_on_the_replay_is_no_dead_letter(
    job: Job, lake: Lake, source: Source, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whippet.pipelines.bad_records import BadRecords  # noqa: PLC0415
    from whippet.pipelines.refused_rows import RefusedRows  # noqa: PLC0415

    database.run("create table orders (id bigint, name varchar(2))")
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":"a"}', '{"id":2,"name":"long"}'])
    dead, bad = letters_to(lake)
    text = source(topic) + sink(database) + dead
    keep = RefusedRows.record
    for place, end in ((RefusedRows, lambda *given: ends(keep(*given))), (BadRecords, ends)):
        with monkeypatch.context() as patched:
            patched.setattr(place, "record" if place is RefusedRows else "send_dead_letters", end)
            with pytest.raises(RuntimeError, match="the process ended here"):
                job(text)
        database.run("alter table orders alter name type text")
    assert job(text).done.bad_records == 0
    assert database.rows("select id, name from orders order by id") == [(1, "a"), (2, "long")]
    assert letters(lake, bad) == []


def test_a_bad_row_does_not_affect_good_ones_even_if_they_refer_to_each_other(
    job: Job, lake: Lake, source: Source, database: Database
) -> None:
    database.run(
        'create table orders (id bigint primary key, parent bigint references orders, "100% of" varchar(4));'
        "create index on orders (parent)"
    )
    topic = lake.topic()
    # Each row but the last refers to the next one, and row 30 to a missing one.
    rows = [f'{{"id":{n},"parent":{n + 1},"100% of":"n{n}"}}' for n in range(20)] + ['{"id":20}']
    rows.insert(7, '{"id":40,"100% of":"longer"}')
    rows.insert(3, '{"id":30,"parent":31}')
    lake.send(topic, rows)
    dead, bad = letters_to(lake)
    job(source(topic, "id bigint, parent bigint, `100% of` string") + sink(database) + dead)
    assert database.rows('select id, parent, "100% of" from orders order by id') == [
        *((n, n + 1, f"n{n}") for n in range(20)),
        (20, None, None),
    ]
    assert sorted(headers["offset"] for _, headers in letters(lake, bad)) == ["3", "8"]


def test_without_dead_letters_a_row_that_the_database_refuses_stops_the_pipeline(
    job: Job, lake: Lake, source: Source, database: Database
) -> None:
    from whippet.pipelines.errors import BadRecordError  # noqa: PLC0415

    database.run("create table orders (id bigint primary key, name text, payload jsonb)")
    topic = lake.topic()
    lake.send(topic, ['{"id":1,"name":"a"}', '{"id":2,"name":"b"}', '{"id":1,"name":"c"}'])
    whole = sink(database, include_metadata=True, payload_format="json", auto_create_table=True, target_table="whole")
    where = rf"{topic} partition 0 offset 2: \[sink\] \(postgres\)"
    twice = r"duplicate key value violates unique constraint \"orders_pkey\" \(Key \(id\)=\(1\) already exists\.\)"
    way_out = r'add a \[dead_letter\] topic, or set on_error = "skip"'
    with pytest.raises(BadRecordError, match=f"^{where}: {twice}; {way_out}$"):
        job(source(topic) + sink(database))
    assert database.rows("select count(*) from orders") == [(0,)]
    ran = job('on_error = "skip"\n' + source(topic) + sink(database))
    assert database.rows("select id, name from orders order by id") == [(1, "a"), (2, "b")]
    assert (ran.done.bad_records, ran.done.rows) == (1, 3)
    (job.folder / "state").rename(job.folder / "old-state")
    lake.send(topic, ['{"id":3,"name":"a\\u0000b"}'])
    with pytest.raises(BadRecordError, match=r"offset 3: .* unsupported Unicode escape sequence"):
        job(source(topic) + whole)


# ------------------------------------------------------------------------------------------------------------- source


def test_rows_are_read_once_in_the_order_of_their_ids_across_crashes_and_restarts(
    job: Job, lake: Lake, database: Database
) -> None:
    database.run(ORDERS)
    database.run("insert into orders select n, 'n' || n, n + 0.25 from generate_series(1, 50) n")
    table, copy = into(lake)
    text = reading(database, batch_size=20) + table
    job(text)
    job.crash()
    job(text)
    database.run(
        "insert into orders select n from generate_series(51, 55) n; insert into orders values (null, 'never')"
    )
    job(text)
    found = [json.loads(value) for value in lake.values(copy)[0]]
    assert [row["id"] for row in found] == list(range(1, 56))
    assert found[49] == {"id": 50, "name": "n50", "amount": 50.25}
    job(text.replace("batch_size = 20", "initial_offset = 9\nbatch_size = 20"))
    assert len(lake.values(copy)[0]) == 55


def test_columns_of_every_type_are_read(job: Job, lake: Lake, database: Database) -> None:
    database.run(
        """
        create table orders (
          id serial, a boolean, b smallint, c real, d double precision, e numeric(12,3), f numeric, g text,
          h varchar(9),
          i bytea, j timestamptz, k timestamp, l date, m jsonb, n uuid, o int[], "odd name" text);
        insert into orders values
          (1, true, 2, 1.5, 2.5, 12.345, 1e40, 'a "q", ü
line', '', '\\x00ff', '2026-01-02 03:04:05.123456+02', '2026-01-02 03:04:05', '2026-01-02', '{"x": 1}',
           '3f333df6-90a4-4fda-8dd3-9485d27cee36', '{1,2}', 'odd');
        insert into orders values (2);
        """
    )
    table, copy = into(lake)
    job(reading(database) + table)
    rows = [json.loads(value) for value in lake.values(copy)[0]]
    assert rows == [
        {
            "id": 1,
            "a": True,
            "b": 2,
            "c": 1.5,
            "d": 2.5,
            "e": 12.345,
            "f": "1" + "0" * 40,
            "g": 'a "q", ü\nline',
            "h": "",
            "i": "AP8=",
            "j": "2026-01-02T01:04:05.123456Z",
            "k": "2026-01-02T03:04:05.000",
            "l": "2026-01-02",
            "m": '{"x": 1}',
            "n": "3f333df6-90a4-4fda-8dd3-9485d27cee36",
            "o": "{1,2}",
            "odd name": "odd",
        },
        {"id": 2},
    ]


@pytest.mark.parametrize("read_from", ["orders", "some_orders"])
def test_a_row_that_is_committed_late_is_not_skipped(database: Database, read_from: str) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415

    from whippet.pipelines.sources.postgres_reader import PostgresReader  # noqa: PLC0415

    database.run("create table orders (id serial, name text) partition by range (id)")
    database.run("create table orders_1 partition of orders for values from (0) to (1000)")
    database.run("create view some_orders as select * from orders where name <> 'no'")
    options = {"password": database.url, "table": read_from, "tracking": "id", "initial": "", "most": "10"}
    reader = PostgresReader({**options, "retries": "0", "delay": "0"}, None)  # type: ignore[arg-type]
    late, ends = database.connect(), queue.Queue[Any]()
    late.autocommit = False
    late.execute("insert into orders (name) values ('late')")
    database.run("insert into orders (name) values ('early')")
    asking = threading.Thread(target=lambda: ends.put(reader.latestOffset({"through": None}, ReadAllAvailable())))
    asking.start()
    with late:
        waiting = "select count(*) from pg_stat_activity where query like '%pg_locks%' and pid <> pg_backend_pid()"
        while not database.rows(waiting)[0][0]:
            assert ends.empty(), "it waits for open transactions"
    asking.join(DEADLINE_S)
    assert ends.get_nowait() == {"through": "2"}
    assert database.rows("select name from orders where id <= 2 order by id") == [("late",), ("early",)]


def test_a_long_transaction_delays_a_batch_but_does_not_block_the_pipeline(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415

    from whippet.pipelines.sources import postgres_reader  # noqa: PLC0415

    monkeypatch.setattr(postgres_reader, "WAIT_S", 0.1)
    database.run("create table orders (id serial, name text); insert into orders (name) values ('a')")
    options = {"password": database.url, "table": "orders", "tracking": "id", "initial": "", "most": "10"}
    reader = postgres_reader.PostgresReader({**options, "retries": "0", "delay": "0"}, None)  # type: ignore[arg-type]
    with database.connect() as slow, slow.transaction():
        slow.execute("insert into orders (name) values ('slow')")
        assert reader.latestOffset({"through": None}, ReadAllAvailable()) == {"through": None}
    assert reader.latestOffset({"through": None}, ReadAllAvailable()) == {"through": "2"}


def test_an_invalid_source_is_refused_before_it_starts(job: Job, lake: Lake, database: Database) -> None:
    from whippet.pipelines.errors import FileError  # noqa: PLC0415

    table, _ = into(lake)
    with pytest.raises(FileError, match=r"\[source\]: table 'orders' does not exist"):
        job(reading(database) + table)
    database.run("create table orders (number int)")
    with pytest.raises(
        FileError, match=r"\[source\]: key 'tracking_column': there is no column 'id'; the columns are: number"
    ):
        job(reading(database) + table)


def test_the_password_appears_in_no_plan_and_no_progress_report(
    spark: Any, lake: Lake, database: Database, job: Job
) -> None:
    from whippet.pipelines import pipeline_file  # noqa: PLC0415

    database.run(ORDERS)
    table, _ = into(lake)
    pipeline = pipeline_file.read(job.file(reading(database) + table))
    frame = pipeline.source.frame(spark, pipeline.iggy)
    shown = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().analyzed().treeString()
    assert PASSWORD not in shown
