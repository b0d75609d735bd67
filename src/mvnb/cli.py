"""The command ``mvnb``: list, run, compare, sweep and check the chapters, and build the book.

The exit status is 0 for success, 1 if a run or the site build fails or the verdict of a claim is reversed, 2 for an invalid
request (reported in one line on stderr, without writing a file), 130 after an interrupt, and 143 after a SIGTERM.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

try:
    import typer
    from typer.core import TyperCommand
except ModuleNotFoundError:  # notebooks do not need these
    sys.exit("mvnb: the command requires the extra 'run'; install it with: pip install 'mvnb[run]'")

from mvnb import __version__, claims, verdicts
from mvnb.files import RecordError, write
from mvnb.runner import catalogue, derived, errors, execution, hosts, keeping, kernel, new, pairing, sweeps

app = typer.Typer(
    name="mvnb",
    help="Executable papers on feature learning: run chapters and parameter sweeps, check claims, and build the book.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_UsageError = typer.BadParameter.__mro__[1]


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {value}")
    return value


SomeChapters = Annotated[
    list[str] | None, typer.Argument(metavar="[CHAPTER]...", help="Number, slug or path of a chapter; all chapters by default.")
]


Parameters = Annotated[list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="Set a parameter; may be repeated.")]
Preset = Annotated[str | None, typer.Option(help="Name of a predefined set of parameters.")]
Timeout = Annotated[float | None, typer.Option(min=0.001, max=1e8, callback=_finite, help="Time limit per cell, in seconds.")]
Memory = Annotated[float | None, typer.Option(min=0.001, max=1e6, callback=_finite, help="Memory limit per run, in GB.")]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Number of parallel runs; one per core by default.")]
Output = Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Folder for the results; one in runs/ by default.")]
Changed = Annotated[bool, typer.Option("--changed", help="Print only the claims whose verdict, value, rule or origin differs.")]


class _Command(TyperCommand):
    """Command that rejects empty values, and repeated options that take a single value; click would use the last value."""

    def parse_args(self, ctx, args):
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        for one in order:
            if "" in (value := values[one.name], *(value if isinstance(value, list | tuple) else ())):
                raise _UsageError(f"expected a value of {'/'.join(one.opts)}, got an empty one")
        given = [one for one in order if not getattr(one, "multiple", False)]
        for option in {one.name: one for one in given if given.count(one) > 1 and one.param_type_name == "option"}.values():
            raise _UsageError(f"{'/'.join(option.opts)} is given {given.count(option)} times; it takes one value")
        return super().parse_args(ctx, args)


def main(arguments: list[str] | None = None) -> int:
    """Run ``mvnb`` with ``arguments``, by default those of the process, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with _streams(), _ending_as_interrupt() as received:
        try:
            if wrong := next((one for one in arguments if re.search("[\ud800-\udfff]", one)), ""):
                raise errors.ChapterError(f"expected arguments in {sys.getfilesystemencoding()}, got {os.fsencode(wrong)}")
            status = app(args=arguments or ["--help"], prog_name="mvnb", standalone_mode=False) or 0
            sys.stdout.flush()
            if status == 130:  # from typer, after an interrupt
                raise KeyboardInterrupt
        except _UsageError as error:
            return _print_error(error.format_message(), 2)
        except (errors.ChapterError, claims.ClaimsError, RecordError) as error:
            return _print_error(str(error), 2)
        except errors.CellFailed as error:
            return _print_error(str(error), 1)
        except OSError as error:
            return _print_error(f"{error.strerror}: {error.filename}" if error.filename else str(error), 1)
        except (KeyboardInterrupt, typer.Abort) as interrupt:
            return _print_error("; ".join(["interrupted", *interrupt.args]), 128 + (received or [signal.SIGINT])[0])
        except Exception as error:
            if os.environ.get("MVNB_TRACEBACK"):
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}, line {place.lineno}; MVNB_TRACEBACK=1 shows more"
            return _print_error(f"unexpected {type(error).__name__}: {error} ({where})", 1)
    return status


class _Stream:
    """Output stream that drops the rest of its output after an error of the class ``dropped``."""

    def __init__(self, stream, dropped: type[OSError]):
        self._stream, self._dropped = stream, dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call, *arguments) -> None:
        try:
            call(*arguments)
        except self._dropped:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # what is buffered goes there, too


@contextmanager
def _streams() -> Iterator[None]:
    """Let commands go on if nothing reads their output, as after ``head``, or if messages cannot be written."""
    before = sys.stdout, sys.stderr
    for number, name, dropped in ((1, "stdout", BrokenPipeError), (2, "stderr", OSError)):
        if (stream := getattr(sys, name)) is None:  # the caller has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            os.set_inheritable(number, True)
            stream = open(number, "w", encoding="utf-8", closefd=False)
        if hasattr(stream, "reconfigure"):  # not in a notebook
            stream.reconfigure(errors="backslashreplace")  # for letters that the terminal's encoding lacks
        setattr(sys, name, _Stream(stream, dropped))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextmanager
def _ending_as_interrupt() -> Iterator[list[int]]:
    """Treat signals by which others ask this process to end as Ctrl-C in the block; yield a list of those received."""
    received: list[int] = []
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in (getattr(signal, name) for name in names) if signal.getsignal(number) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
        numbers = []

    def end(number, _) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    handlers = {number: signal.signal(number, end) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _print_error(message: str, status: int) -> int:
    print(f"mvnb: {' '.join(message.split())}", file=sys.stderr)
    return status


def _print_table(columns: tuple[str, ...], lines: list[tuple[str, ...]], titles: Iterable[str] = ()) -> None:
    print(verdicts.aligned(columns, lines, _width(), titles))


def _width() -> int | None:
    """Return the width of the terminal; None if the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print_version(asked: bool) -> None:
    if asked:
        print(f"mvnb {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Declare the options that ``mvnb`` accepts before a subcommand."""


@app.command("list", cls=_Command)
def _list() -> None:
    """List the chapters, their presets and how many claims hold."""
    root = catalogue.find_root()
    presets = catalogue.presets(root)
    rows = [
        (chapter.number, chapter.slug, chapter.title, " ".join(presets.get(chapter.name, {})) or "-", _held(chapter))
        for chapter in catalogue.discover(root)
    ]
    _print_table(("no.", "chapter", "title", "presets", "claims held"), rows)


@app.command("run", cls=_Command)
def _run(
    chapter: Annotated[str, typer.Argument(help="Number, slug or path of the chapter.")],
    parameter: Parameters = None,
    preset: Preset = None,
    timeout: Timeout = None,
    memory: Memory = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Number of PyTorch threads; use more than one only if as many cores are idle."),
    ] = None,
    output: Output = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run of the chapter in the folder.")] = False,
) -> int:
    """Run a chapter and print the claims that differ from the book.

    The cell tagged "parameters" in notebooks/NN_slug.py lists the parameters with their meaning and range. The device is one
    of them: -p device=cuda.

    The book is not changed. If the folder already holds the same run, its results are printed again.

    The exit status is 1 if the verdict of a claim is the opposite of that in the committed notebook, unless parameters other
    than seed, replicas and device were changed.
    """
    found = _resolved(chapter)
    given, named = found.parse(parameter or []), catalogue.preset(found, preset) if preset else {}
    values, folder = named | given, output or execution.default_folder(found, preset, named, given)
    result = None if force else execution.finished(found, values, folder)
    if result:
        print(f"{folder} already holds this run; repeat it with --force")
    else:
        label = f"{found.name}{execution.last_time(found, folder)}"
        options = {"progress": label, "threads": threads, "timeout": timeout, "memory": memory and int(memory * 1e9)}
        result = execution.run(found, values, folder, replace=force, **options)
    print(f"{result.notebook}\n{result.claims}\n{result.seconds:.1f} s")
    if not result.rows:
        return 0
    committed = _committed(found) if found.notebook.is_file() else []
    print()
    if committed:
        _print_changes(committed, result.rows, ("committed", "this run"), "the committed notebook")
    print(verdicts.tally(result.rows) if committed else verdicts.table(result.rows, _width()))
    if values.keys() - {"seed", "replicas", "device"}:
        print("The claims were stated for the default parameters and any seed; with other parameters, a claim may fail.")
        return 0
    return _report_reversed(found.name, verdicts.opposite(result.rows, committed))


def _print_changes(before: list, after: list, names: tuple[str, str], reference: str, every: bool = False) -> None:
    """Print the claims that differ between two runs, or ``every`` claim; say so if none differ or no verdict was reversed."""
    moved = verdicts.moved(before, after)
    if moved or every:
        ids = dict.fromkeys(row["id"] for row in [*before, *after]) if every else moved
        print(verdicts.side_by_side(before, after, names, ids, _width()))
    if not moved:
        print(f"No verdict, value, rule or origin differs from {reference}.")
    elif not verdicts.opposite(before, after):
        print("No verdict was reversed.")


def _report_reversed(chapter: str, ids: list[str]) -> int:
    """Report each claim with a reversed verdict on stderr; return status 1 if there are any, else 0."""
    for id in ids:
        _print_error(f"{chapter}: the verdict of {id} was reversed", 1)
    return 1 if ids else 0


@app.command("compare", cls=_Command)
def _compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Folder or notebook of a run, or a chapter for its committed one.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another run of the same chapter.")],
    changed: Changed = False,
) -> None:
    """Compare the parameters, verdicts and values of two runs."""
    names, runs = (first, second), [_run_in(text) for text in (first, second)]
    if runs[0].name != runs[1].name:
        raise errors.ChapterError(f"expected two runs of one chapter, got {runs[0].name} and {runs[1].name}")
    before, after = map(execution.parameters, runs)
    differ = [name for name in before | after if before.get(name) != after.get(name)]
    lines = [(name, *(str(one.get(name, "–")) for one in (before, after))) for name in differ]
    if lines:
        _print_table(("parameter", *names), lines)
    print("" if lines else "All parameters are equal.\n")
    _print_changes(*map(_committed, runs), names, first, not changed)


def _run_in(text: str) -> catalogue.Chapter:
    """Return the chapter whose notebook holds a run: the one in a folder, or else the one that ``text`` identifies."""
    folder = Path(text)
    if not folder.is_dir():
        return catalogue.resolve(text)
    notebooks = [path for path in folder.glob("*.ipynb") if not path.name.endswith(".partial.ipynb")]
    if len(notebooks) != 1:
        raise errors.ChapterError(f"expected one finished notebook in {folder}, got {len(notebooks)}")
    return catalogue.resolve(str(notebooks[0]))


@app.command("sweep", cls=_Command)
def _sweep(
    chapter: Annotated[str | None, typer.Argument(help="Number, slug or path of the chapter.")] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="NAME=A,B,C", help="Values, or FIRST:END for integers; may be repeated.")
    ] = None,
    parameter: Parameters = None,
    preset: Preset = None,
    jobs: Jobs = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on the workers of this Dask scheduler.")] = None,
    timeout: Timeout = None,
    memory: Memory = None,
    output: Output = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the sweep in this folder.")] = None,
    status: Annotated[Path | None, typer.Option(metavar="DIR", help="Print the progress of the sweep in this folder.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Record how often each claim held, for the scoreboard.")] = False,
) -> int:
    """Run a chapter at every point of a parameter grid.

    A repeated call only runs the missing points.
    """
    if (resume or status) and (chapter or grid or parameter or preset or output):
        raise errors.ChapterError("--resume and --status cannot be combined with a chapter, --grid, -p, --preset or -o")
    if status and (resume or keep):
        raise errors.ChapterError("--status cannot be combined with --resume or --keep")
    if status:
        return _print_progress(sweeps.load(status), {})
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
    limits = {"timeout": timeout, "memory": memory and int(memory * 1e9)}
    plan = sweeps.prepare(*asked, limits)
    missing, started = len(plan.missing()), time.monotonic()
    try:
        failed = sweeps.run(plan, limits, jobs, dask)
    except KeyboardInterrupt:
        command = shlex.join(["mvnb", "sweep", "--resume", str(asked[-1])])
        raise typer.Abort(f"continue with: {command}") from None
    reused, succeeded, seconds = len(plan.cells) - missing, missing - len(failed), time.monotonic() - started
    print(f"{reused} runs reused, {succeeded} succeeded and {len(failed)} failed in {seconds:.0f} s")
    if keep:
        print(sweeps.keep(plan))
    return _print_progress(plan, failed)


def _print_progress(plan: sweeps.Sweep, errors: dict[str, str]) -> int:
    """Print the progress and failures of a sweep, including the unrecorded ``errors``; return status 0 if all runs are done."""
    running = plan.running()
    known = {address: record["error"] for address in plan.cells if (record := plan.record(address))} | errors
    failed = {address: error for address, error in known.items() if error}
    done = len(known) - len(failed)
    counted = f"{done} of {len(plan.cells)} runs done, {len(failed)} failed, {len(running)} running"
    print(f"{plan.chapter.name}: {counted}, in {plan.folder}")
    for address in running:
        print(f"running: {plan.name(address)}")
    rows = plan.claims()
    counts = [(f"  {id}", *(str(verdicts.counts(some)[one]) for one in verdicts.JUDGED)) for id, some in rows.items()]
    _print_table(("claim", *verdicts.JUDGED), counts, [verdicts.plain(some[0]["says"]) for some in rows.values()])
    for address, error in failed.items():
        _print_error(f"{plan.name(address)}: {error}", 1)
    return 0 if done == len(plan.cells) else 1


@app.command("keep", cls=_Command)
def _keep(
    chapter: Annotated[str | None, typer.Argument(help="Number, slug or path of the chapter.")] = None,
    name: Annotated[str | None, typer.Argument(help="Name of a kept run of the chapter.")] = None,
    parameter: Parameters = None,
    jobs: Jobs = None,
    device: Annotated[str, typer.Option(help='"auto", "cpu" or a GPU such as "cuda".')] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Keep the result of other parameters than declared.")] = False,
    status: Annotated[bool, typer.Option("--status", help="List the kept runs and show which are stale.")] = False,
    renew: Annotated[bool, typer.Option("--renew", help="Show by a short run that later code gives equal values.")] = False,
) -> None:
    """Make a kept run, a long computation stored with its chapter.

    A repeated call only runs the missing seeds. With -p, the result is written to the folder of its seeds, as a pilot.
    With --renew, a result that a change of the code has made stale becomes valid again if a short run gives the same values
    to the last bit with the code of the last commit for which it was valid and with the code as it is now.
    """
    if status and (chapter or parameter or force or renew):
        raise errors.ChapterError("--status cannot be combined with a chapter, -p, --force or --renew")
    if status:
        return _print_table(("chapter", "name", "made", "state"), list(keeping.status(catalogue.discover())))
    if chapter is None or name is None:
        raise errors.ChapterError("keep needs a chapter and the name of a kept run; mvnb keep --status lists them")
    if renew and (parameter or force):
        raise errors.ChapterError("--renew cannot be combined with -p or --force")
    found = catalogue.resolve(chapter)
    print(keeping.renew(found, name, device) if renew else keeping.make(found, name, parameter or [], jobs, device, force))


@app.command("claims", cls=_Command)
def _claims(
    chapter: SomeChapters = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="Output format.")] = "table",
    against: Annotated[str | None, typer.Option(metavar="REF", help="Git commit to compare the claims with.")] = None,
    changed: Changed = False,
) -> int:
    """Print the claims of the committed notebooks.

    With --against, they are printed beside those of another commit.

    The exit status is 1 if a verdict was reversed since that commit. --changed without --against compares with HEAD.
    """
    rows = {found: _committed(found) for found in _chosen(chapter)}
    against = "HEAD" if changed and against is None else against
    earlier = {found: pairing.rows_at(found, against) if against else [] for found in rows}
    if format == "json":
        ids = {found: verdicts.moved(earlier[found], some) for found, some in rows.items()}
        chosen_rows = [row for found, some in rows.items() for row in some if not changed or row["id"] in ids[found]]
        print(json.dumps(chosen_rows, indent=1))
    elif against:
        _print_changes(_joined(earlier), _joined(rows), (against, "now"), f"{against} in the notebooks", not changed)
    else:
        print(verdicts.table(_joined(rows), _width()))
    reversed_ids = {found.name: verdicts.opposite(some, earlier[found]) for found, some in rows.items()}
    return max([_report_reversed(name, ids) for name, ids in reversed_ids.items()], default=0)


def _joined(rows: dict[catalogue.Chapter, list]) -> list:
    """Return the rows of all chapters; if there are several, the ids are preceded by the chapter's number."""
    if len(rows) == 1:
        return next(iter(rows.values()))
    return [row | {"id": f"{found.number or found.name} {row['id']}"} for found, some in rows.items() for row in some]


@app.command("new", cls=_Command)
def _new(
    number: Annotated[str, typer.Argument(metavar="NN", help="Number of the chapter: one or two digits, not yet in use.")],
    slug: Annotated[str, typer.Argument(help="Lower-case words joined by underscores.")],
) -> int:
    """Create a chapter with a small example, and run it.

    The files are the notebook, the paper's package with its claims, and a test. _toc.yml (in its last part), presets.yml,
    README.md and results/seconds.json get an entry.
    """
    chapter = new.create(catalogue.find_root(), number, slug)
    print(f"{chapter.source}\nReplace the example step by step, as CONTRIBUTING.md describes.")
    return _book([chapter.number], site=False)


@app.command("book", cls=_Command)
def _book(
    chapter: SomeChapters = None,
    jobs: Jobs = None,
    site: Annotated[bool, typer.Option(help="Also build the site.")] = True,
    again: Annotated[bool, typer.Option("--again", help="Also run unchanged chapters.")] = False,
    take: Annotated[
        Literal["notebook", "source"] | None,
        typer.Option(help="File whose cells to keep if an edited notebook differs from its source."),
    ] = None,
) -> int:
    """Run changed chapters with their defaults, then build the site."""
    root = catalogue.find_root()
    found = _chosen(chapter)
    for outside in (one for one in found if one.root is None):
        raise errors.ChapterError(f"{outside.source} is not in {root / 'notebooks'}; to run it, use: mvnb run")
    for folder in (root, root / "notebooks"):
        if not os.access(folder, os.W_OK):
            raise errors.ChapterError(f"{folder} is not writable")
    derived.read_seconds(root), hosts.repository(root)  # raise ChapterError now rather than after the runs
    if (root / "_toc.yml").is_file():
        catalogue.parts(root, found)
    if take is None:
        pairing.refuse_edited(found)
    for one in (one for one in found if take == "notebook" and pairing.edited(one)):
        pairing.take_notebook(one)
    every, found = catalogue.discover(root), _chosen(chapter)  # with the sources as they are now
    kept = [] if again else [one for one in found if execution.up_to_date(one)]
    if len(kept) < len(found):
        print(f"running {len(found) - len(kept)} of {len(found)} chapters", file=sys.stderr)
    done = execution.execute_all([one for one in found if one not in kept], jobs)
    for result in done:
        if result.stderr:
            print(f"{result.chapter} wrote to stderr (left out of the notebook):\n{result.stderr}", file=sys.stderr)
    taken = {one.chapter[:2]: one.seconds for one in done if not one.error}
    if taken:
        derived.record_seconds(root, taken, len(every), jobs)
    if (root / "_toc.yml").is_file() and (root / "README.md").is_file():
        write(root / "README.md", derived.updated_readme(root, [*every, *found]))
    built = _build_site(root) if site else True
    rows = [(result.chapter, f"{result.seconds:.0f}", "failed" if result.error else _fraction(result.rows)) for result in done]
    rows = sorted(rows + [(one.name, "unchanged", _held(one)) for one in kept])
    _print_table(("chapter", "seconds", "claims held"), rows)
    for result in filter(lambda result: result.error, done):
        _print_error(f"{result.chapter}: {result.error}", 1)
    reversed_chapters = sum(_report_reversed(result.chapter, result.opposite) for result in done)
    if site and built:
        print(f"\nsite: {root / '_build' / 'html' / 'index.html'}")
    return 0 if built and not reversed_chapters and not any(result.error for result in done) else 1


def _build_site(root: Path) -> bool:
    """Build the site, treating warnings as errors, and return whether it succeeded; print the output only on failure."""
    print("building the site", file=sys.stderr)
    shutil.rmtree(root / "_build" / "html", ignore_errors=True)  # an older site may leave files behind
    build = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
    options = ["build", str(root), "--all", "-W", "-n", "--keep-going"]
    command = [sys.executable, "-X", "utf8", "-c", build, *options]  # some of the site's extensions name no encoding
    finished = subprocess.run(command, env=kernel.inherited(), capture_output=True, encoding="utf-8", errors="replace")
    if finished.returncode:
        output = re.sub(r"\x1b\[[\d;]*m", "", f"{finished.stdout}\n{finished.stderr}")
        print(f"{output}\nmvnb: the site could not be built", file=sys.stderr)
    return finished.returncode == 0


def _resolved(text: str) -> catalogue.Chapter:
    """Return the chapter; raise ``ChapterError`` if its notebook has edits that a run of the source would ignore."""
    found = catalogue.resolve(text)
    pairing.refuse_edited([found])
    return found


def _chosen(names: list[str] | None) -> list[catalogue.Chapter]:
    """Return the named chapters without duplicates, or all chapters if no names are given."""
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
