"""Papers and the runner import the core, no paper another one; no module imports itself by way of others."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def name_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in (ROOT / "src").rglob("*.py")}


def imports(code):
    """The modules of the package that code imports when it is run, without those that only a type checker reads."""
    found, nodes = set(), [ast.parse(code)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            found |= submodules if len(submodules) == len(node.names) else submodules | {node.module}
    return found & set(MODULES)


def part(module):
    """The paper, ``"runner"`` or ``"core"``; the list of all papers belongs to none."""
    parts = module.split(".")
    if parts[1:2] == ["papers"]:
        return ".".join(parts[1:3]) if len(parts) > 2 and not parts[2].startswith("_") else "papers"
    return "runner" if parts[1:2] in (["runner"], ["cli"], ["__main__"]) else "core"


def test_imports_lead_to_the_core_and_never_back():
    graph = {name: imports(path.read_text(encoding="utf-8")) - {name} for name, path in MODULES.items()}
    pairs = [(one, other) for one, others in graph.items() for other in others if part(one) != "papers"]
    assert pairs and not [(one, other) for one, other in pairs if part(other) not in ("core", part(one))]
    list(TopologicalSorter(graph).static_order())  # raises an error if there is a circle


def test_a_chapter_imports_the_core_and_its_own_paper():
    for path in (ROOT / "notebooks").glob("*.py"):
        assert {part(name) for name in imports(path.read_text(encoding="utf-8"))} <= {"core", f"papers.{path.stem[3:]}"}, path


def test_an_import_within_a_function_is_found():
    assert imports("def f():\n    from mvnb.papers.gemfilter import theory") == {"mvnb.papers.gemfilter.theory"}
