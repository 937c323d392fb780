"""The folders of this repository, and the packages that they are installed as. Everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {
    "whippet": "whippet",
    "whippet.app": "app",
    "whippet.bench": "bench",
    "whippet.pipelines": "pipelines",
    "whippet.storage": "storage",
    "whippet.transports": "transports",
    "pyspark_whippet": "pyspark_whippet",
}

SHARED = ("certs/README.md", "deploy/**/*", "docs/**/*", "openapi/*", "CHANGELOG.md", "SECURITY.md")
"""What a server's operator needs besides the code: installed below `share/whippet` of the environment."""


def packages() -> list[str]:
    found = []
    for package, folder in FOLDERS.items():
        found += [package, *(f"{package}.{name}" for name in find_packages(folder))]
    return found


def shared() -> list[tuple[str, list[str]]]:
    files: dict[str, list[str]] = {}
    for pattern in SHARED:
        for path in sorted(Path().glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                files.setdefault(f"share/whippet/{path.parent}", []).append(str(path))
    # `man` finds it beside the folder of the program.
    files["share/man/man1"] = ["docs/man/whippet.1"]
    return list(files.items())


setup(packages=packages(), package_dir=FOLDERS, data_files=shared())
