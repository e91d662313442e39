"""The documentation site: built strictly, whole by itself, found by searching, readable on a phone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from anchorhead.lab.reproduce import reproduce

ROOT = Path(__file__).parents[1]
RESOURCE = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|data)=["']?([^"'\s>]+)"""
)
LINKED = re.compile(r"<link\b[^>]*>")
ANCHOR = re.compile(r"""<a\b[^>]*?\shref=["']?([^"'\s>]+)""")
PHONE, DESKTOP = 390, 1280

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with a report of one experiment. A failure shows what mkdocs warned of."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    reproduce(folder / "report", quick=True, only=["maps"])
    environment = {
        **os.environ,
        "REPORT": str(folder / "report"),
        "EXPLORE": str(folder / "explore.html"),
        "NO_MKDOCS_2_WARNING": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for arguments in (
        ["anchorhead", "explore", "-o", folder / "explore.html"],
        ["mkdocs", "build", "-d", folder / "built"],
    ):
        command = [sys.executable, "-m", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "built"


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_of_the_documentation_is_there(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README", "index")
        assert (site / name).exists(), name
    for name in (
        "index",
        "changelog",
        "contributing",
        "security",
        "report/report",
        "explore/explore",
        "notebooks/index",
    ):
        assert (site / f"{name}.html").exists(), name
    assert "Markdown" not in (site / "reference" / "compiling.html").read_text(encoding="utf-8")[:200]


def test_nothing_is_asked_of_the_outside(site: Path) -> None:
    """Links may lead out; scripts, styles, fonts, pictures and frames are here."""
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        found = RESOURCE.findall(text)
        found += [href for tag in LINKED.findall(text) for href in re.findall(r"href=[\"']?([^\"'\s>]+)", tag)]
        assert not [place for place in found if re.match(r"(?:https?:)?//", place)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        for link in {*ANCHOR.findall(text), *RESOURCE.findall(text)}:
            target, section = urldefrag(unquote(link))
            if re.match(r"\w+:", link) or not (target or section):
                continue
            where = (page.parent / target).resolve() if target else page
            assert where.is_file(), f"{page.relative_to(site)} links to {link}"
            if section and where.suffix == ".html" and not section.startswith("__"):
                names = re.findall(r"""\b(?:id|name)=["']?([^"'\s>]+)""", where.read_text(encoding="utf-8"))
                assert section in names, f"{page.relative_to(site)} links to {link}"


def opened(browser: Any, page: Path, width: int) -> None:
    screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())


def test_pages_fit_a_phone_and_ask_for_files_only(site: Path, browser: Any) -> None:
    """Wide tables and code scroll by themselves; the page does not."""
    for page in pages(site):
        opened(browser, page, PHONE)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE, page.name
        asked = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert not [address for address in asked if not address.startswith(("file:", "data:", "blob:"))], page.name
        said = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert not said, f"{page.name}: {said}"


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_search_works_without_a_server(site: Path, browser: Any, width: int) -> None:
    opened(browser, site / "index.html", width)
    browser.execute_script("""
        document.querySelector("[data-md-toggle=search]").click();
        const query = document.querySelector(".md-search__input");
        query.focus();
        query.value = "recertify";
        query.dispatchEvent(new Event("input", { bubbles: true }));
        query.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
    """)
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(link => link.getAttribute('href'))"
    links = WebDriverWait(browser, 30).until(lambda page: page.execute_script(found))
    assert any("reference/conversion.html" in link for link in links), links
