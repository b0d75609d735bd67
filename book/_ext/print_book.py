"""The whole book as one PDF, as a browser prints its pages: ``python print_book.py SITE PDF [PAGE…]``.

Pages come in the order of the contents, with an outline; a link to another page leads to that page's place in the file.
"""

from __future__ import annotations

import functools
import http.server
import io
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urldefrag

import yaml

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Everything that waits to be asked for: folded code and solutions, pictures further down, mathematics.
OPEN = """async () => {
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  document.querySelectorAll("button.toggle-button[data-button='show'], .toggle-hidden button.toggle-button")
    .forEach((one) => one.click());
  const pictures = [...document.images];
  pictures.forEach((one) => (one.loading = "eager"));
  await Promise.all(pictures.map((one) => one.decode().catch(() => null)));
  await window.MathJax?.startup?.promise.then(() => MathJax.startup.document.lazyTypesetAll());
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def served(site: Path, handler=Quiet):
    """The address at which the folder can be read, on this machine only."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def contents() -> list[str]:
    """Return the pages of the table of contents, in its order."""

    def pages(entry: dict):
        if "glob" in entry:
            yield from sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob(f"{entry['glob']}.md"))
        if name := entry.get("root") or entry.get("file"):
            yield name
        for inner in (*entry.get("parts", ()), *entry.get("chapters", ()), *entry.get("sections", ())):
            yield from pages(inner)

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [f"{name}.html" for name in pages(toc)]


@contextmanager
def chromium(*flags: str):
    """The browser of this machine, without a window."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not executable:
        raise SystemExit("no Chromium found, which shows the pages: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", *flags])
        yield browser
        browser.close()


def print_pages(address: str, pages: list[str]):
    """Title and PDF of each page."""
    with chromium() as browser:
        tab = browser.new_page(color_scheme="light")
        tab.emulate_media(media="print")
        for page in pages:
            tab.goto(address + page, wait_until="load")
            tab.evaluate(OPEN)
            title = tab.locator("h1").first.evaluate("h => h.firstChild.parentNode.innerText.replace(/#$/, '').trim()")
            footer = f'<div style="font-size:8px;width:100%;text-align:center">{title} · <span class="pageNumber"></span></div>'
            yield (
                title,
                tab.pdf(
                    format="A4",
                    print_background=True,
                    display_header_footer=True,
                    header_template="<span></span>",
                    footer_template=footer,
                    margin=dict.fromkeys(("top", "bottom", "left", "right"), "16mm"),
                ),
            )


def bind(address: str, printed, target: Path) -> int:
    """Write the pages into one file, lead their links to each other, and return the number of sheets."""
    from pypdf import PdfReader, PdfWriter
    from pypdf.generic import ArrayObject, NameObject, NullObject

    book, starts = PdfWriter(), {}
    for page, (title, data) in printed:
        starts[address + page] = len(book.pages)
        book.append(PdfReader(io.BytesIO(data)), outline_item=title)
    for sheet in book.pages:
        for mark in sheet.get("/Annots", ()):
            action = mark.get_object().get("/A")
            uri = urldefrag(str(action.get("/URI", "")))[0].partition("?")[0] if action else ""
            if uri.startswith(address):  # a picture's link to its file leads nowhere from paper: to where it stands
                place = book.pages[starts[uri]].indirect_reference if uri in starts else sheet.indirect_reference
                action[NameObject("/S")] = NameObject("/GoTo")
                action[NameObject("/D")] = ArrayObject([place, NameObject("/XYZ"), NullObject(), NullObject(), NullObject()])
                del action["/URI"]
    with target.open("wb") as file:
        book.write(file)
    return len(book.pages)


def main(site: str, target: str, *some: str) -> None:
    pages = list(some) or contents()
    if missing := [page for page in pages if not Path(site, page).is_file()]:
        raise SystemExit(f"not in {site}: {', '.join(missing)} (make site builds it)")
    with served(Path(site)) as address:
        sheets = bind(address, zip(pages, print_pages(address, pages)), Path(target))
    print(f"{target}: {sheets} sheets")


if __name__ == "__main__":
    main(*sys.argv[1:])
