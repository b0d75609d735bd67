"""The reference of the helper package: an index, and one page per module written from its docstrings.

Pages are written to ``book/api`` when a build starts; git ignores the folder, and ``_toc.yml`` lists its pages. The index is
``book/api.md``. Without PyTorch the modules cannot be imported, and the index has no links and says how to build the pages.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

from docutils import nodes
from sphinx.ext.napoleon.docstring import NumpyDocstring
from sphinx.pycode import ModuleAnalyzer

import mvnb.papers
from mvnb.files import write

CORE = "data seeds models training losses probes stats figures claims rules verdicts kept_runs".split()
PAPERS = [f"papers.{info.name}" for info in pkgutil.iter_modules(mvnb.papers.__path__) if info.ispkg]
MODULES = [*CORE, *PAPERS, "runner"]  # names below mvnb; each has a page
COMPLETE = importlib.util.find_spec("torch") is not None
HEADING = re.compile(r'(<h[12]><code [^>]*><span class="pre">)([\w.]+)')
BACK_LINK = re.compile(r'(<a class="viewcode-back" href="[^"#]*#)([\w.]+)')

# -- pages ---------------------------------------------------------------------------------------------------------


def write_pages(app, config):
    """Write the page of every module that can be imported, and delete all other pages."""
    folder = Path(app.srcdir, "book", "api")
    if not folder.with_suffix(".md").is_file():
        return
    chapters = {path.stem[3:]: f"/notebooks/{path.stem}" for path in Path(app.srcdir, "notebooks").glob("*.ipynb")}
    pages = {folder / f"{name.replace('.', '/')}.md": name for name in MODULES if COMPLETE}
    for path in set(folder.rglob("*.md")) - set(pages):
        path.unlink()
    for path, name in pages.items():
        text = page(name, chapters.get(name.removeprefix("papers.")))
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text)


def leave_out_pages(app, config):
    """Remove the pages of modules from the table of contents."""
    contents = config.external_site_map
    for name in [one for one in contents if one.startswith("book/api/")]:
        del contents[name]
    if "book/api" in contents:
        contents["book/api"].subtrees.clear()


def page(name: str, chapter: str | None = None) -> str:
    """Return the page of a module, or of a package with a section for each of its modules and a link to its chapter."""
    full_name = f"mvnb.{name}"
    module = importlib.import_module(full_name)
    parts = [f"# `{full_name}`"]
    if not hasattr(module, "__path__"):
        return "\n\n".join([*parts, directives(automodule(full_name))]) + "\n"
    parts.append(directives(f".. automodule:: {full_name}"))
    if chapter:
        parts.append(f"Chapter: {{doc}}`{chapter}`.")
    if exported := getattr(module, "__all__", ()):
        names = ", ".join(f"{{py:obj}}`~{full_name}.{item}`" for item in exported)
        parts.append(f"Import these names from `{full_name}`: {names}.")
    for inner in public_modules(full_name):
        parts.append(f"## `{inner}`")
        parts.append(directives(*exported_and_other(module, inner)) if exported else directives(automodule(inner)))
    return "\n\n".join(parts) + "\n"


def public_modules(package: str) -> list[str]:
    """Return the full names of the public modules of a package, or an empty list for a plain module."""
    found = pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ()))
    return [f"{package}.{info.name}" for info in found if not (info.ispkg or info.name.startswith("_"))]


def exported_and_other(package, name: str) -> list[str]:
    """Return the directives for a module of a package with ``__all__``, in the order of its source.

    Names that the package exports are documented as names of the package, other names as names of the module.
    """
    # A function may have the name of its module, and only one of the two can be registered.
    found = [f".. automodule:: {name}" + "\n   :no-index:" * (name.rpartition(".")[2] in package.__all__)]
    module = importlib.import_module(name)
    analyzer = ModuleAnalyzer.for_module(name)
    analyzer.analyze()
    for item, value in vars(module).items():
        prefix = package.__name__ if item in package.__all__ else name
        if item.startswith("_"):
            continue
        if ("", item) in analyzer.attr_docs:
            found.append(f".. autodata:: {name}.{item}")
        elif getattr(value, "__module__", "") != name or not value.__doc__:
            continue
        elif inspect.isclass(value):
            found.append(f".. autoclass:: {prefix}.{item}\n   :members:")
        elif callable(value):
            found.append(f".. autofunction:: {prefix}.{item}")
    return found


def automodule(name: str) -> str:
    return f".. automodule:: {name}\n   :members:"


def directives(*lines: str) -> str:
    return "```{eval-rst}\n" + "\n\n".join(lines) + "\n```"


def shorten_contents(app, doctree):
    """Shorten names in the tables of contents by the part that they share with the page, or with all papers."""
    docname = app.env.docname
    if not docname.startswith("book/api/"):
        return
    own = docname.removeprefix("book/api/").replace("/", ".")
    for reference in app.env.tocs[docname].findall(nodes.reference):
        if (name := reference.astext()).startswith("mvnb."):
            reference[:] = [nodes.literal("", name.removeprefix(f"mvnb.{own}.").removeprefix("mvnb.papers."))]


def let_names_break(app, pagename, templatename, context, doctree):
    """Allow line breaks after dots and underscores of names in headings, for narrow screens."""
    if pagename.startswith("book/api/"):
        context["body"] = HEADING.sub(lambda match: match[1] + re.sub("([._])", r"\1<wbr/>", match[2]), context["body"])


def mend_back_links(app, pagename, templatename, context, doctree):
    """Correct the links from a module's source to its documentation, where viewcode expects all names under one module."""
    if not pagename.startswith("_modules/mvnb/"):
        return
    module = pagename.removeprefix("_modules/").replace("/", ".")
    package, known = module.rpartition(".")[0], app.env.get_domain("py").objects

    def documented(match):
        name = match[2].removeprefix(f"{module}.").removeprefix(f"{package}.")
        names = (match[2], f"{package}.{name}", f"{module}.{name}")
        return match[1] + next((known[one].node_id for one in names if one in known), match[2])

    context["body"] = BACK_LINK.sub(documented, context["body"])


# -- index ---------------------------------------------------------------------------------------------------------


def fill_index(app, docname, source):
    """Replace the placeholders of ``book/api.md`` by one line per module: a link and the first sentence of its docstring."""
    if docname == "book/api":
        for group, names in {"core": CORE, "papers": PAPERS, "runner": ["runner"]}.items():
            source[0] = source[0].replace(f"<!-- modules: {group} -->", "\n".join(map(entry, names)))


def entry(name: str) -> str:
    """Return the line of a module in the index."""
    source = Path(importlib.util.find_spec(f"mvnb.{name}").origin).read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    sentence = re.match(r".*?(?=\.\s|\.?$)", " ".join(docstring.split("\n\n")[0].split()))[0]
    sentence = re.sub(r":(\w+):`", r"{py:\1}`", sentence)  # roles in MyST's syntax
    link = f"[`mvnb.{name}`](api/{name.replace('.', '/')}.md)" if COMPLETE else f"`mvnb.{name}`"
    return f"- {link if '.' in name else f'[{link}]{{#api-{name}}}'}: {sentence}."


# -- docstrings and references -------------------------------------------------------------------------------------


def find_reference(app, env, node, contnode):
    """Resolve a name of the package to the entry of its object, under whichever name that is documented.

    For example, ``mvnb.data.multi_view.MultiView`` leads to ``mvnb.data.MultiView``. A bare name is looked up in the current
    module and, on the page of a package, in the modules of the package. Objects without an entry, such as constants, are set
    as code. A name that does not exist remains an error. Without PyTorch all names are set as code.
    """
    if node.get("refdomain") != "py":
        return None
    if not COMPLETE:
        return contnode
    domain, bare = env.get_domain("py"), node["reftarget"]
    names = [bare]
    if module := node.get("py:module"):
        names += [f"{place}.{bare}" for place in (module, *public_modules(module))]
    for name in names:
        if not name.startswith("mvnb.") or (found := named(name)) is None:
            continue
        for target in domain.objects:
            if target.endswith(f".{name.rpartition('.')[2]}") and named(target) is found:
                return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)
        return contnode
    return None


def named(name: str):
    """Return the object with a full dotted name, or None; a function takes precedence over a module of the same name."""
    parts = name.split(".")
    try:
        found = importlib.import_module(parts[0])
        for end, part in enumerate(parts[1:], 2):
            found = getattr(found, part, None) or importlib.import_module(".".join(parts[:end]))
    except ImportError:
        return None
    return found


def skip_tuple_fields(app, what, name, obj, _skip, options):
    """Skip the fields of a NamedTuple, documented as "Alias for field number 0"; the docstring of the class names them."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def description_of_data(self):
    """Return the docstring of a module's data as prose; napoleon would read the words before a colon as a type."""
    return "", self._dedent(self._consume_to_end())


def setup(app):
    NumpyDocstring._consume_inline_attribute = description_of_data
    app.connect("config-inited", write_pages, priority=100)  # before the table of contents looks for the pages
    if COMPLETE:
        app.tags.add("complete")
    else:
        app.connect("config-inited", leave_out_pages, priority=900)  # after the table of contents is read
    app.connect("doctree-read", shorten_contents, priority=600)  # after the collectors
    app.connect("html-page-context", let_names_break)
    app.connect("html-page-context", mend_back_links)
    app.connect("source-read", fill_index)
    app.connect("missing-reference", find_reference)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
