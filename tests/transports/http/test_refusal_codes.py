"""The names of errors that HTTP refuses by itself do not depend on the Python that serves them."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
import pytest

from whippet.transports.http.errors import Refused, refusal_response


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (413, "payload_too_large"), (422, "unprocessable_entity"), (429, "too_many_requests")],
)
def test_a_status_has_one_name_on_every_python(status: int, code: str) -> None:
    said = msgspec.json.decode(refusal_response(Refused(HTTPStatus(status), "because")).body)
    assert said["code"] == code
