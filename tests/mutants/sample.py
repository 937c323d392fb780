"""Checks whether the tests notice mistakes: makes small mistakes in the modules of a package, one at a time, and runs
the tests on each.

    make mutants PACKAGE=storage N=50 SEED=1

The tests of a package are those in the folder of the same name in `tests`, and those named in ELSEWHERE. One run
without a mutant records which functions each test enters. A mutant then gets only the tests that enter its function,
those of its own file and the quickest first. Everything happens in copies of the tree in a temporary folder. The
mutants that no test notices are printed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import os
import queue
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".mutants_cache"
EQUIVALENT = Path(__file__).parent / "equivalent.toml"

ELSEWHERE = {
    "app/access": (
        "tests/app/cli/test_root_password.py",
        "tests/app/commands/test_identity.py",
        "tests/app/commands/test_sessions.py",
        "tests/app/commands/test_personal_tokens.py",
        "tests/app/commands/test_users.py",
    ),
    "storage": ("tests/app/cli/test_check.py",),
}
"""Tests of a package outside the folder of the same name: those of commands that call little else."""

QUICK_S = 1
"""The longest processor time of a test that is used for mutants."""
TESTS_S = 40
"""The longest total processor time, without a mutant, of the tests for one mutant."""
HANGS_S = 40
"""A quick test that takes this long hangs: the mutant is noticed."""
MUTANT_S = 600
RECORD_S = 3600

MEMORY = Path("/dev/shm")
MEMORY_FREE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Test:
    id: str
    seconds: float
    functions: frozenset[str]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.sample", description=__doc__.partition("\n")[0])
    parser.add_argument("package", help="a folder or a file, such as storage or storage/batch.py")
    parser.add_argument("-n", type=int, default=50, help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="only those that survived the last time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (default: one for each processor)")
    options = parser.parse_args(arguments)
    target = Path(options.package)
    if not (ROOT / target).exists() or target.is_absolute():
        parser.error(f"there is no {options.package} in {ROOT}")
    chosen = sample(target, options.n, options.seed)
    last = CACHE / f"{options.package.strip('/').replace('/', '.')}.survivors.json"
    if options.again:
        survived = {tuple(entry) for entry in json.loads(last.read_text())}
        chosen = [mutant for mutant in found(target) if mutant.key in survived]
    if not chosen:
        parser.error(f"there is nothing to mutate in {options.package}")
    with tempfile.TemporaryDirectory(prefix="whippet-mutants-", dir=in_memory()) as folder:
        survivors = run(target, chosen, Path(folder), options.jobs)
    last.write_text(json.dumps([mutant.key for mutant in survivors]))
    for mutant in survivors:
        print(mutant)
    noticed = len(chosen) - len(survivors)
    print(f"{noticed} of {len(chosen)} mutants of {target} noticed: {noticed / len(chosen):.0%} (seed {options.seed})")


def in_memory() -> Path | None:
    """Returns a folder in memory if there is enough space: the tests create so many temporary files that removing
    them from a disk takes minutes."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_FREE_BYTES:
        return None
    return MEMORY


def sample(target: Path, count: int, seed: int) -> list[Mutant]:
    """Chooses mutants of a folder or a file, in the order of their lines. The same seed chooses the same mutants."""
    mutants = found(target)
    chosen = random.Random(seed).sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[i] for i in sorted(chosen)]


def found(target: Path) -> list[Mutant]:
    """Returns all mutants that tests can notice."""
    left_out = equivalent()
    mutants = [mutant for path in modules(target) for mutant in mutants_of((ROOT / path).read_text(), str(path))]
    return [mutant for mutant in mutants if not any(names(entry, mutant) for entry in left_out)]


def modules(target: Path) -> list[Path]:
    path = ROOT / target
    return sorted(each.relative_to(ROOT) for each in (path.rglob("*.py") if path.is_dir() else [path]))


def names(entry: dict[str, Any], mutant: Mutant) -> bool:
    """Whether an entry in the list of equivalent mutants refers to this one."""
    of_entry = entry["path"], entry["line"], entry["change"], entry.get("nth", mutant.nth)
    return of_entry == mutant.key


def equivalent() -> list[dict[str, Any]]:
    """Returns the mutants that no test can notice, each with the reason."""
    entries: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return entries


def run(target: Path, chosen: list[Mutant], folder: Path, jobs: int) -> list[Mutant]:
    """Returns the mutants that no test notices."""
    first = copy_tree(folder / "0")
    started = time.monotonic()
    tests = record(target, first)
    if not tests:
        sys.exit(f"no quick test of {target} passes")
    print(f"{len(tests)} quick tests; {time.monotonic() - started:.0f} s for what they enter", file=sys.stderr)
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
    trees.put(first)
    for i in range(1, jobs):
        trees.put(shutil.copytree(first, folder / str(i)))

    control = tests_for(chosen[0], tests)
    if not passes(first, control):
        sys.exit(f"without a mutant the tests fail as well:\n{end_of_output(first)}")

    def survives(mutant: Mutant) -> bool:
        tree = trees.get()
        try:
            with mutated(tree, mutant):
                survived = passes(tree, tests_for(mutant, tests))
        finally:
            trees.put(tree)
        print("survived" if survived else "noticed ", mutant, file=sys.stderr, flush=True)
        return survived

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        survived = list(pool.map(survives, chosen))
    return [mutant for mutant, alive in zip(chosen, survived, strict=True) if alive]


def copy_tree(folder: Path) -> Path:
    """Copies all files of the working tree that git does not ignore."""
    list_files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(list_files, cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    # The environment uses the folders of the working tree as packages; here those of the copy are used.
    with (folder / "whippet" / "__init__.py").open("a") as package:
        package.write("\n__path__.append(__file__.rpartition('/whippet/')[0])\n")
    return folder


# --------------------------------------------------------------------------------------------- which tests enter what


def record(target: Path, tree: Path) -> list[Test]:
    """Returns the quick tests of the package that pass, and the functions that they enter.

    The result for a test file is reused until the file or the code that it tests changes. Which of its tests are slow
    is reused until the file itself changes: these tests take most of the time.
    """
    package = target if (tree / target).is_dir() else target.parent
    folder = tree / "tests" / package
    files = sorted([*folder.rglob("test_*.py"), *(tree / name for name in ELSEWHERE.get(str(package), ()))])
    shared = _digest([*(path for path in folder.rglob("*.py") if path not in files), *(tree / package).rglob("*.py")])
    cache = CACHE / f"{'.'.join(package.parts)}.json"
    known: dict[str, dict[str, Any]] = json.loads(cache.read_text()) if cache.exists() else {}
    now: dict[str, dict[str, Any]] = {}
    for path in files:
        name, own = str(path.relative_to(tree)), _digest([path])
        before = known.get(name, {"own": None, "shared": None, "tests": []})
        slow = [test for test in before["tests"] if test["seconds"] > QUICK_S and before["own"] == own]
        if (before["own"], before["shared"]) == (own, shared):
            slow = before["tests"]
        now[name] = {"own": own, "shared": shared, "tests": slow}
    stale = [name for name, entry in now.items() if known.get(name) != entry]
    if stale:
        report = tree / "record.json"
        slow_tests = [f"--deselect={test['id']}" for name in stale for test in now[name]["tests"]]
        code = pytest(tree, stale, RECORD_S, *slow_tests, WHIPPET_MUTANTS_RECORD=str(report))
        if code not in (0, 1):
            sys.exit(f"the tests of {target} cannot be run: {_ending(code)}\n{end_of_output(tree)}")
        if code == 1:
            print(f"some tests of {target} fail:\n{end_of_output(tree)}", file=sys.stderr)
        for test in json.loads(report.read_text()):
            now[test["id"].partition("::")[0]]["tests"].append(test)
        CACHE.mkdir(exist_ok=True)
        cache.write_text(json.dumps(now))
    tests = [test for entry in now.values() for test in entry["tests"] if test["seconds"] <= QUICK_S]
    return [Test(test["id"], test["seconds"], frozenset(test["functions"])) for test in tests]


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in sorted(paths)), digest_size=16).hexdigest()


def tests_for(mutant: Mutant, tests: Sequence[Test]) -> list[Test]:
    """Returns the tests that enter the function of the mutant, those in its own file first and then the quickest. If
    there are none, or if the mutant is in no function, it returns those that enter the module or are in its own
    file; without any of those, all tests."""
    own = f"tests/{mutant.path.rpartition('/')[0]}/test_{mutant.path.rpartition('/')[2]}::"
    reaching = (
        [test for test in tests if f"{mutant.path}:{mutant.function_line}" in test.functions]
        or [
            test
            for test in tests
            if test.id.startswith(own) or any(name.startswith(f"{mutant.path}:") for name in test.functions)
        ]
        or list(tests)
    )
    seconds = 0.0
    chosen: list[Test] = []
    for test in sorted(reaching, key=lambda test: (not test.id.startswith(own), test.seconds)):
        seconds += test.seconds
        if seconds > TESTS_S and chosen:
            break
        chosen.append(test)
    return chosen


# ------------------------------------------------------------------------------------------------------------ running


@contextlib.contextmanager
def mutated(tree: Path, mutant: Mutant) -> Iterator[None]:
    path = tree / mutant.path
    source, before = path.read_text(), path.stat()
    path.write_text(mutant.applied_to(source))
    # Compiled code is identified by the time and size of its source, so every mutant gets its own time.
    second = next(_SECONDS)
    os.utime(path, (second, second))
    try:
        yield
    finally:
        path.write_text(source)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


_SECONDS = itertools.count(1)


def passes(tree: Path, tests: Sequence[Test]) -> bool:
    hanging = ("-o", f"faulthandler_timeout={HANGS_S}", "-o", "faulthandler_exit_on_timeout=true")
    return pytest(tree, [test.id for test in tests], MUTANT_S, "-x", *hanging) == 0


def pytest(tree: Path, tests: Sequence[str], timeout_s: float, *options: str, **environment: str) -> int | None:
    """Returns the exit code, or None if the tests do not end in time."""
    names, temporary = tree.with_suffix(".tests"), tree.with_suffix(".tmp")
    names.write_text("\n".join(tests))
    temporary.mkdir()
    output = _output_of(tree).open("wb")
    plugins = ("-p", "tests.mutants.plugin", "-p", "no:cacheprovider")
    brief = ("-q", "--tb=short", "--no-header")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *plugins, *brief, *options, f"--basetemp={temporary / 'pytest'}", f"@{names}"],
        cwd=tree,
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": str(tree),
            "PYTHONPYCACHEPREFIX": str(tree.with_suffix(".compiled")),
            "TMPDIR": str(temporary),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        ended = _has_ended(process.pid, timeout_s)
    finally:
        # The tests may have left processes. The process group keeps its number until someone has waited for its first
        # process.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.close()
        shutil.rmtree(temporary, ignore_errors=True)
    return process.returncode if ended else None


def end_of_output(tree: Path, lines: int = 60) -> str:
    """Returns the end of the output of the last tests in the tree, which names the failed tests and their errors."""
    return "\n".join(_output_of(tree).read_text(errors="replace").splitlines()[-lines:])


def _output_of(tree: Path) -> Path:
    return tree.with_suffix(".output")


def _ending(code: int | None) -> str:
    if code is None:
        return f"they did not end within {RECORD_S} s"
    return f"signal {-code}" if code < 0 else f"pytest ended with exit code {code}"


def _has_ended(pid: int, timeout_s: float) -> bool:
    """Waits for the end of a process without collecting its exit status."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
