"""The kinds of nodes in Spark's plans. Over Connect only the text of a plan is available."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

# Kinds of nodes. Row-wise nodes may be applied to each batch on its own.
ROW_WISE = frozenset(
    {"Project", "Filter", "Generate", "SubqueryAlias", "View", "LogicalRDD", "LocalRelation", "OneRowRelation"}
    | {"WithCTE", "CTERelationDef", "CTERelationRef", "EventTimeWatermark"}
)
MAKES_ROWS = frozenset({"Generate", "Expand"})
KEEPS_STATE = frozenset({"Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark"})
"""Nodes that combine rows and that a stream supports."""
SUBQUERY = "Subquery"
"""Stands for a subquery inside an expression."""
ROWS = "LocalRelation"
"""Rows that are part of the plan itself."""

# Below the root, each node follows a branch mark; other lines of a multi-line text do not.
_NODE = re.compile(r"^[ :]*[:+]- '?(\w+)")
_ROOT = re.compile(r"^'?(\w+)")
_SUBQUERY = re.compile(r"\b(?:scalar-subquery|exists|list|lateral-subquery)#\d+ \[")


def nodes(frame: DataFrame) -> set[str]:
    """Returns the kinds of nodes in the analysed plan."""
    if is_remote():
        return _nodes_of(_section(frame, "Analyzed"))
    plan = frame._jdf.queryExecution().analyzed()
    found = {SUBQUERY} if plan.subqueriesAll().size() else set()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        found.add(node.nodeName())
        children = node.children()
        waiting += [children.apply(place) for place in range(children.size())]
    return found


def is_computed(frame: DataFrame) -> bool:
    """Whether planning alone has computed the rows, so that no job is needed."""
    if is_remote():
        return _section(frame, "Optimized").startswith(ROWS)
    return bool(frame._jdf.queryExecution().optimizedPlan().nodeName() == ROWS)


def _section(frame: Any, title: str) -> str:
    text: str = frame._explain_string(extended=True)
    section = text.partition(f"== {title} Logical Plan ==\n")[2].partition("\n\n== ")[0]
    # The analysed plan starts with a line of columns.
    return section.partition("\n")[2] if title == "Analyzed" else section


def _nodes_of(text: str) -> set[str]:
    root, *lines = text.split("\n")
    found = [_ROOT.match(root), *map(_NODE.match, lines)]
    subquery = {SUBQUERY} if _SUBQUERY.search(text) else set()
    return {match[1] for match in found if match} | subquery
