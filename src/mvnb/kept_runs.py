"""Kept runs: results of runs that are too long for a chapter, stored in the package as ``papers/SLUG/kept/NAME.json``.

The command ``mvnb keep`` computes a result from the declaration ``NAME.toml`` and a script in the same folder.

The declaration has the keys ``script``, the script's name; ``says``, a one-line description; ``not_run``, a list of the parts
that were left out; and the table ``[parameters]``, whose ``seed`` is the first seed and ``seeds`` the number of seeds. For each
line of the table that compares the run with the paper, it has a ``[[setup]]`` with the keys ``what``, ``paper``, ``ours`` and
``why``; ``ours`` may contain parameters in braces. The optional table ``[short]`` has the values of parameters with which one
seed takes seconds and still runs every part of the script; tests and ``mvnb keep --renew`` use it. A claim that the run decides
gives the run's name in its key ``kept``.

The script defines two functions: ``run(seed, device, **parameters)`` returns the raw values of one seed as a JSON-compatible
dict, and ``beginning(seed, device, **parameters)`` returns the losses of its first 50 steps, from which a change in the
behaviour of the training code can be detected. If ``run`` has a parameter ``scratch``, it receives a separate folder for each
seed, in which it can save the state needed to resume after an interruption.

A result ``NAME.json`` without a declaration can be loaded, and the claims that it decides say so below their verdicts.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from mvnb import claims, verdicts
from mvnb.files import RecordError, read_record

PAPERS = Path(__file__).parent / "papers"
COLUMNS = ("what", "paper", "ours", "why")
_KEYS = {"script": str, "says": str, "not_run": list, "parameters": dict, "setup": list, "short": dict}


@dataclass(frozen=True)
class Declared:
    """A kept run as declared in ``NAME.toml``, with the source code at the time of reading.

    ``slug`` and ``name`` identify the run, and ``script`` is the path of its script, whose source is ``code``; ``modules`` are
    the sources of the modules of the paper that the script imports, also through each other. The other fields are the keys of
    the declaration, see :mod:`mvnb.kept_runs`.
    """

    slug: str
    name: str
    script: Path
    code: str
    modules: dict[str, str]
    says: str
    not_run: list[str]
    parameters: dict[str, Any]
    setup: list[dict[str, str]]
    short: dict[str, Any] = field(default_factory=dict)

    def shortened(self) -> Declared:
        """Return the run with the parameters of its table ``[short]``.

        Raises ``RecordError`` if there is no such table, or it changes a parameter that the run does not have.
        """
        if not self.short:
            raise RecordError(f"{self.slug}/kept/{self.name}.toml: expected a table [short] for a run of seconds, got none")
        return replace(self, parameters=_merged(self.parameters, self.short, f"{self.slug}/kept/{self.name}.toml: [short]"))

    def _arguments(self) -> dict[str, Any]:
        """Return the parameters that are the same for every seed."""
        return {key: value for key, value in self.parameters.items() if key not in ("seed", "seeds")}

    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify the script, the modules that it imports and its parameters but seeds."""
        determines = [self.code, self.modules, self._arguments()]
        return hashlib.sha256(json.dumps(determines, sort_keys=True).encode()).hexdigest()[:16]

    def call(self, function: str, seed: int, device, scratch: Path | None = None) -> Any:
        """Call the script's function ``run`` or ``beginning`` for one seed on a PyTorch device and return its result.

        ``scratch`` is a folder in which the function can save its state. It is created and passed on only if the function has
        a parameter of this name.
        """
        from mvnb.training import fold_seed

        script = {"__name__": self.script.stem, "__file__": str(self.script)}
        exec(compile(self.code, str(self.script), "exec", optimize=0), script)
        called, arguments, seed = script[function], self._arguments(), fold_seed(seed)
        if scratch is None or "scratch" not in inspect.signature(called).parameters:
            return called(seed, device, **arguments)
        scratch.mkdir(parents=True, exist_ok=True)
        return called(seed, device, scratch=scratch, **arguments)

    def edited(self) -> bool:
        """Return whether the modules that the script imports differ from those at the time of reading."""
        return _imported(self.slug, self.script) != self.modules

    def rules(self) -> dict[str, str]:
        """Return the current rules of the claims that this run decides, by claim id."""
        return {id: claim.rule.text for id, claim in claims.declared(self.slug).items() if claim.kept == self.name}

    def terms(self) -> dict[str, str]:
        """Return the rules of the claims that this run decides and who makes them (:func:`mvnb.verdicts.rule`), by id."""
        every = claims.declared(self.slug)
        return {id: verdicts.rule({"criterion": rule, "origin": every[id].origin}) for id, rule in self.rules().items()}


def folder(slug: str) -> Path:
    """Return the folder of the kept runs of the paper ``slug``."""
    return PAPERS / slug / "kept"


def declared(slug: str) -> dict[str, Declared]:
    """Return the declared kept runs of the paper ``slug``, by name.

    Raises
    ------
    RecordError
        If a declaration is not valid TOML, a key is missing, unknown or of the wrong type, or the script does not exist.
    """
    return {path.stem: _read(slug, path) for path in sorted(folder(slug).glob("*.toml"))}


def _read(slug: str, path: Path) -> Declared:
    name = f"{slug}/kept/{path.name}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{name}: {error}") from None
    for key, kind in _KEYS.items():
        if not isinstance(table.get(key, {} if key == "short" else None), kind):
            raise RecordError(f"{name}: expected the key {key} of type {kind.__name__}, got {table.get(key)!r}")
    if unknown := table.keys() - _KEYS:
        raise RecordError(f"{name}: unknown key {min(unknown)!r}; expected one of {', '.join(_KEYS)}")
    if not {"seed", "seeds"} <= table["parameters"].keys():
        raise RecordError(f"{name}: expected the parameters seed and seeds, got {', '.join(table['parameters']) or 'none'}")
    for key, least in (("seed", 0), ("seeds", 1)):
        if type(value := table["parameters"][key]) is not int or value < least:
            raise RecordError(f"{name}: expected {key} to be an integer of at least {least}, got {value!r}")
    for line in table["setup"]:
        if not isinstance(line, dict) or line.keys() != set(COLUMNS) or not all(isinstance(one, str) for one in line.values()):
            raise RecordError(f"{name}: expected texts for the keys {', '.join(COLUMNS)} in every [[setup]], got {line!r}")
        try:
            line["ours"].format(**table["parameters"])
        except (KeyError, IndexError, ValueError):
            raise RecordError(f"{name}: expected parameters in the braces of {line['ours']!r}") from None
    try:
        json.dumps(table["parameters"], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{name}: expected parameters that JSON can represent: {error}") from None
    script = path.parent / table["script"]
    if script.parent != path.parent or not script.is_file():
        raise RecordError(f"{name}: expected a script beside the declaration, got {table['script']!r}")
    code = script.read_text(encoding="utf-8")
    return Declared(slug, path.stem, code=code, modules=_imported(slug, script), **table | {"script": script})


def _imported(slug: str, script: Path) -> dict[str, str]:
    """Return the sources of the modules of the paper ``slug`` that a script imports, directly or not, by name."""
    finder = ModuleFinder(path=[str(Path(__file__).parents[1])])
    try:
        finder.run_script(str(script))
    except SyntaxError as error:
        raise RecordError(f"{slug}/kept/{script.name}: expected Python, got in line {error.lineno}: {error.msg}") from None
    paths = {name: one.__file__ for name, one in finder.modules.items() if f"{name}.".startswith(f"mvnb.papers.{slug}.")}
    return {name: Path(path).read_text(encoding="utf-8") for name, path in paths.items()}


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``values`` with some of them replaced, in nested tables too."""
    if unknown := changes.keys() - values.keys():
        raise RecordError(f"{where} has {min(unknown)!r}; expected some of {', '.join(values)}")
    tables = {key: _merged(values[key], one, where) for key, one in changes.items() if isinstance(values[key], dict)}
    return {**values, **changes, **tables}


def load(slug: str, name: str) -> dict[str, Any]:
    """Return the results of the kept run ``name`` of the paper ``slug``, such as ``"nuclear_norm"``.

    Raises
    ------
    OSError
        If the file cannot be read.
    RecordError
        If the file is not a record or was modified after the run.
    """
    return read_record(folder(slug) / f"{name}.json")


def show(slug: str, name: str, setup: bool = True) -> None:
    """Display the provenance of the kept run ``name`` and, if ``setup`` is true, a comparison of its set-up with the paper's.

    Raises ``KeyError`` if the paper ``slug`` does not declare the run, and the errors of :func:`declared` and :func:`load`.
    """
    from IPython.display import HTML, display

    one, record = declared(slug)[name], load(slug, name)
    display(HTML(_provenance(one, record) + (_setup_table(one, record) if setup else "")))


def _provenance(one: Declared, record: dict[str, Any]) -> str:
    runs = record["runs"]
    where = ", ".join(dict.fromkeys(run["hardware"] for run in runs))
    minutes = sum(run["seconds"] for run in runs) / 60
    seeds = f"seeds {runs[0]['seed']} to {runs[-1]['seed']}"
    text = (
        f"Kept run: {escape(one.says)}. <code>{escape(record['command'])}</code>, {seeds}, {escape(where)}, "
        f"{minutes:.0f} minutes in all, {max(run['finished'] for run in runs)[:10]}."
    )
    left = f" Not run: {escape('; '.join(one.not_run))}." if one.not_run else ""
    if renewed := record.get("renewed"):
        left += f" A short run with later code gave equal values ({renewed['date']})."
    return f'<p class="mvnb-kept-run">{text}{left}</p>\n'


def _setup_table(one: Declared, record: dict[str, Any]) -> str:
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("", "paper", "ours", "why"))
    lines = []
    parameters = {key: ", ".join(map(str, v)) if isinstance(v, list) else v for key, v in record["parameters"].items()}
    for line in one.setup:
        cells = (line["paper"], line["ours"].format(**parameters), line["why"])
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(line["what"])}</th>{data}</tr>')
    body = "\n".join(lines)
    return (
        '<table class="mvnb-setup">\n<caption>Set-up beside the paper\'s</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )
