"""The page `docs/configuration.md`, made from the list of keys; a test holds the page on disk to it."""

from __future__ import annotations

from whippet.app.config.aliases import ALIASES
from whippet.app.config.iggy_only import RULES
from whippet.app.config.keys import KEYS, Key, section_of, variable
from whippet.app.config.render import literal, tables

INTRODUCTION = """\
# Configuration

<!-- Made by `whippet config --docs` (`make docs`); edit the docstrings in app/config, not this page. -->

A setting is taken from the first of these that has it:

1. an environment variable: `IGGY_` and the key in capitals, with `_` for the dots (empty ones are ignored);
2. the same variable in the file `.env`: the one that `IGGY_ENV_PATH` names, else the nearest in the working directory
   or above it;
3. the configuration file: the one that `IGGY_CONFIG_PATH` names (a relative path is looked for in the working
   directory, then in each folder above it), else `server.toml`, else `config.toml` in the working directory;
4. the default.

The file needs only the keys that it changes; `deploy/server.toml` has all of them with their defaults. `whippet config`
prints what is in effect and where each value comes from.

What cannot be right stops the start with one line that says where it was found and what would be valid: a key that does
not exist, a value of the wrong kind, values that contradict each other, a variable whose name is nearly that of a key.
Other unknown `IGGY_` variables are only warned of, because they may belong to another program. Not keys, but read:
`IGGY_ROOT_USERNAME` and `IGGY_ROOT_PASSWORD` (the root user of a new data folder), `IGGY_DISPLAY_CONFIG` (print the
configuration at the start), `RUST_LOG` (overrides `system.logging.level`) and `IGGY_PATH` (another name of
`IGGY_SYSTEM_PATH`; both together must agree).

A key below a name with `[]` belongs to a list of tables: `[[http.jwt.trusted_issuers]]` in the file, and variables with
the number of the table, from 0 to 9, in place of the `0` shown here.

## How values are written

| kind | in the file | in a variable |
| --- | --- | --- |
| switch | `true`, `false` | the same |
| number | `1024` | the same |
| text | `"local_data"` | without quotes |
| list of texts | `["a", "b"]` | `[a,b]` |
| address | `"127.0.0.1:8090"`, `"[::1]:8090"`; port 0 takes any free one | the same, without quotes |
| size | `"512 MiB"` (of 1024), `"100 KB"` (of 1000), `1024` (bytes); `"unlimited"`, `"none"`: 0 | the same |
| duration | `"30 s"`, `"1m 30s"`, `"7 days"`; `0`, `"none"`, `"unlimited"`, `"disabled"`: 0 | the same |
| expiry | a duration above 0; `"none"`, `"unlimited"`, `"never_expire"`: never | the same |
| topic size | a size, or `"unlimited"` | the same |
| cores | `"all"`, `"4"`, `"0..4"` (4 is not in it), `"numa:auto"`, `"numa:nodes=0,1;cores=4;no_ht=true"` | the same |

Durations are written with `ns`, `us`, `ms`, `s`, `m`, `h`, `days`, `weeks`, `months` and `years`. What may be left
unset is unset by an empty text in the file. Secrets are shown as `******` wherever the configuration is printed.
"""

ALIASES_INTRODUCTION = """\
## Older and other spellings

Each of these means the key beside it, in files and in variables. Where both are given in the same place, the key counts
and a warning says so.

| spelling | key |
| --- | --- |
"""

IGGY_ONLY_INTRODUCTION = """\
## Keys of Iggy without an effect

Files and variables for Iggy may have these. The log names those that are set once, at the start; a value other than the
accepted ones is refused, because what it asks for would not happen.

| key | accepted | reason |
| --- | --- | --- |
"""


def page() -> str:
    sections = [INTRODUCTION]
    for table, keys in tables(KEYS.values()):
        sections.append(
            f"## {table}\n\n{' '.join((section_of(table).__doc__ or '').split())}\n\n"
            "| key | default | variable | meaning |\n| --- | --- | --- | --- |\n" + "".join(map(_row, keys))
        )
    sections.append(ALIASES_INTRODUCTION + "".join(f"| `{old}` | `{key}` |\n" for old, key in ALIASES.items()))
    rows = (f"| `{key}` | {_accepted(key)} | {rule.reason} |\n" for key, rule in RULES.items())
    sections.append(IGGY_ONLY_INTRODUCTION + "".join(rows))
    return "\n".join(sections)


def _accepted(key: str) -> str:
    accepted = RULES[key].accepted
    if accepted is None:
        return "any"
    return ", ".join(f"`{literal(value)}`" for value in accepted) or "none"


def _row(key: Key) -> str:
    written = key.format.write(key.value)
    default = f"`{literal(written)}`" if written != "" else "empty"
    return f"| `{key.name_in_table}` | {default} | `{variable(key.name)}` | {key.description} |\n"
