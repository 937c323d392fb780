"""The sentences about fields in the OpenAPI document are the docstrings in the code."""

from __future__ import annotations

import msgspec

from whippet.transports.http import field_sentences
from whippet.transports.http.handlers.leases import LeaseDetails
from whippet.transports.http.handlers.users import UserDetails


def test_a_field_has_the_docstring_below_it() -> None:
    assert field_sentences.sentences(LeaseDetails)["expiry"] == "How long the lease lasts without being used, in us."
    assert "created_at" not in field_sentences.sentences(UserDetails)


def test_fields_without_one_get_their_unit_by_their_name() -> None:
    (_, schemas) = msgspec.json.schema_components([UserDetails])
    field_sentences.describe(schemas)
    assert schemas["UserDetails"]["properties"]["created_at"]["description"] == "In us since 1970."
    assert "description" not in schemas["UserDetails"]["properties"]["username"]
