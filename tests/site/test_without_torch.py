"""The site in the environment of `make site`: packages of the other locks are as if they were not installed."""

import subprocess
import sys
from importlib import metadata

import pytest
from checkout import copy_to
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from site_checks import ROOT

LINES = (ROOT / "requirements-site.lock").read_text(encoding="utf-8").splitlines()
SITE = {canonicalize_name(Requirement(line.strip(" \\")).name) for line in LINES if "==" in line}
MISSING = [
    module
    for module, packages in metadata.packages_distributions().items()
    if module != "mvnb" and not SITE & set(map(canonicalize_name, packages))
]


def call(code, book=ROOT):
    """Run code in a process that can import the extensions of a book and what its site needs."""
    paths = [str(book / "src"), str(book / "book" / "_ext")]
    start = f"import sys; sys.path[:0] = {paths}; sys.modules.update(dict.fromkeys({MISSING}))\n"
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, cwd=book)


def test_extensions_and_what_they_read_need_no_package_of_other_locks():
    assert "torch" in MISSING and "numpy" not in MISSING
    code = """
import importlib
from pathlib import Path
import yaml
for name in yaml.safe_load(Path("_config.yml").read_text(encoding="utf-8"))["sphinx"]["local_extensions"]:
    importlib.import_module(name)
from mvnb_chapters import chapters, ledger
print(*(bool(chapter.title and ledger(chapter)) for chapter in chapters(Path.cwd()).values()))
"""
    done = call(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * len(list((ROOT / "notebooks").glob("*.py")))


def test_index_of_modules_without_their_pages():
    code = """
from types import SimpleNamespace
import mvnb_api
from sphinx_external_toc.parsing import parse_toc_yaml
print(mvnb_api.entry("models"))
contents = parse_toc_yaml("_toc.yml")
mvnb_api.leave_out_pages(None, SimpleNamespace(external_site_map=contents))
print(*(name for name in contents if name.startswith("book/api")), contents["book/api"].subtrees)
"""
    done = call(code)
    assert done.returncode == 0, done.stderr
    entry, left = done.stdout.splitlines()
    assert entry.startswith("- [`mvnb.models`]{#api-models}: ") and left == "book/api []"


@pytest.mark.weekly
def test_strict_site_has_one_page_on_the_package(tmp_path):
    book = copy_to(tmp_path)
    code = 'from jupyter_book.cli.main import main; main(["build", ".", "--all", "-W", "-n", "--keep-going"])'
    done = call(code, book)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    pages = book / "_build" / "html" / "book"
    assert "make book" in (pages / "api.html").read_text(encoding="utf-8").partition("<article")[2]
    assert not (pages / "api").exists() and not (pages.parent / "_modules").exists()
