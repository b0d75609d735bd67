"""Results of runs too long for a chapter, which the package carries: ``papers/SLUG/kept/NAME.json``.

Beside the result stand its declaration ``NAME.toml`` and a script, and ``mvnb keep`` makes it from them.

The declaration has ``script``, the script's name; ``says``, what the run is in a line; ``not_run``, what was left out;
``[parameters]``, among them ``seed``, the first, and ``seeds``, how many; and for each line of the table that sets it beside
the paper a ``[[setup]]`` with ``what``, ``paper``, ``ours`` and ``why``; ``ours`` may hold parameters in braces. The claims
that it decides name it by their key ``kept``.

The script has two functions: ``run(seed, device, **parameters)`` gives the raw values of one seed, a dict that JSON can hold;
``beginning(seed, device, **parameters)`` the losses of its first 50 steps, by which a change of the core is noticed. A ``run``
that takes ``scratch`` is given a folder of its seed's own, in which it saves what a run that was interrupted goes on from.
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
    """A kept run as ``NAME.toml`` declares it, with the code of the script beside it as it was when this was read."""

    slug: str
    name: str
    script: Path
    code: str
    says: str
    not_run: list[str]
    parameters: dict[str, Any]
    setup: list[dict[str, str]]

    def _given(self) -> dict[str, Any]:
        """The parameters that every seed is given."""
        return {key: value for key, value in self.parameters.items() if key not in ("seed", "seeds")}

    def digest(self) -> str:
        """Return a digest of the script and what it is given, in 16 letters."""
        given = json.dumps(self._given(), sort_keys=True)
        return hashlib.sha256((self.code + given).encode()).hexdigest()[:16]

    def call(self, function: str, seed: int, device, scratch: Path | None = None) -> Any:
        """Return what the script's function ``run`` or ``beginning`` gives for one seed on a PyTorch device.

        ``scratch`` is a folder for the state of ``run``, made here if ``run`` takes one.
        """
        from mvnb.training import fold_seed

        script = {"__name__": self.script.stem, "__file__": str(self.script)}
        exec(compile(self.code, str(self.script), "exec"), script)
        called, given, seed = script[function], self._given(), fold_seed(seed)
        if scratch is None or "scratch" not in inspect.signature(called).parameters:
            return called(seed, device, **given)
        scratch.mkdir(parents=True, exist_ok=True)
        return called(seed, device, scratch=scratch, **given)

    def rules(self) -> dict[str, str]:
        """Return the rules, as they stand, of the claims that the run decides."""
        return {id: claim.rule.text for id, claim in claims.declared(self.slug).items() if claim.kept == self.name}


def folder(slug: str) -> Path:
    """Return the folder in which a paper's kept runs lie."""
    return PAPERS / slug / "kept"


def declared(slug: str) -> dict[str, Declared]:
    """Return the kept runs that a paper declares, by name.

    Raises
    ------
    RecordError
        For a file that is not TOML, keys that are missing, unknown or of the wrong type, and one without a script.
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
            raise RecordError(f"{name}: {key} is missing or of the wrong type")
    if unknown := table.keys() - _KEYS:
        raise RecordError(f"{name}: there is no key {min(unknown)!r}")
    if not {"seed", "seeds"} <= table["parameters"].keys():
        raise RecordError(f"{name}: the parameters must have seed and seeds")
    if any(not isinstance(line, dict) or line.keys() != set(COLUMNS) for line in table["setup"]):
        raise RecordError(f"{name}: a line of the set-up has {', '.join(COLUMNS)}")
    script = path.with_name(table["script"])
    if not script.is_file():
        raise RecordError(f"{name}: there is no script {table['script']} beside it")
    return Declared(slug, path.stem, code=script.read_text(encoding="utf-8"), **table | {"script": script})


def load(slug: str, name: str) -> dict[str, Any]:
    """Return a kept run by the chapter's slug, such as ``"nuclear_norm"``, and its own name.

    Raises
    ------
    OSError
        When there is none.
    RecordError
        When a value was changed after the run was made.
    """
    return read_record(folder(slug) / f"{name}.json")


def show(slug: str, name: str, setup: bool = True) -> None:
    """Display how a kept run was made, and its set-up beside the paper's."""
    from IPython.display import HTML, display

    one, record = declared(slug)[name], load(slug, name)
    display(HTML(_line(one, record) + (_setup(one, record) if setup else "")))


def _line(one: Declared, record: dict[str, Any]) -> str:
    runs = record["runs"]
    where = ", ".join(dict.fromkeys(run["hardware"] for run in runs))
    minutes = sum(run["seconds"] for run in runs) / 60
    seeds = f"seeds {runs[0]['seed']} to {runs[-1]['seed']}"
    said = (
        f"Kept run: {escape(one.says)}. <code>{escape(record['command'])}</code>, {seeds}, {escape(where)}, "
        f"{minutes:.0f} minutes in all, {max(run['finished'] for run in runs)[:10]}."
    )
    left = f" Not run: {escape('; '.join(one.not_run))}." if one.not_run else ""
    return f'<p class="mvnb-kept-run">{said}{left}</p>\n'


def _setup(one: Declared, record: dict[str, Any]) -> str:
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("", "paper", "ours", "why"))
    lines = []
    given = {key: ", ".join(map(str, v)) if isinstance(v, list) else v for key, v in record["parameters"].items()}
    for line in one.setup:
        cells = (line["paper"], line["ours"].format(**given), line["why"])
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(line["what"])}</th>{data}</tr>')
    body = "\n".join(lines)
    return (
        '<table class="mvnb-setup">\n<caption>Set-up beside the paper\'s</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def check_name(name: str) -> None:
    """Raise ``ValueError`` unless ``name``, a chapter's parameter ``keep``, can name a kept run, or is empty: keep nothing."""
    if not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"):
        raise ValueError(f"keep must be small letters, digits and hyphens, got {name!r}")


def save(slug: str, name: str, results: dict[str, Any]) -> None:
    """Keep ``results``, whole or not at all; ``OSError`` where the package's folder cannot be written to."""
    path = folder(slug) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, results, indent=None)
