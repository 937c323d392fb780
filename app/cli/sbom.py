"""Generates the software bill of materials of a release, in the format CycloneDX, from the locked dependencies.

`make release` writes it next to the wheel. It is the same for the same locks, so that two builds can be compared.
"""

from __future__ import annotations

import re
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec

from whippet.app.version import version

NAME = "whippet-gateway"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)([^\n]*?)\\?\n((?:    --hash=sha256:[0-9a-f]{64}[^\n]*\n)+)", re.M)
HASH = re.compile(r"sha256:([0-9a-f]{64})")


def bill(lock: str, whippet_version: str) -> dict[str, Any]:
    """`lock` is the text of a file in `requirements`."""
    components = [
        {
            "type": "library",
            "bom-ref": purl(name, pinned),
            "name": name,
            "version": pinned,
            "purl": purl(name, pinned),
            # Of the files that may be installed: one for each platform, and the sources.
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{pinned}/",
                    "hashes": [{"alg": "SHA-256", "content": each} for each in sorted(HASH.findall(hashes))],
                }
            ],
        }
        for name, pinned, _, hashes in PIN.findall(lock)
    ]
    itself = purl(NAME, whippet_version)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, itself + lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": NAME,
                "version": whippet_version,
                "purl": itself,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": itself, "dependsOn": [each["bom-ref"] for each in components]}],
    }


def purl(name: str, pinned: str) -> str:
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{pinned}"


if __name__ == "__main__":
    made = bill(Path("requirements/server.txt").read_text(), version())
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n")
