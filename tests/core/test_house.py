"""The house: papers and the runner stand on the core, no paper on another; nothing in a circle; every public name is used."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
EXPLORERS = ROOT / "tests" / "site" / "test_explorers.py"  # what the pages' scripts are held to
USERS = [*(ROOT / "notebooks").glob("*.py"), *(ROOT / "book" / "_ext").glob("*.py"), EXPLORERS, *SOURCE.rglob("*.py")]
PAGES = [*(ROOT / "notebooks").glob("*.py"), *(ROOT / "book").glob("*.md")]
ROLE = re.compile(r"\{py:\w+\}`~?[\w.]*?(\w+)`")


def name_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCE.rglob("*.py")}


def imports(code, known=MODULES):
    """The modules of the package that code imports when it is run: not those that only a type checker reads."""
    found = set()
    nodes = [ast.parse(code)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & set(known)
            found |= submodules if len(submodules) == len(node.names) else submodules | {node.module}
    return found & set(known)


def room(module):
    """The paper, ``"runner"`` or ``"core"``; the list of all papers belongs to none."""
    parts = module.split(".")
    if parts[1:2] == ["papers"]:
        return ".".join(parts[1:3]) if len(parts) > 2 and not parts[2].startswith("_") else "papers"
    return "runner" if parts[1:2] in (["runner"], ["cli"]) else "core"


def allowed(importer, imported):
    here, there = room(importer), room(imported)
    return there == "core" or here == there or here == "papers"


def wrong_ways(sources):
    """Imports that run against the plan, of modules by name with their source."""
    return [(one, other) for one, code in sources.items() for other in imports(code, sources) if not allowed(one, other)]


def circle(sources):
    graph = {one: imports(code, sources) - {one} for one, code in sources.items()}
    list(TopologicalSorter(graph).static_order())


def sources():
    return {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}


def test_papers_and_runner_stand_on_the_core_and_no_paper_on_another():
    assert wrong_ways(sources()) == []


def test_no_module_imports_itself_by_way_of_others():
    circle(sources())


def test_a_chapter_imports_no_room_but_its_own():
    for path in (ROOT / "notebooks").glob("*.py"):
        rooms = {room(name) for name in imports(path.read_text(encoding="utf-8"))} - {"core"}
        assert rooms <= {f"papers.{path.stem[3:]}"}, (path.name, rooms)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("mvnb.probes", "mvnb.papers.gemfilter.theory"),
        ("mvnb.papers.gemfilter.theory", "mvnb.papers.nuclear_norm.theory"),
        ("mvnb.papers.gemfilter.theory", "mvnb.runner.catalogue"),
        ("mvnb.training.core", "mvnb.runner.plans"),
        ("mvnb.runner.plans", "mvnb.papers.gemfilter.plan"),
    ],
)
def test_an_import_against_the_plan_is_noticed(importer, imported):
    package, _, name = imported.rpartition(".")
    changed = sources()
    changed[importer] += f"\nfrom {package} import {name}\n"
    assert (importer, imported) in wrong_ways(changed)


def test_a_circle_is_noticed():
    changed = sources()
    changed["mvnb.stats"] += "\n\ndef late():\n    from mvnb import figures\n"
    with pytest.raises(ValueError, match="cycle"):
        circle(changed)


def silent_about_encoding(tree):
    """Calls that read or write text in whatever encoding the locale has."""
    for node in (one for one in ast.walk(tree) if isinstance(one, ast.Call)):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {one.arg: ast.unparse(one.value) for one in node.keywords}
        mode = ast.unparse(node.args[1]) if isinstance(node.func, ast.Name) and len(node.args) > 1 else given.get("mode", "")
        plain = isinstance(node.func, ast.Name) and name == "open" and "b" not in mode
        text = (
            {"text", "universal_newlines"} & given.keys() or plain or name in ("read_text", "write_text", "NamedTemporaryFile")
        )
        if text and "encoding" not in given and "b" not in mode:
            yield ast.unparse(node)


def test_text_is_read_and_written_as_utf_8():
    folders = ("src", "book/_ext", "benchmarks", "notebooks")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        assert not list(silent_about_encoding(ast.parse(path.read_text(encoding="utf-8")))), path
    bad = "open(p); open(p, 'w'); p.read_text(); p.write_text(t); subprocess.run(c, text=True)"
    assert len(list(silent_about_encoding(ast.parse(bad)))) == 5
    good = "open(p, 'rb'); p.read_text(encoding=e); Image.open(p); subprocess.run(c, encoding=e, text=True); p.read_bytes()"
    assert not list(silent_about_encoding(ast.parse(good)))


def names_used(tree, skip=None):
    """Identifiers of a syntax tree but for the node to be skipped, and what an ``__init__`` hands on."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if node is skip:
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def unused(trees):
    """Public functions, classes and constants of the package that no chapter, other definition, page or command names.

    A name counts as used wherever it is written, so one that means two things can hide; an import alone does not use it.
    """
    within = {path: set(names_used(tree)) for path, tree in trees.items()}
    linked = {name for path in PAGES for name in ROLE.findall(path.read_text(encoding="utf-8"))}
    for path in MODULES.values():
        for node in trees[path].body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            name = getattr(node, "name", None) or next((one.id for one in targets if isinstance(one, ast.Name)), "")
            commands = any("command" in ast.unparse(one) for one in getattr(node, "decorator_list", []))
            if not name or name.startswith("_") or commands or path.stem == "__init__" or path.parent.name == "kept":
                continue
            elsewhere = any(name in found for other, found in within.items() if other != path)
            if not elsewhere and name not in linked and name not in names_used(trees[path], skip=node):
                yield f"{name_of(path)}.{name}"


def test_every_public_name_is_used():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in USERS}
    found = set(unused(trees)) - {"mvnb.cli.main"}  # the console script
    assert found == set()
    stats = MODULES["mvnb.stats"]
    trees[stats] = ast.parse(stats.read_text(encoding="utf-8") + "\n\ndef nobody_calls_this():\n    nobody_calls_this()\n")
    assert set(unused(trees)) - {"mvnb.cli.main"} == {"mvnb.stats.nobody_calls_this"}
