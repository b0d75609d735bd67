"""The rules that every chapter keeps, one function each; a function returns what is wrong, as a list of sentences."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import nbformat
from pybtex.database import parse_file

from mvnb import claims, kept_runs, verdicts
from mvnb.runner import catalogue, errors, keeping, pairing, sweeps
from mvnb.runner.parameters import _fits, _numbers

ROOT = Path(__file__).resolve().parents[1]
LESSON = (
    "question",
    "world",
    "model",
    "derivation",
    "experiments",
    "take-home",
    "try",
    "record",
    "recipe",
    "held-up",
    "not-run",
    "further",
)
"""Labels of a chapter that is a lesson and a record, in order; the others are the first edition's."""
SECTIONS = ("question", "world", "model", "derivation", "experiments", "held-up", "not-run", "try", "further")
LARGEST_NOTEBOOK = 1_500_000
FORBIDDEN = {
    "an absolute path": r"(?<![\w.~-])/(home|root|work|tmp)/",
    "a path outside the book": r"\.\./\.\./",
    "a timing": r"(?<![a-z])(it/s|s/it|Wall time|CPU times)\b",
    "a memory address": r"\bat 0x[0-9a-f]{6,}",
}
_FENCE = r"^\s*(?:`{3,}|:{3,})"


def _markdown(chapter: catalogue.Chapter) -> str:
    return "\n\n".join(cell.source for cell in chapter.cells.cells if cell.cell_type == "markdown")


def _code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def _committed(chapter: catalogue.Chapter) -> nbformat.NotebookNode:
    return nbformat.read(chapter.notebook, as_version=4)


def _outputs(notebook: nbformat.NotebookNode) -> list[tuple[int, nbformat.NotebookNode]]:
    return [(cell.execution_count, output) for cell in _code(notebook) for output in cell.outputs]


def output_text(output: nbformat.NotebookNode) -> str:
    """The text of an output, as a reader sees it."""
    data = output.get("data", {})
    texts = [str(value) for mime, value in data.items() if not mime.startswith("image/")]
    return "\n".join([output.get("text", ""), *texts])


def pair(chapter):
    """The committed notebook has the cells of the source."""
    difference = pairing.paired(chapter)
    return [f"the pair is out of step; run: mvnb book {chapter.name} --no-site\n{difference}"] if difference else []


def parameters(chapter):
    """Every parameter is a literal with a comment that papermill can read; seed, replicas and device are among them."""
    read = chapter.parameters
    wrong = [f"parameter {name!r} has no comment on its line" for name, one in read.items() if not one.comment]
    unread = [name for name, one in read.items() if "=" in one.comment]
    wrong += [f"papermill passes over {name!r}: an equals sign is in its comment" for name in unread]
    defaults = {name: one.default for name, one in read.items()}
    wrong += [f"parameter {name!r} is not an integer" for name in ("seed", "replicas") if type(defaults.get(name)) is not int]
    return wrong + ([] if defaults.get("device") == "auto" else ["parameter 'device' is not \"auto\" by default"])


def folded(chapter):
    """The seed is folded in the cell that checks the parameters, before anything is drawn from it."""
    source = "\n".join(cell.source for cell in _code(chapter.cells) if "parameters" not in cell.metadata.get("tags", []))
    before = re.sub("#.*", "", source.partition("training.fold_seed(seed)")[0])
    if "training.fold_seed(seed)" not in source:
        return ["seed is not folded: seed = training.fold_seed(seed)"]
    return ["seed is used before it is folded"] if re.search(r"\bseed\b(?!\s*=\s*(training|$))", before) else []


def ranges(chapter):
    """Every number states the range that it may have, and defaults and presets keep to it."""
    read = chapter.parameters
    numeric = [name for name, one in read.items() if _numbers(one.default)]
    wrong = [f"the comment states no range for {name!r}" for name in numeric if not read[name].range]
    given = {"by default": {name: one.default for name, one in read.items()}}
    given |= {f"in preset {name!r}": one for name, one in catalogue.presets(chapter.root).get(chapter.name, {}).items()}
    return wrong + [
        f"{name!r} is {number} {where}, and may be {read[name].range}"
        for where, values in given.items()
        for name in values.keys() & read.keys()
        for number in _numbers(values[name])
        if not _fits(number, read[name].range)
    ]


def anatomy(chapter):
    """One heading of level one, first; then the labelled sections, in order, each with its heading below."""
    text = _markdown(chapter)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    wrong = [] if text.startswith("# ") else ["the first cell does not begin with the title"]
    if len(re.findall(r"^# ", prose, re.MULTILINE)) != 1:
        wrong.append("there is not exactly one heading of level one")
    sections = LESSON if f'id="{chapter.number}-record"' in text else SECTIONS
    labels = [f"{chapter.number}-{section}" for section in sections]
    found = [
        label
        for label in re.findall(r'^<a id="([\w-]+)"></a>\n+(?:<a id="[\w-]+"></a>\n+)*##{0,2} ', text, re.MULTILINE)
        if label in labels
    ]
    return wrong if found == labels else [*wrong, f"sections are {found}, not {labels}"]


def mathematics(chapter):
    """There are a numbered equation, a theorem and a proof."""
    text = _markdown(chapter)
    wanted = {
        "numbered equation": r"^\s*\$\$\s*\([\w:-]+\)\s*$|\{math\}\s*\n\s*:label:",
        "prf:theorem": _FENCE + r"\{prf:theorem\}",
        "prf:proof": _FENCE + r"\{prf:proof\}",
    }
    return [f"there is no {name}" for name, pattern in wanted.items() if not re.search(pattern, text, re.MULTILINE)]


def plain(chapter):
    """What Markdown can say is said in it, and directives that hold mathematics have fences of colons."""
    text = _markdown(chapter)
    blocks = re.findall(r"^(`{3,})(\{[\w:+-]+\}[^\n]*)\n(.*?)^\1$", text, re.MULTILINE | re.DOTALL)
    wrong = [f"mathematics between backticks: {name}" for _, name, body in blocks if "$" in body]
    own = re.findall(r"^\([\w-]+\)=$|\{cite[:\w]*\}`.*?`|\{literalinclude\}.*|\{glue:.*", text, re.MULTILINE)
    return wrong + [f"other readers show as text: {one}" for one in own]


def citations(chapter):
    """Links to the bibliography name an entry, and their text its authors and year."""
    own = chapter.root / "book" / "references.bib"
    entries = bibliography(own if own.is_file() else ROOT / "book" / "references.bib")
    found = re.findall(r"\[([^][]+)\]\(\.\./book/references\.bib#([^)]*)\)", _markdown(chapter))
    wrong = []
    for text, key in found:
        said = re.sub(r",? \(?(\d{4})\)?$", r", \1", text)
        if said != entries.get(key):
            wrong.append(f"the link to {key} says {text!r}, and the entry is {entries.get(key)!r}")
    return wrong


@functools.cache
def bibliography(path: Path) -> dict[str, str]:
    """Authors and year of each entry by its key, such as ``Zhang et al., 2018``."""
    entries = parse_file(path, bib_format="bibtex").entries
    found = {}
    for key, entry in entries.items():
        names = [" ".join(map(str, one.rich_prelast_names + one.rich_last_names)) for one in entry.persons["author"]]
        who = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        found[key] = f"{who}, {entry.fields['year']}"
    return found


def exercises(chapter):
    """Three to five exercises, each with a solution behind a toggle."""
    text = _markdown(chapter)
    option = r"(?:\n\s*:\w+:.*)*?\n\s*"
    labels = re.findall(_FENCE + r"\{exercise(?:-start)?\}.*" + option + r":label:[ \t]*(\S+)", text, re.MULTILINE)
    solution = _FENCE + r"\{solution(?:-start)?\}\s*(\S+)[ \t]*" + option + r":class:.*\bdropdown\b"
    solved = re.findall(solution, text, re.MULTILINE)
    wrong = [] if 3 <= len(labels) <= 5 else [f"there are {len(labels)} labelled exercises, not 3 to 5"]
    return wrong + [f"exercise {label} has no solution of class dropdown" for label in labels if label not in solved]


def ledger(chapter):
    """Claims are shown in a compared cell as they are declared; every id stands in the source or in a module of the paper."""
    rows = claims.read(chapter.notebook)
    source = "\n".join(cell.source for cell in _code(chapter.cells))
    wrong = [] if rows else ["no ledger is shown"]
    folders = (chapter.root / "src" / "mvnb" / "papers", chapter.root / "papers")
    path = next(path for one in folders if (path := one / chapter.slug / "claims.toml").is_file())
    source += "\n".join(module.read_text(encoding="utf-8") for module in path.parent.glob("*.py"))
    declared = claims.declared(path)
    rules = {id: (claim.rule.text, claim.origin) for id, claim in declared.items()}
    wrong += [f"claim {id} is not recorded in the source" for id in rules if f'"{id}"' not in source]
    shown = {row["id"]: (row["criterion"], row["origin"]) for row in rows}
    if stale := [id for id in sorted(rules.keys() | shown.keys()) if rules.get(id) != shown.get(id)]:
        again = f"run: mvnb book {chapter.number} --no-site"
        wrong.append(f"claims {', '.join(stale)} differ in claims.toml and the notebook; {again}")
    wrong += [f"claim {row['id']} is of {row['chapter']}" for row in rows if row["chapter"] not in (chapter.name, chapter.slug)]
    showing = [cell for cell in _code(_committed(chapter)) if any(claims.MIME in out.get("data", {}) for out in cell.outputs)]
    marked = [cell for cell in showing if re.search(r"^# NBVAL_CHECK_OUTPUT$", cell.source, re.MULTILINE)]
    return wrong if marked else [*wrong, "no cell with # NBVAL_CHECK_OUTPUT shows the ledger"]


def seeds(chapter):
    """The kept sweep judged these claims on the same terms, in twenty runs or more; none holds in two and fails in two, or
    turned in two."""
    rows = {row["id"]: row for row in claims.read(chapter.notebook) if row["verdict"] != "not run" and not row["kept"]}
    judged = {id: row["verdict"] for id, row in rows.items()}
    kept = sweeps.kept(chapter)
    if not kept:
        return []
    again = f"run: mvnb sweep {chapter.number} --grid seed=1000:21000:1000 --keep"
    wrong = [f"claim {id} is not in both the notebook and the sweep; {again}" for id in sorted(judged.keys() ^ kept.keys())]
    for id in judged.keys() & kept.keys():
        if (now := verdicts.terms(rows[id])) != (then := kept[id]["terms"]):
            wrong.append(f"claim {id} is judged by {now!r} in the notebook, and by {then!r} in the sweep; {again}")
        counts = {one: kept[id][one] for one in verdicts.JUDGED}
        found = [one for one in ("holds", "fails") if counts[one] >= 2 or one == judged[id]]
        if len(found) > 1 or sum(counts.values()) < 20:
            wrong.append(f"claim {id} has the verdicts {counts} over the seeds, and {judged[id]} in the notebook")
    return wrong


def kept(chapter):
    """Kept runs are as declared, and the notebook judges their claims on the terms of the time when they were made."""
    states = [(name, state) for _, name, _, state in keeping.status([chapter])]
    again = f"run: mvnb keep {chapter.number}"
    fine = ("as declared", "no record")
    wrong = [f"kept run {name}: {state}; {again} {name}" for name, state in states if not state.endswith(fine)]
    for row in (row for row in claims.read(chapter.notebook) if row["kept"]):
        record = kept_runs.load(chapter.slug, row["kept"])
        then = record.get("terms", {}).get(row["id"])
        if then and then != (now := verdicts.rule(row)):
            wrong.append(f"claim {row['id']} is judged by {now!r} in the notebook, and by {then!r} in {row['kept']}.json")
        seeds = _seeds(record["parameters"]) if "parameters" in record else [row["runs"]]  # a stored file without declaration
        if row["runs"] and row["runs"] not in seeds:
            wrong.append(f"claim {row['id']} is judged by {row['runs']} runs, of {seeds} in {row['kept']}.json")
    return wrong


def _seeds(parameters):
    """Return the numbers of seeds of a kept run and of its arms, some of which may have fewer."""
    arms = parameters.get("arms", {})
    return sorted({parameters["seeds"], *(one["seeds"] for one in arms.values() if isinstance(one, dict) and "seeds" in one)})


def figures(chapter):
    """There is a figure, and every figure has alternative text."""
    images = [
        (number, output.metadata.get(mime, {}).get("alt", ""))
        for number, output in _outputs(_committed(chapter))
        for mime in output.get("data", {})
        if mime.startswith("image/")
    ]
    wrong = [] if images else ["there is no figure"]
    return wrong + [f"a figure of cell [{number}] has no alternative text" for number, alt in images if not alt.strip()]


def outputs(chapter):
    """Everything ran, in order, without errors or words on stderr, and the notebook is small."""
    notebook = _committed(chapter)
    counts = [cell.execution_count for cell in _code(notebook)]
    wrong = [] if counts == list(range(1, len(counts) + 1)) else [f"cells were run in the order {counts}"]
    for number, output in _outputs(notebook):
        if output.output_type == "error" or output.get("name") == "stderr":
            wrong.append(f"cell [{number}] has {output.get('ename', 'stderr')} in its output")
    size = chapter.notebook.stat().st_size
    return wrong + ([f"the notebook has {size:,} bytes"] if size >= LARGEST_NOTEBOOK else [])


def strings(chapter):
    """Neither source nor outputs hold paths of one machine, and outputs hold no timings or addresses."""
    notebook = _committed(chapter)
    sources = [(f"cell {place}", cell.source) for place, cell in enumerate(chapter.cells.cells, 1)]
    shown = [(f"the output of cell [{number}]", output_text(output)) for number, output in _outputs(notebook)]
    return [
        f"{where} holds {what}: {match[0]!r}"
        for what, pattern in FORBIDDEN.items()
        for where, text in (shown if what in ("a timing", "a memory address") else sources + shown)
        if (match := re.search(pattern, text))
    ]


def presets(chapter):
    """The presets ``smoke`` and ``paper`` are there and fit the parameters."""
    wrong = []
    for name in ("smoke", "paper"):
        try:
            if not catalogue.preset(chapter, name):
                wrong.append(f"preset {name!r} changes nothing")
        except errors.ChapterError as error:
            wrong.append(str(error))
    return wrong


CHECKS = (
    pair,
    parameters,
    folded,
    ranges,
    anatomy,
    mathematics,
    plain,
    citations,
    exercises,
    ledger,
    seeds,
    kept,
    figures,
    outputs,
    strings,
    presets,
)


def differing_outputs(chapter, notebook_path) -> int:
    """How many cells of another run show something else than the committed notebook does."""
    committed = {cell.source: cell.outputs for cell in _code(_committed(chapter))}
    other = [cell for cell in _code(nbformat.read(notebook_path, as_version=4)) if cell.source in committed]
    return sum(_shown(cell.outputs) != _shown(committed[cell.source]) for cell in other)


def _shown(outputs) -> list[str]:
    return [output_text(out) + str(out.get("data", {}).get("image/png")) for out in outputs if out.get("name") != "stderr"]
