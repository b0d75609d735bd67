"""What makes the pages good to read, to link to and to run again.

- pictures load and formulas are set when they come near, and both keep their place until then;
- a comma or full stop stays on the line of the formula before it;
- every theorem, exercise, claim and picture of a cell has a permalink, as headings and equations have by themselves;
- a chapter can be downloaded as ``.py``, and as a notebook in plain Markdown (``mvnb_download``);
- where ``pyproject.toml`` names the address of the repository, chapters have launch buttons and a box with the commands that
  run them again; where the site has an address of its own (``MVNB_SITE``), it has a sitemap and absolute previews.
"""

from __future__ import annotations

import os
import re
import shutil
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes

from mvnb.runner.hosts import repository as repository_address

CHAPTER = re.compile(r"notebooks/(\d\d)_")
PICTURE = re.compile(r'<img alt="([^"]*)" src="([^"]*)" style="width: (\d+)px; height: (\d+)px;" />')
STATEMENT = re.compile(
    r'(<div class="(?:proof|exercise) ?[\w ]*admonition" id="([^"]+)">\s*<p class="admonition-title">)(.*?)</p>', re.DOTALL
)
CLAIM = re.compile(r'(<tr id="(claim-[^"]+)"><th scope="row">)(.*?)</th>')
END_OF_WORD = re.compile(r"[^\s\w(]+|\w{1,2}\b")
INLINE = re.compile(r'(<span class="math notranslate nohighlight")>(\\\(.*?\\\))', re.DOTALL)
DISPLAY = re.compile(r'(<div class="(?:amsmath )?math notranslate nohighlight"(?: id="[^"]+")?)>(.*?</div>)', re.DOTALL)
ARRANGES = re.compile(r"\\(?:math\w+|text\w*|tilde|hat|bar|big[lr]?|left|right|operatorname|boldsymbol|sqrt|frac)\b|&\w+;")
OUTPUT = re.compile(r'<div class="cell_output docutils container">\s*(?:<[^>]*>\s*)*?<img [^>]*>')


def keep_ends_of_words(app, doctree, docname):
    """Inline formulas are boxes, and a line may break beside any box: not before a mark of punctuation or a *th*, please."""
    for formula in list(doctree.findall(nodes.math)):
        parent = formula.parent
        place = parent.index(formula)
        after = parent[place + 1] if place + 1 < len(parent) else None
        if isinstance(after, nodes.Text) and (end := END_OF_WORD.match(after)):
            together = nodes.inline(classes=["formula-and-end"])
            parent[place : place + 2] = [together, nodes.Text(after[end.end() :])]
            together += [formula, nodes.Text(end[0])]


def permalink(target: str, what: str) -> str:
    return f'<a class="headerlink" href="#{target}" title="Link to this {what}">#</a>'


def dress(app, pagename, templatename, context, doctree):
    """The page's HTML with permalinks, and pictures that wait for their turn."""
    if not (body := context.get("body")):
        return
    body = STATEMENT.sub(lambda m: f"{m[1]}{m[3]}{permalink(m[2], 'statement') if m[2] != 'proof' else ''}</p>", body)
    body = CLAIM.sub(lambda m: f"{m[1]}{m[3]}{permalink(m[2], 'claim')}</th>", body)
    if CHAPTER.match(pagename):
        body = number_pictures(body)
    body = INLINE.sub(lambda m: f'{m[1]} style="--width: {width(m[2]):.1f}em">{m[2]}', body)
    body = DISPLAY.sub(lambda m: f'{m[1]} style="--height: {height(m[2]):.1f}em">{m[2]}', body)
    body = PICTURE.sub(
        r'<img alt="\1" src="\2" width="\3" height="\4" style="--width: \3px" loading="lazy" decoding="async" />', body
    )
    context["body"] = body


def width(tex: str) -> float:
    """Return about how wide an inline formula is, in em: its signs without commands that only arrange them."""
    signs = re.findall(r"\\[A-Za-z]+|[^\s{}\\^_()$,.&;]", ARRANGES.sub("", tex))
    return 0.5 + 0.58 * len(signs)


def height(tex: str) -> float:
    """Return about how high a displayed formula is, in em."""
    return 1.2 + sum(2.4 if re.search(r"frac|sum|int|prod|max|min|begin", row) else 1.4 for row in tex.split(r"\\"))


def number_pictures(body: str) -> str:
    """Pictures of cells, which have no captions, get the identifiers picture-1, picture-2 and so on."""
    count = 0

    def anchor(match):
        nonlocal count
        count += 1
        name = f"picture-{count}"
        return f'<div class="picture" id="{name}">{permalink(name, "picture")}</div>{match[0]}'

    return OUTPUT.sub(anchor, body)


# -- running again -------------------------------------------------------------------------------------------------


def know_the_repository(app, config):
    """Options of the theme that only make sense with an address."""
    repository, site = repository_address(Path(app.srcdir)), os.environ.get("MVNB_SITE", "").rstrip("/")
    for name, address in (("repository in pyproject.toml", repository), ("MVNB_SITE", site)):
        if address and not (urlsplit(address).scheme in ("http", "https") and urlsplit(address).netloc):
            raise ValueError(f"{name} must be a web address such as https://example.org/name, got {address!r}")
    if repository:
        config.html_theme_options |= {
            "repository_url": repository,
            "repository_branch": os.environ.get("MVNB_BRANCH", "main"),
            "use_repository_button": True,
            "use_issues_button": True,
            "launch_buttons": {
                "binderhub_url": "https://mybinder.org",
                "colab_url": "https://colab.research.google.com",
                "notebook_interface": "jupyterlab",
            },
        }
    config.mvnb_repository = repository
    if site:
        config.html_baseurl = config.ogp_site_url = site + "/"
        config.sitemap_url_scheme, config.sitemap_show_lastmod = "{link}", False
        config.notfound_urls_prefix = urlsplit(site).path + "/"


def offer_runs(app, pagename, templatename, context, doctree):
    """A box below a chapter with the commands that run it again, and its source among the downloads."""
    if not (match := CHAPTER.match(pagename)):
        return
    for group in context.get("header_buttons", []):
        if group.get("label") == "download-buttons":
            source = context["pathto"](f"_sources/{pagename}.py", 1)
            button = {"type": "link", "url": source, "text": ".py", "icon": "fas fa-code"}
            group["buttons"].insert(1, button | {"tooltip": "Download source as a script"})
    if repository := app.config.mvnb_repository:
        folder = repository.rpartition("/")[2].removesuffix(".git")
        commands = f"git clone {repository} && cd {folder} && make .venv/.ready\n.venv/bin/mvnb run {match[1]} -p seed=1"
        context["body"] += (
            '<aside class="run-again" aria-label="Run this chapter again"><p><strong>Run this chapter again</strong>, with a '
            f'parameter of your choice:</p><div class="highlight"><pre>{escape(commands)}</pre></div></aside>'
        )


def copy_sources(app, exc):
    if exc is None and app.builder.format == "html":
        for docname in app.env.found_docs:
            if CHAPTER.match(docname):
                target = Path(app.outdir, "_sources", f"{docname}.py")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(app.srcdir, f"{docname}.py"), target)


# Tells the style sheet that placeholders have replaced the source of formulas, or that there is no MathJax to do so.
READY = """addEventListener("DOMContentLoaded", async () => {
  await window.MathJax?.startup?.promise;
  document.documentElement.classList.add("mathematics");
});"""


def setup(app):
    app.add_js_file(None, body=READY)
    app.add_config_value("mvnb_repository", "", "html", str)
    if os.environ.get("MVNB_SITE"):
        app.setup_extension("sphinx_sitemap")  # which warns when there is no address
    app.connect("config-inited", know_the_repository, priority=100)
    app.connect("doctree-resolved", keep_ends_of_words)
    app.connect("html-page-context", dress, priority=900)
    app.connect("html-page-context", offer_runs, priority=901)
    app.connect("build-finished", copy_sources)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
