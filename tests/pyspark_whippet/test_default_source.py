"""The class that Spark discovers before the data source is used."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark.sql.datasource import DataSource

import pyspark_whippet
from pyspark_whippet.source import WhippetSource


def test_spark_discovers_a_data_source_called_whippet() -> None:
    found = pyspark_whippet.DefaultSource
    assert issubclass(found, DataSource)
    assert found.name() == WhippetSource.name() == "whippet"
    assert isinstance(found({"subscribe": "s/t"}), WhippetSource)


def test_a_data_source_that_cannot_be_imported_is_still_discovered_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_whippet.source", None)
    found = pyspark_whippet.DefaultSource
    assert found.name() == "whippet"
    said = r"'whippet' cannot be loaded by \S+: .*pyspark_whippet\.source.*; the extra 'spark' of whippet-gateway"
    with pytest.raises(ImportError, match=said):
        found({"subscribe": "s/t"})


def test_a_pyspark_that_is_too_old_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark  # noqa: PLC0415

    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    said = r"PySpark 4\.2 or newer is needed, and \S+ has 4\.1\.2: pip install 'pyspark>=4\.2'"
    with pytest.raises(ImportError, match=f"'whippet' cannot be loaded by \\S+: {said}"):
        pyspark_whippet.DefaultSource({"subscribe": "s/t"})
    with pytest.raises(ImportError, match=f"^{said}$"):
        pyspark_whippet.register(None)  # type: ignore[arg-type]


def test_other_attributes_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="OtherSource"):
        pyspark_whippet.OtherSource  # noqa: B018 -- what it raises is what is tested
