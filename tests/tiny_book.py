"""A book of one small chapter that keeps every rule of the real ones; tests run it, and break it one rule at a time."""

from pathlib import Path

NAME = "01_tiny"

HEADER = """\
# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

"""

PARAMETERS = """\
# %% tags=["parameters"]
seed = 0  # seed of every random number (integer, 0 or more)
replicas = 4  # independent runs (1 or more)
device = "auto"  # "auto", "cpu" or "cuda"
noise = 0.5  # standard deviation (0 or more)
exact = True  # whether to use the closed form
widths = [8, 16]  # hidden units (1 or more)
interval = [0.1, 2.0]  # ends of what is drawn (0 or more)

"""

CHAPTER = (
    HEADER
    + """\
# %% [markdown]
# # A tiny chapter
#
# Three sentences ([Zhang et al., 2018](../book/references.bib#zhang2018mixup)) and a picture.

"""
    + PARAMETERS
    + """\
# %% [markdown]
# <a id="01-question"></a>
# ## Why this
#
# <a id="01-world"></a>
# ## What is drawn
#
# <a id="01-model"></a>
# ## What learns
#
# $$
# y = \\sum_i x_i
# $$ (eq-tiny)
#
# <a id="01-derivation"></a>
# ## Why it works
#
# :::{prf:theorem} Sums
# :label: thm-tiny
# See {eq}`eq-tiny`.
# :::
#
# :::{prf:proof}
# Count.
# :::
#
# <a id="01-experiments"></a>
# ## What happens

# %%
import base64
import random
from pathlib import Path

from IPython.display import display

from mvnb import claims, training

seed = training.fold_seed(seed)
draws = random.Random(seed)
values = [draws.gauss(0, noise) for _ in range(replicas)]
print(f"{len(values)} values, the first {values[0]:.3f}")

# %%
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
figure = {"image/png": PNG, "text/plain": "a figure"}
display(figure, raw=True, metadata={"image/png": {"alt": "One blue dot."}})

# %% [markdown]
# <a id="01-held-up"></a>
# ## What held up

# %%
# NBVAL_CHECK_OUTPUT
ledger = claims.Ledger(Path("../papers/tiny/claims.toml"))
ledger.exact("small-mean", sum(values) / replicas, noise=noise)
ledger.show()

# %% [markdown]
# <a id="01-not-run"></a>
# ## What is not run
#
# <a id="01-try"></a>
# ## Try it
#
"""
    + "".join(
        f"""\
# :::{{exercise}}
# :label: ex-tiny-{n}
# Do it.
# :::
#
# :::{{solution}} ex-tiny-{n}
# :class: dropdown
# Done.
# :::
#
"""
        for n in (1, 2, 3)
    )
    + """\
# <a id="01-further"></a>
# ## Further reading
"""
)

PRESETS = """\
01_tiny:
  smoke: {replicas: 2}
  paper: {replicas: 1000, noise: 1}
  unknown: {replica: 3}
  mistyped: {replicas: many}
"""

CLAIMS = """\
[small-mean]
source = "Theorem 1"
origin = "paper"
headline = true
says = "The mean is small"
kind = "scaled"
unit = "mean over runs"
holds = "value < 100 and noise < 1"
reason = "the noise is too large"
"""

BROKEN = """\
# %% tags=["parameters"]
seconds = 0.0  # how long to sleep

# %%
import time
print("asleep", flush=True)
time.sleep(seconds)

# %%
# This cell fails.
1 / 0
"""


def make(root: Path, chapter: str = CHAPTER) -> Path:
    """Write the book under ``root`` and return it."""
    (root / "notebooks").mkdir(parents=True)
    (root / "notebooks" / f"{NAME}.py").write_text(chapter)
    (root / "presets.yml").write_text(PRESETS)
    (root / "papers" / "tiny").mkdir(parents=True)
    (root / "papers" / "tiny" / "claims.toml").write_text(CLAIMS)
    return root
