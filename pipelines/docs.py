"""docs/pipelines.md, made of the keys: python -m whippet.pipelines.docs > docs/pipelines.md. A test holds the page on
disk to it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from whippet.pipelines.bad_records import DeadLetter
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import Key, keys
from whippet.pipelines.pipeline_file import State, TopLevel
from whippet.pipelines.sinks import SINKS
from whippet.pipelines.sources import SOURCES
from whippet.pipelines.transforms import TRANSFORMS

INTRODUCTION = """\
# Pipelines

<!-- Made by `make docs` from the keys in `pipelines/`; edit them, not this page. -->

A pipeline is a TOML file: a source, transforms, and one sink or several. `whippet pipeline run` runs it on Spark
until Ctrl-C or SIGTERM, which finish the batch in hand; with `--once` it does what is there and ends. `whippet
pipeline check` says what it would do, asks source and sinks whether they are there and take what comes, and has Spark
look at the transforms; it changes nothing. `--offline` leaves the asking out. Both exit with 2 for what has to be
changed in the file or on this machine, and with 1 for what went wrong on the way; errors are one line, and `--trace`
shows where in the code.

It takes `make pipelines` in a clone, or the wheel with its extra `pipelines` ([install.md](install.md)), and Java 17
or newer. With the extra `spark` alone, the sinks `delta`, `iceberg` and `postgres`, and the source `postgres`, need the
extra of the same name as well.

```toml
key = "errors"                      # its name, in its state and in what it writes

[source]
type = "topic"
stream = "shop"
topics = ["logs"]
fields = "at timestamp, level string, text string, host struct<name: string, zone: string>"

[[transforms]]
type = "sql"
query = "SELECT * FROM input WHERE level = 'error'"

[[transforms]]
type = "flatten"                    # host_name, host_zone

[sink]
type = "postgres"
connection_string = "postgresql://writer:${PGPASSWORD}@db/shop"
target_table = "errors"
auto_create_table = true

[dead_letter]                       # where messages go that cannot be used
stream = "shop"
topic = "refused"
```

Names and keys are those of Iggy's connectors where they have them. A key that does not exist is an error that names
the nearest one. `${NAME}` in a text is the environment variable, and `$${` is a `${`; wherever a file is shown, it is
shown as it was written. Durations are texts such as `"500 ms"`, `"10 s"`, `"5 minutes"` or `"7 days"`. Paths that do
not begin with a `/` are looked for from the folder in which `whippet` is started, and so is the state.

**A batch comes again** if the process ends before Spark has noted that it is done. Each sink says below what happens
then. What they go by is in the state of the pipeline (`[state]`): whoever deletes it begins anew, and writes
everything again. Two processes cannot run one pipeline at a time.

**Bad records** are those that cannot be parsed, on which a transform fails, or that a sink refuses for what they are:
documents that Elasticsearch or Quickwit do not take; rows that PostgreSQL does not, for a NUL in a text, a number that
is too large for its column, a constraint or a trigger; rows with a null where a Delta or Iceberg table must not have
one, or that fail a check of a Delta table; empty payloads for a topic. The others of their batch go in. What a sink has
refused is the record as JSON.
Without `[dead_letter]` the first one stops the pipeline (before anything of its batch is written, unless Elasticsearch
or Quickwit refuse it, or another sink has the batch already), or with `on_error = "skip"` they are counted and left
out. A transform that fails on more than 100 records of a batch stops the pipeline in any case. Where windows or other
transforms put records together, a transform that fails stops it, too.

**Transforms** are a list, in the order in which they happen; as in the connectors, `[transforms.<type>]` can be
written where each type is there once. Fields have types, so a field that a record does not have is null, and null
fields are left out where records become JSON. `sql`, `window` and `deduplicate` may put records together; the
pipeline then keeps state, and what comes out is decided by the watermark: with `--once` the newest windows stay in
the state until later records come. There is one watermark in a pipeline: where two transforms have `time_field` and
`watermark`, they have the same.

**Tables that are there** are not changed by a pipeline whose fields change. Columns of a Delta or Iceberg table for
which there is no field any more become null; a field that has no column, or not its type, is refused before anything is
written.

**Spark** is started on this machine, with all cores and 1 GiB for Java. `[spark]` has settings of it, `driver.memory
= "2g"` for `spark.driver.memory`, and `master = "spark://..."` for a cluster; what it says itself is in `spark.log`
in the state. With `--remote sc://host:15002`, or `SPARK_REMOTE` in the environment, a pipeline runs on a Spark Connect
server, and needs no Java here (the extra `connect`); [deploy/spark](../deploy/spark/README.md) says how
that server has to be started. State, and the folders of sources and sinks, have to be where it sees them.
"""

TABLES: tuple[tuple[str, type[Any]], ...] = (
    ("The file", TopLevel),
    ("`[iggy]`", GatewaySettings),
    ("`[state]`", State),
    ("`[dead_letter]`", DeadLetter),
)
PARTS = (
    ("Sources", "`[source]` with `type`:", SOURCES),
    ("Transforms", "`[[transforms]]` with `type`:", TRANSFORMS),
    ("Sinks", "`[sink]`, or several of `[[sinks]]`, with `type`:", SINKS),
)


def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    for title, table in TABLES:
        yield from _table(f"## {title}", table)
    for title, how, types in PARTS:
        yield f"## {title}\n\n{how}\n"
        for name, table in types.items():
            yield from _table(f"### {name}", table)


def _table(title: str, table: type[Any]) -> Iterator[str]:
    yield f"{title}\n"
    yield " ".join((table.__doc__ or "").split()) + "\n"
    promise = getattr(table, "DELIVERY", None)
    if promise is not None:
        yield f"A batch that comes again: {promise}.\n"
    yield "| key | default | what it is | meaning |\n| --- | --- | --- | --- |"
    yield from _rows("", table)
    yield ""


def _rows(prefix: str, table: type[Any]) -> Iterator[str]:
    for name, key in keys(table).items():
        if key.kind.table is not None and not key.kind.is_list and key.shown_default == "":
            yield from _rows(f"{prefix}{name}.", key.kind.table)
            continue
        yield _row(f"{prefix}{name}", key, is_required=_is_required(table, name))
        if key.kind.table is not None:
            yield from _rows(f"{prefix}{name}{'[]' if key.kind.is_list else ''}.", key.kind.table)


def _row(name: str, key: Key, *, is_required: bool) -> str:
    default = "**required**" if is_required else _default(key)
    needs = key.kind.needs.partition(" such as")[0].removesuffix(",")
    return f"| `{name}` | {default} | {needs} | {key.meaning.replace('|', chr(92) + '|')} |"


def _default(key: Key) -> str:
    shown = key.shown_default
    if shown is None:
        return ""
    return f"`{shown}`" if shown[:1] in '"[0123456789' or shown in ("true", "false") else shown


def _is_required(table: type[Any], name: str) -> bool:
    return next(field.default is dataclasses.MISSING for field in dataclasses.fields(table) if field.name == name)


if __name__ == "__main__":
    sys.stdout.write(page())
