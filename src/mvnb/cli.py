"""The command ``mvnb``: list, run, sweep and check the chapters, and build the book.

Exit status: 0 for success, 1 when a chapter, a claim or the site fails, 2 for a request that cannot be met (one line on
stderr, nothing written), 130 after an interrupt.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

try:
    import typer
    from typer.core import TyperCommand
except ModuleNotFoundError:  # the package alone is for notebooks
    sys.exit("mvnb: the command needs more than the package alone: pip install 'mvnb[run]'")

from mvnb import claims, verdicts
from mvnb.files import RecordError, write
from mvnb.runner import catalogue, derived, errors, execution, keeping, new, pairing, plans, sweeps

app = typer.Typer(
    name="mvnb",
    help="Executable papers on feature learning: run a chapter or sweep over it, check its claims, build the book.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_UsageError = typer.BadParameter.__mro__[1]

SomeChapters = Annotated[
    list[str] | None, typer.Argument(metavar="[CHAPTER]...", help="Number, slug or path; all chapters by default.")
]


Parameters = Annotated[list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="Replace a parameter; repeatable.")]
Preset = Annotated[str | None, typer.Option(help="Start from a named set of parameters.")]
Timeout = Annotated[float | None, typer.Option(min=0.001, help="Seconds that a cell of a notebook may take.")]
Memory = Annotated[float | None, typer.Option(min=0.001, help="GB that a run may allocate.")]
Anyway = Annotated[bool, typer.Option("--anyway", help="Run also what does not seem to fit the machine.")]


class _Command(TyperCommand):
    """A command that refuses an option given twice, of which the last would win."""

    def parse_args(self, ctx, args):
        given = [one for one in self.make_parser(ctx).parse_args(list(args))[2] if not getattr(one, "multiple", False)]
        for option in {one.name: one for one in given if given.count(one) > 1 and one.param_type_name == "option"}.values():
            raise _UsageError(f"{'/'.join(option.opts)} is given {given.count(option)} times; it takes one value")
        return super().parse_args(ctx, args)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # where the terminal's encoding has no such letter
    try:
        status = app(args=arguments or ["--help"], prog_name="mvnb", standalone_mode=False) or 0
    except _UsageError as error:
        return _complain(error.format_message(), 2)
    except (errors.ChapterError, claims.ClaimsError, RecordError) as error:
        return _complain(str(error), 2)
    except errors.CellFailed as error:
        return _complain(str(error), 1)
    except OSError as error:
        return _complain(f"{error.strerror}: {error.filename}" if error.filename else str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    return _complain("interrupted", 130) if status == 130 else status


def _complain(message: str, status: int) -> int:
    print(f"mvnb: {' '.join(message.split())}", file=sys.stderr)
    return status


def _limits(timeout: float | None, memory: float | None) -> dict[str, Any]:
    return {"timeout": timeout, "memory": None if memory is None else int(memory * 1e9)}


@app.command("list", cls=_Command)
def _list() -> None:
    """List the chapters with their presets and how many of their claims hold."""
    root = catalogue.find_root()
    presets = catalogue.presets(root)
    rows = [
        (chapter.number, chapter.slug, chapter.title, " ".join(presets.get(chapter.name, {})) or "-", _held(chapter))
        for chapter in catalogue.discover(root)
    ]
    print(verdicts.aligned(("no.", "chapter", "title", "presets", "claims held"), rows))


@app.command("run", cls=_Command)
def _run(
    chapter: Annotated[str, typer.Argument(help="Number, slug or path of the chapter.")],
    parameter: Parameters = None,
    preset: Preset = None,
    seed: Annotated[int | None, typer.Option(help="The same as -p seed=N.")] = None,
    timeout: Timeout = None,
    memory: Memory = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="PyTorch's threads; more than one only if so many cores are idle.")
    ] = None,
    html: Annotated[bool, typer.Option(help="Render the notebook as HTML, too.")] = True,
    output: Annotated[Path, typer.Option("-o", metavar="DIR", help="Where the results are written.")] = Path("runs"),
    anyway: Anyway = False,
) -> int:
    """Run a chapter, with other parameters if you like; the book itself is not touched.

    Exit status 1 when a claim holds that fails in the committed notebook or the other way, unless parameters other than
    seed, replicas and device were changed. HTML that cannot be rendered is told on stderr and changes no exit status.
    """
    found = _resolved(chapter)
    seeds = [] if seed is None else [f"seed={seed}"]
    values = _values(found, preset, [*(parameter or []), *seeds])
    if not anyway and (why := plans.refusal(found, values)):
        given = [f"--preset={preset}"] if preset else []
        given += [word for one in [*(parameter or []), *seeds] for word in ("-p", one)]
        asked = shlex.join(["mvnb", "plan", chapter, *given])
        raise errors.ChapterError(f"{why}; try other values with {asked}, or run it with --anyway")
    options = {"html": html, "progress": found.name, "threads": threads} | _limits(timeout, memory)
    result = execution.run(found, values, output, **options)
    for path in filter(None, (result.notebook, result.html, result.claims)):
        print(path)
    if result.unrendered:
        _complain(f"{found.name} could not be rendered as HTML: {result.unrendered}", 0)
    print(f"{result.seconds:.1f} s")
    if result.rows:
        print(f"\n{verdicts.table(result.rows)}")
        if values.keys() - {"seed", "replicas", "device"}:
            print("The rules were set for the default parameters, with any seed; with others a claim may rightly fail.")
            return 0
    return _opposites(found.name, verdicts.opposite(result.rows, _committed(found) if found.notebook.is_file() else []))


def _opposites(chapter: str, ids: list[str]) -> int:
    """Name claims with the opposite of the verdict that they had; exit status 1 if there are any."""
    for id in ids:
        _complain(f"{chapter}: {id} has the opposite of the verdict that it had", 1)
    return 1 if ids else 0


@app.command("plan", cls=_Command)
def _plan(
    chapter: Annotated[str, typer.Argument(help="Number, slug or path of the chapter.")],
    parameter: Parameters = None,
    preset: Preset = None,
) -> None:
    """Say what memory a run would need, to a factor of two, and how long the default parameters took; nothing is started."""
    found = _resolved(chapter)
    values = _values(found, preset, parameter or [])
    needed = plans.peak_bytes(found, values)
    if needed is None:
        raise errors.ChapterError(f"{found.name} has no formula for the memory that it needs")
    print(f"memory: {plans.gigabytes(needed)}")
    kept = derived.read_seconds(found.root) if found.root else {}
    if taken := kept.get("seconds", {}).get(found.number):
        machine = kept.get("machine", "an unknown machine")
        print(f"time: {taken} s with the default parameters, measured by mvnb book on {machine}")
    print("The time that other parameters take is not predicted.")
    if why := plans.refusal(found, values):
        print(f"does not fit: {why}")


@app.command("sweep", cls=_Command)
def _sweep(
    chapter: Annotated[str | None, typer.Argument(help="Number, slug or path of the chapter.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="NAME=A,B,C", help="Values, or FIRST:END for integers; repeatable.")
    ] = None,
    parameter: Parameters = None,
    preset: Preset = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Runs at once; one per core.")] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Use the workers of this Dask scheduler.")] = None,
    timeout: Timeout = None,
    memory: Memory = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Folder; runs/sweep-CHAPTER by default.")] = None,
    anyway: Anyway = False,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the sweep in a folder.")] = None,
    status: Annotated[Path | None, typer.Option(metavar="DIR", help="Say how far the sweep in a folder is.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Show on the scoreboard how often each claim held.")] = False,
) -> int:
    """Run a chapter over a grid of parameters; a second call does only what is missing."""
    if (resume or status) and (chapter or grid or parameter or preset or output):
        raise errors.ChapterError("--resume and --status take what they do from the folder; leave the rest out")
    if status:
        return _tell(sweeps.load(status), {})
    if resume:
        plan = sweeps.load(resume)
        pairing.refuse_edited([plan.chapter])
        asked = plan.chapter, plan.grid, plan.fixed, plan.folder
    else:
        if not chapter or not grid:
            raise errors.ChapterError("a sweep needs a chapter and at least one --grid")
        found = _resolved(chapter)
        values = sweeps.grid(found, grid)
        named = catalogue.preset(found, preset) if preset else {}
        fixed = {name: value for name, value in named.items() if name not in values} | found.parse(parameter or [])
        asked = found, values, fixed, output or Path("runs") / f"sweep-{found.name}"
    limits = _limits(timeout, memory)
    plan = sweeps.prepare(*asked, limits, anyway or dask is not None)  # the memory of a cluster's workers is not known
    missing, started = len(plan.missing()), time.monotonic()
    failed = sweeps.run(plan, limits, jobs, dask)
    found, ran, seconds = len(plan.cells) - missing, missing - len(failed), time.monotonic() - started
    print(f"{found} runs were there, {ran} ended well and {len(failed)} failed in {seconds:.0f} s")
    if keep:
        print(sweeps.keep(plan))
    return _tell(plan, failed)


def _tell(plan: sweeps.Sweep, errors: dict[str, str]) -> int:
    """Print how far a sweep is and what failed, also what left no record; status 1 when a run is missing or failed."""
    known = {address: record["error"] for address in plan.cells if (record := plan.record(address))} | errors
    failed = {address: error for address, error in known.items() if error}
    done = len(known) - len(failed)
    print(f"{plan.chapter.name}: {done} of {len(plan.cells)} runs done, {len(failed)} failed, in {plan.folder}")
    judged = {id: [counts[one] for one in verdicts.JUDGED] for id, counts in sweeps.verdicts_of(plan).items()}
    print(verdicts.aligned(("claim", "held"), [(id, f"{counts[0]} of {sum(counts)}") for id, counts in judged.items()]))
    for address, error in failed.items():
        _complain(f"{sweeps.named(plan.cells[address])}: {error}", 1)
    return 0 if done == len(plan.cells) else 1


@app.command("keep", cls=_Command)
def _keep(
    chapter: Annotated[str | None, typer.Argument(help="Number, slug or path of the chapter.")] = None,
    name: Annotated[str | None, typer.Argument(help="Name of one of its kept runs.")] = None,
    parameter: Parameters = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Seeds at once; one per core.")] = None,
    device: Annotated[str, typer.Option(help='"auto", "cpu" or a card.')] = "auto",
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Folder of the seeds that are finished.")] = None,
    status: Annotated[bool, typer.Option("--status", help="List the kept runs, and which are stale.")] = False,
) -> None:
    """Make a kept run of a chapter, seed by seed; a second call does only what is missing."""
    if status:
        return print(verdicts.aligned(("chapter", "name", "made", "state"), list(keeping.status(catalogue.discover()))))
    if chapter is None or name is None:
        raise errors.ChapterError("keep needs a chapter and the name of a kept run; mvnb keep --status lists them")
    print(keeping.make(catalogue.resolve(chapter), name, parameter or [], output, jobs, device))


@app.command("claims", cls=_Command)
def _claims(
    chapter: SomeChapters = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="How the claims are printed.")] = "table",
    against: Annotated[str | None, typer.Option(metavar="REF", help="A commit, whose verdicts are compared.")] = None,
) -> int:
    """Print the claims of the committed notebooks; with --against, exit status 1 when a verdict turned to its opposite."""
    chosen = _chosen(chapter)
    rows = {found: _committed(found) for found in chosen}
    for found in chosen:
        if (claims.PAPERS / found.slug / "claims.toml").is_file():  # a book of one's own keeps its claims elsewhere
            claims.declared(found.slug)
    every = [row for some in rows.values() for row in some]
    print(json.dumps(every, indent=1) if format == "json" else verdicts.table(every))
    if against is None:
        return 0
    turned = {found.name: verdicts.opposite(some, pairing.rows_at(found, against)) for found, some in rows.items()}
    return max([_opposites(name, ids) for name, ids in turned.items()], default=0)


@app.command("new", cls=_Command)
def _new(
    number: Annotated[str, typer.Argument(metavar="NN", help="Two digits that no chapter has.")],
    slug: Annotated[str, typer.Argument(help="Its name: lower-case words joined by underscores.")],
    part: Annotated[str | None, typer.Option(help="Caption in _toc.yml; the last that has chapters by default.")] = None,
) -> int:
    """Begin a chapter: sources, room, test and entries, as a small example that is run at once."""
    chapter = new.create(catalogue.find_root(), number, slug, part)
    print(f"{chapter.source}\nto be replaced piece by piece; CONTRIBUTING.md says how")
    return _book([number], site=False)


@app.command("book", cls=_Command)
def _book(
    chapter: SomeChapters = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Chapters at once; one per core.")] = None,
    site: Annotated[bool, typer.Option(help="Build the site, too.")] = True,
    again: Annotated[bool, typer.Option("--again", help="Run also what has not changed since it was run here.")] = False,
    take: Annotated[
        Literal["notebook", "source"] | None,
        typer.Option(help="Where both files of a chapter were edited: whose cells are kept."),
    ] = None,
) -> int:
    """Run the chapters that have changed, with their default parameters and in place, then build the site."""
    root = catalogue.find_root()
    found = _chosen(chapter)
    for stranger in (one for one in found if one.root is None):
        raise errors.ChapterError(f"{stranger.source} is not in {root / 'notebooks'}; to run it, use: mvnb run")
    for folder in (root, root / "notebooks"):
        if not os.access(folder, os.W_OK):
            raise errors.ChapterError(f"{folder} cannot be written to")
    if take is None:
        pairing.refuse_edited(found)
    for one in (one for one in found if take == "notebook" and pairing.edited(one)):
        pairing.take_notebook(one)
    found = _chosen(chapter)  # read anew
    kept = [] if again else [one for one in found if execution.up_to_date(one)]
    if len(kept) < len(found):
        print(f"running {len(found) - len(kept)} of {len(found)} chapters", file=sys.stderr)
    done = execution.execute_all([one for one in found if one not in kept], jobs)
    for result in done:
        if result.stderr:
            print(f"{result.chapter} wrote to stderr (left out of the notebook):\n{result.stderr}", file=sys.stderr)
    taken = {one.chapter[:2]: one.seconds for one in done if not one.error}
    if taken:
        derived.record_seconds(root, taken, len(catalogue.discover(root)), jobs)
    if (root / "_toc.yml").is_file() and (root / "README.md").is_file():
        write(root / "README.md", derived.readme_with_chapters(root))
    built = _build_site(root) if site else True
    rows = [(result.chapter, f"{result.seconds:.0f}", "failed" if result.error else _fraction(result.rows)) for result in done]
    rows = sorted(rows + [(one.name, "unchanged", _held(one)) for one in kept])
    print(verdicts.aligned(("chapter", "seconds", "claims held"), rows))
    for result in filter(lambda result: result.error, done):
        _complain(f"{result.chapter}: {result.error}", 1)
    turned = sum(_opposites(result.chapter, result.opposite) for result in done)
    if site and built:
        print(f"\nsite: {root / '_build' / 'html' / 'index.html'}")
    return 0 if built and not turned and not any(result.error for result in done) else 1


def _build_site(root: Path) -> bool:
    """Build the strict site; its output is shown only when it fails."""
    print("building the site", file=sys.stderr)
    shutil.rmtree(root / "_build" / "html", ignore_errors=True)  # what an older site left behind is not part of this one
    build = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
    options = ["build", str(root), "--all", "-W", "-n", "--keep-going"]
    command = [sys.executable, "-X", "utf8", "-c", build, *options]  # the site's extensions read files without saying how
    finished = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if finished.returncode:
        said = re.sub(r"\x1b\[[\d;]*m", "", f"{finished.stdout}\n{finished.stderr}")
        print(f"{said}\nmvnb: the site was not built", file=sys.stderr)
    return finished.returncode == 0


def _resolved(text: str) -> catalogue.Chapter:
    """The chapter meant, unless its notebook holds edits that a run of its source would pass over."""
    found = catalogue.resolve(text)
    pairing.refuse_edited([found])
    return found


def _values(chapter: catalogue.Chapter, preset: str | None, assignments: list[str]) -> dict[str, Any]:
    """The parameters that are asked for, those of a preset replaced by those that are given one by one."""
    values = chapter.parse(assignments)
    return values if preset is None else catalogue.preset(chapter, preset) | values


def _chosen(names: list[str] | None) -> list[catalogue.Chapter]:
    """The chapters named, each once, or all of them."""
    if names:
        return list(dict.fromkeys(catalogue.resolve(name) for name in names))
    return catalogue.discover()


def _committed(chapter: catalogue.Chapter) -> list[dict[str, Any]]:
    try:
        return claims.read(chapter.notebook)
    except FileNotFoundError:
        raise errors.ChapterError(f"{chapter.name} has not been executed; run: mvnb book {chapter.name}") from None
    except ValueError as error:
        raise errors.ChapterError(f"cannot read {chapter.notebook}: {error}") from None


def _held(chapter: catalogue.Chapter) -> str:
    return _fraction(_committed(chapter)) if chapter.notebook.is_file() else "not executed"


def _fraction(rows) -> str:
    return f"{verdicts.counts(rows)['holds']}/{len(rows)}"


if __name__ == "__main__":
    sys.exit(main())
