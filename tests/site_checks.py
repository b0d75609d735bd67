"""The site as a reader meets it, for the tests that look at it: built strictly from the committed notebooks, and Chromium."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from print_book import chromium, contents, served

ROOT = Path(__file__).resolve().parents[1]
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# All formulas, which are otherwise set when they come near.
TYPESET = "() => window.MathJax?.startup?.promise.then(() => MathJax.startup.document.lazyTypesetAll())"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def check_picture(path: Path, shown: str, screenshot) -> None:
    """Check that a picture was taken of what is ``shown`` now; with ``MVNB_DRAW=1``, take it by calling ``screenshot``."""
    digest = hashlib.sha256(shown.encode()).hexdigest()
    if os.environ.get("MVNB_DRAW"):
        info = PngInfo()
        info.add_text("shown", digest)
        picture = Image.open(io.BytesIO(screenshot())).convert("RGB")
        picture.quantize(64, dither=Image.Dither.NONE).save(path, pnginfo=info, optimize=True)
    assert Image.open(path).text.get("shown") == digest, f"{path} is not current; run: MVNB_DRAW=1 pytest tests/site -k picture"


@dataclass
class Page(HTMLParser):
    """What the crawl needs of one HTML file."""

    path: Path
    ids: set = field(default_factory=set)
    links: list = field(default_factory=list)
    assets: list = field(default_factory=list)
    images: list = field(default_factory=list)
    headings: list = field(default_factory=list)  # levels, in the article only
    scripts: str = ""  # written into the page
    redirect: bool = False
    inside: int = 0
    scripting: bool = False

    def __post_init__(self):
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(given[key] for key in ("id", "name") if given.get(key))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in ("script", "img", "iframe", "source", "video", "audio", "object", "embed"):
            self.assets.extend(given[key] for key in ("src", "data") if given.get(key))
        elif tag == "link" and given.get("rel") not in ("canonical", "author"):
            self.assets.append(given["href"])
        if tag == "img":
            self.images.append(given)
        if tag == "article":
            self.inside += 1
        if self.inside and re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "meta" and (given.get("http-equiv") or "").lower() == "refresh":
            self.redirect = True
            self.links.append(given["content"].split("url=")[1])

        self.scripting = tag == "script"

    def handle_endtag(self, tag):
        self.inside -= tag == "article"
        self.scripting = False

    def handle_data(self, data):
        self.scripts += data if self.scripting else ""


@dataclass
class Site:
    folder: Path
    log: str
    status: int
    url: str = ""

    @functools.cached_property
    def pages(self) -> dict[str, Page]:
        """Every HTML page, by its address within the site."""
        files = sorted(p for p in self.folder.rglob("*.html") if "_static" not in p.parts)
        return {p.relative_to(self.folder).as_posix(): Page(p) for p in files}

    @property
    def written(self) -> list[str]:
        """The pages of the table of contents."""
        return contents()

    @property
    def chapters(self) -> list[str]:
        return [page for page in self.written if page.startswith("notebooks/")]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ROOT, "--path-output", out]
    done = subprocess.run(
        [*map(str, command), "--all", "-W", "-n", "--keep-going"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    built = Site(out / "_build" / "html", done.stdout, done.returncode)
    assert built.folder.is_dir(), done.stdout[-4000:]

    with served(built.folder) as built.url:
        yield built


@pytest.fixture(scope="module")
def browser():
    """Chromium; closed after a file's tests, since while it is open no notebook can run in this process (one event loop)."""
    with chromium(*FLAGS) as opened:
        yield opened


@contextmanager
def fresh_tab(browser, **options):
    """A tab of its own context that notes everything that goes wrong, and the hosts it asked."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.trouble, page.hosts = [], set()
    page.on("console", lambda m: page.trouble.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.trouble.append(f"script: {error}"))

    # A request is aborted when the page is left before it is answered, which is no fault of the page.
    def aborted(request):
        return request.failure == "net::ERR_ABORTED"

    page.on("requestfailed", lambda r: None if aborted(r) else page.trouble.append(f"failed: {r.url}"))
    page.on("response", lambda r: page.trouble.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
    page.on("request", lambda r: page.hosts.add(urlsplit(r.url).hostname) if r.url.startswith("http") else None)
    yield page
    context.close()


def leave_mathematics(tab):
    """Load no MathJax, which takes seconds a page, where mathematics is no part of what is looked at."""
    tab.route("**/mathjax/**", lambda route: route.abort("aborted"))


@pytest.fixture
def tab(browser, request):
    """A fresh tab that leaves mathematics as it is written; indirect parameter: options of the browser context."""
    with fresh_tab(browser, **getattr(request, "param", {})) as page:
        leave_mathematics(page)
        yield page


def visit(tab, site, page):
    """Open a page and wait for its mathematics, if it is loaded, and until nothing was asked for half a second."""
    tab.goto(site.url + page, wait_until="load")
    tab.evaluate(TYPESET)
    tab.wait_for_load_state("networkidle")
