"""The committed notebooks, run again cell by cell with nbval: marked cells must show what they showed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_book

from mvnb.runner import catalogue, execution
from mvnb.runner.kernel import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = catalogue.discover(ROOT)


def nbval(notebook: Path, root: Path) -> subprocess.CompletedProcess:
    """Run nbval over one notebook, in a process of its own, with the book's rules of comparison."""
    options = ["--nbval-lax", "--nbval-current-env", "-n0", "-p", "no:cacheprovider", "-q", "--color=no", f"--rootdir={root}"]
    command = [sys.executable, "-m", "pytest", *options, str(notebook)]
    return subprocess.run(command, cwd=root, env=ENVIRONMENT | os.environ, capture_output=True, text=True)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_notebook(chapter):
    done = nbval(chapter.notebook, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_measurement_passes_and_an_opposite_verdict_or_another_rule_fails(tmp_path):
    root = tiny_book.make(tmp_path / "book")
    shutil.copy(ROOT / "conftest.py", root)
    (tiny,) = catalogue.discover(root)
    execution.execute(tiny)
    committed = tiny.notebook.read_text()

    tiny.notebook.write_text(committed.replace("sum(values) / replicas", "1 + sum(values) / replicas"))
    assert committed != tiny.notebook.read_text()
    assert nbval(tiny.notebook, root).returncode == 0

    tiny.notebook.write_text(committed.replace("noise=noise", "noise=1 + noise"))
    failed = nbval(tiny.notebook, root)
    assert failed.returncode == 1 and "verdicts turned to their opposite: small-mean" in failed.stdout

    (root / "papers" / "tiny" / "claims.toml").write_text(tiny_book.CLAIMS.replace("noise < 1", "noise < 2"))
    tiny.notebook.write_text(committed)
    failed = nbval(tiny.notebook, root)
    assert failed.returncode == 1 and "mismatch 'text/plain'" in failed.stdout


DRAWS = """\
# %%
# NBVAL_CHECK_OUTPUT
from matplotlib import pyplot as plt

from mvnb import figures

figures.use_style()
fig, ax = plt.subplots()
ax.plot([1, 2, 3])
figures.show(fig, "A line.")

# %% [markdown]
# <a id="01-held-up"></a>
"""


def test_what_the_user_has_configured_changes_no_output(tmp_path, monkeypatch):
    """Start-up files that end the kernel or count in float64, a profile that displays each line, two files of Matplotlib's."""
    source = tiny_book.CHAPTER.replace('# %% [markdown]\n# <a id="01-held-up"></a>\n', DRAWS)
    (tiny,) = catalogue.discover(root := tiny_book.make(tmp_path / "book", source))
    shutil.copy(ROOT / "conftest.py", root)
    execution.execute(tiny)
    plain = tiny.notebook.read_bytes()

    (tmp_path / "ends.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "ends.py"))
    profile = tmp_path / "ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "counts.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\n")
    (profile / "ipython_config.py").write_text("c.InteractiveShell.ast_node_interactivity = 'all'\n")
    monkeypatch.setenv("IPYTHONDIR", str(profile.parent))
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path))
    execution.execute(tiny)
    assert tiny.notebook.read_bytes() == plain
    (tiny.source.parent / "matplotlibrc").write_text("lines.marker: x\n")  # found first, since the kernel works there
    execution.execute(tiny)
    assert tiny.notebook.read_bytes() == plain
    done = nbval(tiny.notebook, root)
    assert done.returncode == 0, done.stdout + done.stderr
