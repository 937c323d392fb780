"""The bill of materials names every locked dependency of the server, with its hashes."""

from __future__ import annotations

import re
from pathlib import Path

from whippet.app.cli import sbom

LOCK = (Path(__file__).parents[3] / "requirements" / "server.txt").read_text()


def test_every_locked_dependency_is_in_the_bill_with_all_its_hashes() -> None:
    made = sbom.bill(LOCK, "1.2.3")
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK, re.MULTILINE)
    assert len(pins) > 30
    assert [(each["name"], each["version"]) for each in made["components"]] == pins
    hashes = [entry["content"] for each in made["components"] for entry in each["externalReferences"][0]["hashes"]]
    assert sorted(hashes) == sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", LOCK))
    references = [each["bom-ref"] for each in made["components"]]
    assert made["dependencies"] == [{"ref": "pkg:pypi/whippet-gateway@1.2.3", "dependsOn": references}]
    assert "pkg:pypi/typing-extensions@" in " ".join(references)


def test_the_same_locks_have_the_same_bill_and_others_another() -> None:
    assert sbom.bill(LOCK, "1.2.3") == sbom.bill(LOCK, "1.2.3")
    assert sbom.bill(LOCK, "1.2.3")["serialNumber"] != sbom.bill(LOCK, "1.2.4")["serialNumber"]
