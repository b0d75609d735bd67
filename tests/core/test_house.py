"""The house: papers and the runner stand on the core, no paper on another; nothing in a circle; every public name is used."""

import ast
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
EXPLORERS = ROOT / "tests" / "site" / "test_explorers.py"  # what the pages' scripts are held to
USERS = [*(ROOT / "notebooks").glob("*.py"), *(ROOT / "book" / "_ext").glob("*.py"), EXPLORERS, *SOURCE.rglob("*.py")]
PAGES = [*(ROOT / "notebooks").glob("*.py"), *(ROOT / "book").glob("*.md")]
ROLE = re.compile(r"\{py:\w+\}`~?([\w.]+)`")
CALLED = {  # by name, from outside: torch, IPython, click, pickle
    *("forward", "backward", "setup_context", "generate_vmap_rule"),
    *("_repr_mimebundle_", "parse_args", "find_class"),
}


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
    return "runner" if parts[1:2] in (["runner"], ["cli"], ["__main__"]) else "core"


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
        ("mvnb.training.core", "mvnb.runner.sweeps"),
        ("mvnb.runner.sweeps", "mvnb.papers.gemfilter.theory"),
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


class Names:
    """What the names of a file mean: modules of the package, or definitions in them."""

    def __init__(self, trees):
        self.trees = trees
        self.imported = {path: dict(self._imports(tree)) for path, tree in trees.items()}

    @staticmethod
    def _imports(tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield (
                        alias.asname or alias.name.split(".")[0],
                        (alias.name if alias.asname else alias.name.split(".")[0], ""),
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield alias.asname or alias.name, (node.module, alias.name)

    def place(self, module, name):
        """Where ``module.name`` is defined, through those that hand it on; the name is empty for a module."""
        handed = self.imported[MODULES[module]].get(name) if module in MODULES else None
        if handed and handed[1]:
            return self.place(*handed)
        return handed or ((f"{module}.{name}", "") if f"{module}.{name}" in MODULES else (module, name))

    def module(self, node, path):
        """The module that an expression names, if it names one."""
        found = ("", "-")
        if isinstance(node, ast.Name):
            found = self.imported[path].get(node.id, found)
        elif isinstance(node, ast.Attribute) and (outer := self.module(node.value, path)):
            found = outer, node.attr
        module, name = self.place(*found) if found[1] else found
        return "" if name else module

    def used(self, tree, path, own=()):
        """Definitions ``(module, name)`` that a part of a file uses, and attributes ``("", name)`` of whatever it is."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                module = self.module(node.value, path)
                yield self.place(module, node.attr) if module else ("", node.attr)
            elif isinstance(node, ast.Name) and node.id in self.imported[path]:
                yield self.place(*self.imported[path][node.id])
            elif isinstance(node, ast.Name) and node.id in own:
                yield name_of(path), node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                yield "", node.value  # by getattr, or as the name of a field


def target(node):
    """The name that a statement defines, if it defines one."""
    one = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return getattr(node, "name", None) or getattr(one, "id", "")


def unused(trees):
    """Definitions, methods and fields of the package that no chapter, command, page or kept run's script leads to.

    What is used by nothing but what is unused is unused, too. Attributes are told by their name alone: a method whose name
    something else has can hide. A test is no use, except the one that holds the pages' scripts to closed forms.
    """
    names, definitions, reached = Names(trees), {}, set()
    for path in set(trees) - set(MODULES.values()):
        reached |= set(names.used(trees[path], path))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        linked = [("mvnb." * (not one.startswith("mvnb")) + one).split(".") for one in ROLE.findall(text)]
        for parts in linked:
            size = max(i for i in range(1, len(parts) + 1) if ".".join(parts[:i]) in MODULES)
            reached |= {names.place(".".join(parts[:size]), *parts[size : size + 1])} if parts[size:] else set()
            reached |= {("", one) for one in parts[size + 1 :]}
    for module, path in MODULES.items():
        body = trees[path].body
        own = {target(node) for node in body} - {""}
        for node in body:
            uses = functools.partial(names.used, path=path, own=own)
            name, entry = target(node), path.stem == "cli" and isinstance(node, ast.FunctionDef)
            if isinstance(node, ast.Import | ast.ImportFrom) or name.startswith("__"):
                continue
            if not name or entry or ".kept." in module:
                reached |= set(uses(node))  # run on import, commands, costs of a chapter and scripts
                continue
            parts = [part for part in getattr(node, "body", []) if isinstance(node, ast.ClassDef) and target(part)]
            parts = [part for part in parts if not target(part).startswith("__") and target(part) not in CALLED]
            for part in parts:
                definitions[module, f"{name}.{target(part)}"] = set(uses(part)) - {("", target(part))}
            rest = ast.Module([part for part in ast.iter_child_nodes(node) if part not in parts], [])
            definitions[module, name] = set(uses(rest)) - {(module, name)}
    left, before = dict(definitions), None
    while before != len(left):
        before = len(left)
        for module, name in list(left):
            owner, _, member = name.partition(".")
            if ("", member) in reached and (module, owner) in reached if member else (module, name) in reached:
                reached |= left.pop((module, name))
    return {f"{module}.{name}" for module, name in left}


def test_everything_public_and_private_is_used():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in USERS}
    recipes = ROOT / "book" / "own-code.md"
    trees[recipes] = ast.parse("\n".join(re.findall(r"```python\n(.*?)```", recipes.read_text(encoding="utf-8"), re.DOTALL)))
    assert unused(trees) == set()
    stats, code = MODULES["mvnb.stats"], "def first_idle():\n    second_idle()\n\ndef second_idle():\n    first_idle()\n"
    trees[stats] = ast.parse(
        stats.read_text(encoding="utf-8") + code + "\nclass Idle:\n    def idle_method(self):\n        pass\n"
    )
    found = unused(trees)
    assert found == {f"mvnb.stats.{name}" for name in ("first_idle", "second_idle", "Idle", "Idle.idle_method")}
