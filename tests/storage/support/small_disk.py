"""A small disk: a tmpfs, mounted for one test. Only root may mount, but everyone is root in a user namespace."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SIZE_BYTES = 1 << 20
INSIDE = "WHIPPET_TEST_IN_NAMESPACE"
ROOT = Path(__file__).parents[3]
HOW = "needs a small tmpfs: run as root (CAP_SYS_ADMIN), or allow user namespaces (sysctl user.max_user_namespaces, \
kernel.apparmor_restrict_unprivileged_userns=0)"


def on_a_small_disk(test: Callable[..., None], size_bytes: int = SIZE_BYTES) -> Callable[..., None]:
    """Mounts `tmp_path`/small for the test. If that is not allowed, runs the test in a namespace of its own."""

    @functools.wraps(test)
    def mounted(tmp_path: Path, request: pytest.FixtureRequest, **arguments: object) -> None:
        small = tmp_path / "small"
        small.mkdir()
        if succeeds("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "whippet-test", str(small)):
            try:
                test(tmp_path, request, **arguments)
            finally:
                succeeds("umount", "--lazy", str(small))
        elif INSIDE not in os.environ and succeeds("unshare", "-rm", "true"):
            # Inside, it is root by name, and pytest's folder for root may belong to another user.
            folder = f"--basetemp={tmp_path / 'inside'}"
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-m",
                "",
                "-p",
                "no:cacheprovider",
                folder,
                request.node.nodeid,
            ]
            child = subprocess.run(
                ["unshare", "-rm", *command],
                cwd=ROOT,
                env=os.environ | {INSIDE: "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert child.returncode == 0, child.stdout + child.stderr
            if "1 passed" not in child.stdout:
                pytest.skip(HOW)
        else:
            pytest.skip(HOW)

    return mounted


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def exhaust(small: Path, name: str = "filler") -> Path:
    """Uses every byte that is left."""
    path = small / name
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    os.write(handle, bytes(size))
                except OSError:
                    break
    finally:
        os.close(handle)
    return path
