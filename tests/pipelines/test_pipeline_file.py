"""Pipeline files: what they may contain, and one sentence for each mistake. No Spark is started."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_whippet.settings import Secret
from whippet.pipelines.sinks.postgres import PostgresSink
from whippet.pipelines.sinks.stdout import StdoutSink
from whippet.pipelines.sources.topic import TopicSource

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark import cloudpickle

from whippet.pipelines import check_report, keys, pipeline_file
from whippet.pipelines.errors import FileError
from whippet.pipelines.secrets import mask
from whippet.pipelines.sinks import SINKS
from whippet.pipelines.sources import SOURCES

SOURCE = '[source]\ntype = "topic"\nstream = "shop"\ntopics = ["orders"]\nfields = "id bigint"\n'
SINK = '[sink]\ntype = "stdout"\n'
WHOLE = f'key = "job"\n{SOURCE}{SINK}'
POSTGRES = '[sink]\ntype = "postgres"\ntarget_table = "orders"\n'

MISTAKES = [
    ("key = ", "it is not TOML: .*"),
    (SOURCE + SINK, "the file: key 'key' is required: name of the pipeline"),
    (f'key = "a b"\n{SOURCE}{SINK}', "the file: key 'key': \"a b\": a name of letters, digits, .* is needed"),
    (f'key = "job"\n{SINK}', r"table \[source\] is required"),
    (f'key = "job"\n{SOURCE}', r"table \[sink\] is required, or several \[\[sinks\]\]"),
    (f"{WHOLE}[sinks]\n", r"tables \[sink\] and \[\[sinks\]\]: use only one of them"),
    (f"{WHOLE}[transform]\n", r"'transform' is unknown; did you mean 'transforms'\?"),
    (WHOLE.replace('"topic"', '"topics"'), r"\[source\]: there is no type \"topics\"; did you mean 'topic'\?"),
    (WHOLE.replace('type = "topic"', ""), r"\[source\]: key 'type' is required: one of topic, files, postgres, random"),
    (WHOLE.replace("topics =", "topcs ="), r"\[source\]: key 'topcs' is unknown; did you mean 'topics'\?"),
    (WHOLE.replace('["orders"]', '"orders"'), r"\[source\]: key 'topics': \"orders\": a list of strings, .* is needed"),
    (WHOLE.replace('fields = "id bigint"', ""), r"\[source\]: key 'fields' is required with schema = \"json\""),
    (WHOLE.replace("fields =", 'schema = "raw"\nfields ='), r"\[source\]: key 'fields' is for json and avro"),
    (
        WHOLE.replace("fields =", 'schema = "jsn"\nfields ='),
        r"key 'schema': \"jsn\": did you mean 'json'\? One of json, ",
    ),
    (
        WHOLE.replace("fields =", "batch_length = 0\nfields ="),
        r"key 'batch_length': 0: an integer of at least 1 is needed",
    ),
    (
        WHOLE.replace("fields =", 'poll_interval = "5 parsecs"\nfields ='),
        r"key 'poll_interval': \"5 parsecs\": a duration such as '500 ms', .* is needed",
    ),
    (
        WHOLE.replace("fields =", 'consumer_group = "x"\nfields ='),
        r"key 'consumer_group' is not supported: a pipeline keeps its offsets in \[state\]",
    ),
    (
        f'{WHOLE}[transforms.add_fields]\nfields = [{{key = "a", value = {{}}}}]',
        r"\[\[transforms\]\] 1 \(add_fields\), fields 1, value: one of value.static and value.computed is needed",
    ),
    (
        f'{WHOLE}[[transforms]]\ntype = "window"\ntime_field = "at"\nsize = "1 m"\nslide = "2 m"\nwatermark = "1 m"\n'
        'aggregates = {n = "count(*)"}',
        r"\[\[transforms\]\] 1 \(window\): key 'slide': it must be more than 0 and at most 'size'",
    ),
    (
        f'{WHOLE}[[transforms]]\ntype = "filter_fields"\npatterns = [{{key_pattern = {{regex = "("}}}}]',
        r"\(filter_fields\), patterns 1: key 'key_pattern': .* it is not a regular expression",
    ),
    (
        f'{WHOLE}[[transforms]]\ntype = "filter_fields"\npatterns = [{{value_pattern = {{greater_then = 1}}}}]',
        r"key 'value_pattern': \{greater_then = 1\}: did you mean 'greater_than'\? one of ",
    ),
    (
        f'{WHOLE}[transforms.add_fields]\nfields = [{{key = "iggy_offset", value.static = 1}}]',
        "key 'key': .*'iggy_offset' is a metadata field; choose another name",
    ),
    (
        f'{WHOLE}[transforms.sql]\nquery = "SELECT 1 as `iggy_offset` FROM input"',
        "key 'query': 'iggy_offset' is a metadata field",
    ),
    (f'{WHOLE}on_error = "ignore"', r"\[sink\] \(stdout\): key 'on_error' is unknown"),
    (
        f'on_error = "skip"\n{WHOLE}[dead_letter]\nstream = "shop"\ntopic = "refused"',
        r"key 'on_error' has no effect with \[dead_letter\]",
    ),
    (f'{WHOLE}[iggy]\naddress = "a:b:c"', r"\[iggy\]: option 'url': .*"),
    (f'{WHOLE}[iggy]\nusername = "me"\ntoken = "t"', r"\[iggy\]: options 'token' and 'username'"),
    (f"{WHOLE}[iggy.tls]\nenable = true", r"\[iggy.tls\]: key 'enable' is unknown; did you mean 'enabled'\?"),
    (f'key = "job"\n{SOURCE}{POSTGRES}', r"\[sink\] \(postgres\): key 'connection_string' is required"),
    (
        f'key = "job"\n{SOURCE}{POSTGRES}connection_string = "${{NOT_SET}}"',
        r"key 'sink.connection_string': the environment variable NOT_SET of \$\{NOT_SET\} is not set",
    ),
    (
        f'key = "job"\n{SOURCE}[sink]\ntype = "quickwit"\nurl = "http://q:7280"\nindex = "orders"',
        "key 'index': the definition of an index is needed, in YAML",
    ),
    (
        f'key = "job"\n{SOURCE}[sink]\ntype = "elasticsearch"\nurl = "http://me:pw@e:9200"\nindex = "orders"',
        "key 'url': .*it must not contain credentials",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_sentence_that_says_where_it_is_and_what_would_be_right(text: str, sentence: str) -> None:
    with pytest.raises(FileError, match=sentence) as error:
        pipeline_file.read(text, environ={})
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere\.toml: No such file or directory"):
        pipeline_file.load(str(tmp_path / "nowhere.toml"))


def test_variables_are_filled_in_but_shown_as_written() -> None:
    url, iggy = 'connection_string = "postgresql://me:${PW}@db/shop"', '[iggy]\ntoken = "${T}"'
    text = f'key = "job"\n{SOURCE}{POSTGRES}{url}\n{iggy}'
    pipeline = pipeline_file.read(
        text.replace('"shop"', '"${S}$${x}"'), environ={"PW": "p%40ss", "T": "t0k3n", "S": "s1"}
    )
    source, sink = pipeline.source, pipeline.sinks[0]
    assert isinstance(source, TopicSource)
    assert source.stream == "s1${x}"
    assert isinstance(sink, PostgresSink)
    assert sink.connection_string.text == "postgresql://me:p%40ss@db/shop"
    shown = "\n".join(check_report.lines(pipeline, inspect=False))
    assert 'stream = "${S}$${x}"' in shown
    assert "connection_string = ******" in shown
    for secret in ("p%40ss", "p@ss", "t0k3n"):
        assert secret not in shown + repr(pipeline.sinks) + repr(pipeline.iggy)
        assert secret not in mask(f"it failed: {secret}!", pipeline.secrets)
    with pytest.raises(FileError, match=r"key 'batch_length': \"\$\{N\}\": an integer") as error:
        pipeline_file.read(WHOLE.replace("fields =", 'batch_length = "${N}"\nfields ='), environ={"N": "a-secret"})
    assert "a-secret" not in str(error.value)


def test_a_secret_that_is_a_word_masks_only_what_is_announced_as_a_secret() -> None:
    text = f'key = "job"\n{SOURCE}{POSTGRES}connection_string = "postgresql://orders:${{PW}}@db/shop"'
    hidden = pipeline_file.read(text, environ={"PW": "orders"}).secrets
    said = "topic shop/orders: orders cannot be read; key 'orders'"
    assert mask(said, hidden) == said
    for said in (
        'password "orders" is wrong',
        "password=orders",
        "of user:orders@db",
        "postgresql://orders:orders@db/shop",
    ):
        assert mask(said, hidden).count("******") >= 1
        assert ":orders@" not in mask(said, hidden)


def test_variables_in_all_keys_of_all_sources_and_sinks_are_plain_strings_that_can_be_pickled() -> None:
    environ = {"V": "value", "U": "http://host:1", "N": "a.b", "J": "json", "D": "5 s"}
    gateway = '[iggy]\nusername = "${V}"\npassword = "${V}"\n[state]\npath = "${V}"\n[spark]\nmaster = "${V}"\n'
    for text in _with_variables("source", SOURCES, SINK) + _with_variables("sink", SINKS, SOURCE):
        pipeline = pipeline_file.read(f'key = "${{N}}"\n{text}{gateway}', environ=environ)
        again = pickle.loads(cloudpickle.dumps(pipeline))  # type: ignore[no-untyped-call]
        assert again == pipeline
        parts = (
            pipeline.key,
            pipeline.iggy,
            str(pipeline.state),
            dict(pipeline.spark),
            pipeline.source,
            pipeline.sinks,
        )
        assert {type(each) for each in _strings_in(parts)} == {str}


FITTING = {
    ("files", "format"): '"${J}"',
    ("elasticsearch", "url"): '"${U}"',
    ("quickwit", "url"): '"${U}"',
    ("quickwit", "index"): '"index_id: ${V}"',
    ("postgres", "poll_interval"): '"${D}"',
    ("iceberg", "tables"): '["${N}"]',
    ("postgres", "initial_offset"): '"${V}"',
    ("elasticsearch", "index_mapping"): '{a = {"${V}" = ["${V}"]}}',
}
"""Values of keys to which not every string fits."""
WITHOUT = {("files", "delimiter")}


def _with_variables(place: str, tables: Mapping[str, type[Any]], other: str) -> list[str]:
    """A file for each type, in which every key that can be a string is one with a variable."""
    found = []
    for name, table in tables.items():
        lines = [f'type = "{name}"']
        for field, key in keys.keys(table).items():
            is_text = key.kind in (keys.STRING, keys.PATH, keys.SECRET, keys.IDENTIFIER)
            value = '"${V}"' if is_text else '["${V}"]' if key.kind is keys.STRINGS else None
            value = FITTING.get((name, field), value)
            if value is not None and (name, field) not in WITHOUT:
                lines.append(f"{field} = {value}")
        found.append("\n".join([f"[{place}]", *lines, other]))
    return found


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Secret):
        yield value.text
    elif isinstance(value, dict):
        yield from _strings_in([*value, *value.values()])
    elif dataclasses.is_dataclass(value):
        yield from _strings_in([getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _strings_in(each)


def test_the_state_is_a_folder() -> None:
    for path in ("s3a://bucket/state", "file:///state", "gs://b"):
        with pytest.raises(
            FileError, match=r"\[state\]: key 'path': a folder is needed, .* cannot be in object storage"
        ):
            pipeline_file.read(f'{WHOLE}[state]\npath = "{path}"')


def test_transforms_are_a_list_or_one_table_per_type_and_keep_their_order() -> None:
    as_tables = """
        [transforms.flatten]
        [transforms.delete_fields]
        fields = ["a"]
        [transforms.sql]
        enabled = false
        query = "SELECT 1"
    """
    as_list = '[[transforms]]\ntype = "flatten"\n[[transforms]]\ntype = "delete_fields"\nfields = ["a"]'
    found = [pipeline_file.read(f"{WHOLE}{text}").transforms for text in (as_tables, as_list)]
    assert found[0] == found[1]
    assert [each.TYPE for each in found[0]] == ["flatten", "delete_fields"]


def test_a_file_can_have_several_sinks_and_spark_settings() -> None:
    text = WHOLE.replace(SINK, '[[sinks]]\ntype = "stdout"\n[[sinks]]\ntype = "stdout"\nprint_payload = true\n')
    pipeline = pipeline_file.read(
        f'{text}[spark]\nmaster = "local[2]"\ndriver.memory = "2g"\nsql.shuffle.partitions = 4'
    )
    assert [isinstance(sink, StdoutSink) and sink.print_payload for sink in pipeline.sinks] == [False, True]
    assert pipeline.spark == {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
    }


def test_the_example_files_are_valid() -> None:
    folder = Path(__file__).parents[2] / "deploy" / "pipelines"
    for path in sorted(folder.glob("*.toml")):
        assert pipeline_file.load(str(path)).key == path.stem
