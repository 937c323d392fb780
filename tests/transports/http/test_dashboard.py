"""The files of the dashboard over HTTP: their paths and headers, and the redirect of browsers."""

from __future__ import annotations

import fnmatch
import gzip
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from tests.transports.http.support.calling import calling, refusal
from tests.transports.websocket.support.talking import handshake, talking
from whippet.app import dashboard
from whippet.app.config import load
from whippet.app.config.listeners import Http, HttpCors

WITH = Http(web_ui=True)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
FOLDER = Path(dashboard.__file__).parent


async def test_every_file_is_served_with_security_headers_and_an_etag(tmp_path: Path) -> None:
    async with calling(tmp_path, WITH) as world:
        assert {"index.html", "whippet.js", "dashboard.css", "icon.svg"} <= dashboard.files().keys()
        for name, octets in dashboard.files().items():
            path = f"/ui/{name}"
            found = await world.stranger.ask("GET", path, accept_encoding="identity")
            assert (found.status_code, found.content) == (200, octets)
            assert found.headers["content-type"] == dashboard.media_of(name)
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["referrer-policy"] == "no-referrer"
            assert "no-cache" in found.headers["cache-control"]
            assert (await world.stranger.ask("HEAD", path)).headers["etag"] == found.headers["etag"]
            known = await world.stranger.ask("GET", path, if_none_match=found.headers["etag"])
            assert (known.status_code, known.content) == (304, b"")
            assert known.headers["etag"] == found.headers["etag"]
            other = await world.stranger.ask("GET", path, if_none_match='W/"another"')
            assert other.status_code == 200


async def test_the_policy_allows_the_same_origin_and_no_inline_scripts(tmp_path: Path) -> None:
    async with calling(tmp_path, WITH) as world:
        found = await world.stranger.ask("GET", "/ui")
        policy = dict(part.strip().partition(" ")[::2] for part in found.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[each] for each in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
        assert {policy[each] for each in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert policy["require-trusted-types-for"] == "'script'"
    page = (FOLDER / "index.html").read_text()
    assert re.findall(r"<script(.*?)>(.*?)</script>", page, re.S) == [(' type="module" src="/ui/page.js"', "")]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)


def test_nothing_is_fetched_from_other_hosts_and_no_data_becomes_markup() -> None:
    for name, octets in dashboard.files().items():
        text = octets.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|srcdoc", text), name


def test_every_module_that_the_scripts_import_exists() -> None:
    files = dashboard.files()
    for name, octets in files.items():
        for imported in re.findall(r'(?:from|src=|href=)\s*"/ui/([^"]*)"', octets.decode()):
            assert imported in files, f"{name}: {imported}"


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/orders/eu", "/ui?a=b"])
async def test_every_view_is_served_with_the_page(tmp_path: Path, path: str) -> None:
    async with calling(tmp_path, WITH) as world:
        found = await world.stranger.ask("GET", path)
        assert found.status_code == 200
        assert found.text.startswith("<!doctype html>")


@pytest.mark.parametrize("path", ["/ui/nothing.js", "/ui/%2e%2e/pyproject.toml", "/ui/__init__.py", "/uix"])
async def test_an_unknown_file_is_not_found(tmp_path: Path, path: str) -> None:
    async with calling(tmp_path, WITH) as world:
        assert await world.stranger.refused("GET", path) == (404, 404, None)


async def test_the_dashboard_is_served_for_get_and_head_only(tmp_path: Path) -> None:
    async with calling(tmp_path, WITH) as world:
        refused = await world.root.ask("POST", "/ui", {})
        assert refusal(refused) == (405, 405, None)
        assert refused.headers["allow"] == "GET, HEAD"


async def test_files_are_compressed_for_clients_that_accept_gzip(tmp_path: Path) -> None:
    async with calling(tmp_path, WITH) as world:
        async with world.client.stream("GET", "/ui/whippet.js", headers={"accept-encoding": "gzip"}) as found:
            assert found.headers["content-encoding"] == "gzip"
            assert found.headers["vary"] == "accept-encoding"
            packed = b"".join([part async for part in found.aiter_raw()])
        assert gzip.decompress(packed) == dashboard.files()["whippet.js"]


async def test_the_root_redirects_browsers_and_names_the_api_to_others(tmp_path: Path) -> None:
    async with calling(tmp_path, WITH) as world:
        for method in ("GET", "HEAD"):
            led = await world.stranger.ask(method, "/", accept=BROWSER)
            assert (led.status_code, led.headers["location"]) == (307, "/ui")
            assert led.headers["vary"] == "accept"
        for accept in ("*/*", "", "application/json", "text/html;q=0"):
            assert (await world.stranger.ask("GET", "/", accept=accept)).text == "Iggy API"


async def test_pages_of_other_origins_may_load_whippet_js(tmp_path: Path) -> None:
    for number, allowed in enumerate(((), ("https://page.example",))):
        config = msgspec.structs.replace(WITH, cors=HttpCors(allowed_origins=allowed))
        async with calling(tmp_path / f"{number}", config) as world:
            found = await world.stranger.ask("GET", "/ui/whippet.js", origin="https://page.example")
            assert found.headers.get("access-control-allow-origin") == next(iter(allowed), None)


async def test_the_dashboard_is_served_only_if_it_is_enabled(tmp_path: Path) -> None:
    async with calling(tmp_path, Http(web_ui=False)) as world:
        assert (await world.stranger.ask("GET", "/", accept=BROWSER)).text == "Iggy API"
        for path in ("/ui", "/ui/whippet.js"):
            assert await world.stranger.refused("GET", path) == (404, 404, None)


@pytest.mark.parametrize("path", ["/", "/ui", "/ws"])
async def test_the_dashboard_does_not_change_upgrades(tmp_path: Path, path: str) -> None:
    """Even if a browser requests one and accepts HTML."""

    async with talking(tmp_path, http=WITH) as world:
        link = await world.serves.link()
        answer = await link.ask(handshake(path, f"Accept: {BROWSER}"))
        assert answer.status == (404 if path == "/ui" else 101)


def test_an_installed_package_has_all_files() -> None:
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]
    for name in dashboard.files():
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns["whippet.app.dashboard"]), name


def test_without_websocket_a_warning_says_that_the_dashboard_cannot_work(tmp_path: Path) -> None:
    off = {"IGGY_HTTP_WEB_UI": "true", "IGGY_WEBSOCKET_ENABLED": "false"}
    assert "websocket.enabled" in load(off, str(tmp_path)).warnings[0]
    assert load({"IGGY_HTTP_WEB_UI": "true"}, str(tmp_path)).warnings == ()


def test_the_whole_page_is_small() -> None:
    packed = {name: len(gzip.compress(octets)) for name, octets in dashboard.files().items()}
    assert sum(packed.values()) < 150_000, packed
