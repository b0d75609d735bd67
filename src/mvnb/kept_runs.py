"""Results of runs that are too long for a chapter, stored in the package as ``papers/SLUG/kept/NAME.json``.

``mvnb keep`` computes a result from the declaration ``NAME.toml`` and the script beside it.

The declaration has the keys ``script``, the script's name; ``says``, a one-line description; ``not_run``, the parts that were
left out; ``[parameters]``, with ``seed``, the first seed, and ``seeds``, their number; and a ``[[setup]]`` with ``what``,
``paper``, ``ours`` and ``why`` for each line of the table that compares the run with the paper; ``ours`` may contain
parameters in braces. The claims that the run decides name it in their key ``kept``.

The script defines two functions: ``run(seed, device, **parameters)`` returns the raw values of one seed as a JSON-compatible
dict, and ``beginning(seed, device, **parameters)`` the losses of its first 50 steps, which reveal a change of the core. If
``run`` has a parameter ``scratch``, it gets a folder per seed for the state from which an interrupted run resumes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mvnb import claims
from mvnb.files import RecordError, read_record, write_record

PAPERS = Path(__file__).parent / "papers"
COLUMNS = ("what", "paper", "ours", "why")
_KEYS = {"script": str, "says": str, "not_run": list, "parameters": dict, "setup": list}


@dataclass(frozen=True)
class Declared:
    """A kept run as ``NAME.toml`` declares it, with the code of its script at the time of reading."""

    slug: str
    name: str
    script: Path
    code: str
    says: str
    not_run: list[str]
    parameters: dict[str, Any]
    setup: list[dict[str, str]]

    def _arguments(self) -> dict[str, Any]:
        """Return the parameters that are the same for every seed."""
        return {key: value for key, value in self.parameters.items() if key not in ("seed", "seeds")}

    def digest(self) -> str:
        """Return a digest of the script and its parameters: 16 hexadecimal digits."""
        arguments = json.dumps(self._arguments(), sort_keys=True)
        return hashlib.sha256((self.code + arguments).encode()).hexdigest()[:16]

    def call(self, function: str, seed: int, device, scratch: Path | None = None) -> Any:
        """Call the script's function ``run`` or ``beginning`` for one seed on a PyTorch device and return its result.

        ``scratch`` is a folder for the state of ``run``, created if ``run`` has this parameter.
        """
        from mvnb.training import fold_seed

        script = {"__name__": self.script.stem, "__file__": str(self.script)}
        exec(compile(self.code, str(self.script), "exec"), script)
        called, arguments, seed = script[function], self._arguments(), fold_seed(seed)
        if scratch is None or "scratch" not in inspect.signature(called).parameters:
            return called(seed, device, **arguments)
        scratch.mkdir(parents=True, exist_ok=True)
        return called(seed, device, scratch=scratch, **arguments)

    def rules(self) -> dict[str, str]:
        """Return the current rules of the claims that the run decides, by claim id."""
        return {id: claim.rule.text for id, claim in claims.declared(self.slug).items() if claim.kept == self.name}


def folder(slug: str) -> Path:
    """Return the folder of a paper's kept runs."""
    return PAPERS / slug / "kept"


def declared(slug: str) -> dict[str, Declared]:
    """Return the kept runs that a paper declares, by name.

    Raises
    ------
    RecordError
        If a file is not TOML, a key is missing, unknown or of the wrong type, or the script does not exist.
    """
    return {path.stem: _read(slug, path) for path in sorted(folder(slug).glob("*.toml"))}


def _read(slug: str, path: Path) -> Declared:
    name = f"{slug}/kept/{path.name}"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{name}: {error}") from None
    for key, kind in _KEYS.items():
        if not isinstance(table.get(key), kind):
            raise RecordError(f"{name}: {key} is missing or not of type {kind.__name__}")
    if unknown := table.keys() - _KEYS:
        raise RecordError(f"{name}: unknown key {min(unknown)!r}; expected one of {', '.join(_KEYS)}")
    if not {"seed", "seeds"} <= table["parameters"].keys():
        raise RecordError(f"{name}: expected the parameters seed and seeds, got {', '.join(table['parameters']) or 'none'}")
    if any(not isinstance(line, dict) or line.keys() != set(COLUMNS) for line in table["setup"]):
        raise RecordError(f"{name}: expected the keys {', '.join(COLUMNS)} in every [[setup]]")
    script = path.with_name(table["script"])
    if not script.is_file():
        raise RecordError(f"{name}: the script {table['script']} does not exist")
    return Declared(slug, path.stem, code=script.read_text(encoding="utf-8"), **table | {"script": script})


def load(slug: str, name: str) -> dict[str, Any]:
    """Return the record of a kept run, given the chapter's slug, such as ``"nuclear_norm"``, and the run's name.

    Raises
    ------
    OSError
        If the file cannot be read.
    RecordError
        If the file is not a record or was changed after the run.
    """
    return read_record(folder(slug) / f"{name}.json")


def show(slug: str, name: str, setup: bool = True) -> None:
    """Display the provenance of a kept run and, with ``setup``, its set-up beside the paper's."""
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


def check_name(name: str) -> None:
    """Raise ``ValueError`` unless ``name``, a chapter's parameter ``keep``, is empty or a valid name of a kept run."""
    if not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"):
        raise ValueError(f"keep must consist of lowercase letters, digits and hyphens, got {name!r}")


def save(slug: str, name: str, results: dict[str, Any]) -> None:
    """Write ``results`` atomically as a kept run; raise ``OSError`` if the package's folder is not writable."""
    path = folder(slug) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, results, indent=None)
