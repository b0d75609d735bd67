"""Nothing hangs on the last bits: the profiles change them, what hangs on them is noticed, and what the book tests holds."""

import os
from pathlib import Path

import arithmetic
import elsewhere
import numpy as np
import pytest
import tiny_book
import torch
from rounding import rounding
from scipy.spatial.distance import pdist, squareform

from mvnb.runner import catalogue

ROOT = Path(__file__).resolve().parents[2]
BITS = """
# %%
# NBVAL_CHECK_OUTPUT
import hashlib

import numpy as np
import torch

g = torch.Generator().manual_seed(0)
a, b = torch.randn(400, 700, generator=g), torch.randn(700, 300, generator=g)
print(*(hashlib.sha256(np.ascontiguousarray(product)).hexdigest() for product in ({products})))
"""
TORCH, NUMPY = "(a @ b).numpy(),", "a.numpy() @ b.numpy(), np.einsum('ij,jk->ik', a.numpy(), b.numpy(), optimize=True)"


def tiny(folder, cell, name="01_tiny"):
    """The tiny chapter with one more cell behind its parameters, in a book of its own."""
    mark = '# %% [markdown]\n# <a id="01-question"></a>'
    assert mark in tiny_book.CHAPTER
    (chapter,) = catalogue.discover(tiny_book.make(folder / "book", tiny_book.CHAPTER.replace(mark, f"{cell}\n{mark}")))
    return chapter


@pytest.fixture
def under(tmp_path, monkeypatch):
    """Runs a chapter under several profiles: what is found, by profile."""
    monkeypatch.setattr(arithmetic, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(arithmetic, "ROOT", tmp_path)
    return lambda chapter, *profiles: {name: arithmetic.run(chapter, name) for name in ("plain", *profiles)}


@pytest.mark.parametrize(
    ("profile", "products"), [("other", TORCH + NUMPY), ("two threads", NUMPY), ("rounding", TORCH + NUMPY)], ids=str
)
def test_a_profile_changes_the_bits_of_products(under, tmp_path, profile, products):
    if profile == "two threads" and (os.cpu_count() or 1) < 2:
        pytest.skip("there is one processor")
    found = under(tiny(tmp_path, BITS.format(products=products)), profile)
    plain, other = (found[name]["compared"][0].split() for name in ("plain", profile))
    assert len(plain) == len(other) >= 2
    if profile != "rounding" and plain == other:
        pytest.skip("the arithmetic of this machine is that of the profile")
    assert profile != "rounding" or not set(plain) & set(other)
    assert arithmetic.objections(arithmetic.summary(found)) == [f"{profile}: a compared output differs"]


MIXED = """
try:
    torch.ones(2, device="cuda") + torch.ones(2)
except Exception as error:
    print(error)
"""


def test_elsewhere_products_are_moved_and_devices_kept_apart(under, tmp_path, monkeypatch):
    """Both in one kernel, as the smoke presets are run."""
    monkeypatch.setitem(arithmetic.PROFILES, "elsewhere", {})
    monkeypatch.setitem(arithmetic.STARTUP, "elsewhere", [elsewhere.ROUNDING, elsewhere.CARD])
    found = under(tiny(tmp_path, BITS.format(products=TORCH + NUMPY) + MIXED), "elsewhere")
    plain, there = (found[name]["compared"][0].splitlines() for name in ("plain", "elsewhere"))
    assert not set(plain[0].split()) & set(there[0].split()) and "same device" in there[1]


def test_rounding_is_of_one_unit_in_the_last_place_follows_its_seed_and_ends():
    a, b = torch.randint(1, 9, (50, 40)).float(), torch.randint(1, 9, (40, 30)).float()
    exact = a @ b  # of whole numbers, whatever the order of the sum
    with rounding(1):
        first, array = a @ b, a.numpy() @ b.numpy()
    with rounding(1):
        assert torch.equal(a @ b, first)
    with rounding(2):
        assert not torch.equal(a @ b, first)
    for moved in (first, torch.tensor(array)):
        assert 0 < ((moved - exact).abs() / exact.abs()).max() < 3 * torch.finfo(torch.float32).eps
    assert torch.equal(a @ b, exact) and (a.numpy() @ b.numpy() == array).mean() < 0.1


def test_rounding_reaches_gradients_vectorised_programs_and_convolutions_and_leaves_zeros():
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)

    def results():
        gradient = torch.autograd.grad((x @ weight).square().sum(), weight)[0]
        many = torch.func.vmap(torch.mm)(torch.stack([x, x]), torch.stack([x, x]))
        image = torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2])
        return gradient, many, image, torch.stack([x]).numpy().dot(np.ones(4, np.float32))

    plain = results()
    with rounding(0):
        moved = results()
        assert not (torch.zeros(3, 3) @ torch.randn(3, 3)).any()
    assert [bool((torch.as_tensor(a) != torch.as_tensor(b)).any()) for a, b in zip(plain, moved)] == [True] * 3 + [False]


def test_a_product_taken_for_symmetric_is_noticed():
    """Distances from cosines, as a chapter once had them: the square root near zero makes 1e-8 of a last bit."""
    unit = torch.nn.functional.normalize(torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    with rounding(0):
        distance = (2 - 2 * (unit @ unit.T)).clamp(min=0).sqrt().fill_diagonal_(0)
        with pytest.raises(ValueError, match="symmetric"):
            squareform(distance.numpy() / 1e-8)
        squareform(pdist(unit.numpy()))


SABOTAGE = r"""
# %%
from pathlib import Path

import torch

from mvnb import claims

g = torch.Generator().manual_seed(0)
# Products of small integers are exact in any order of adding.
a, b = (torch.randint(-9, 10, shape, generator=g).double() for shape in ((3, 40), (40, 5)))
limit = (a @ b).sum()
verdicts = {
    "exact-comparison": torch.equal(a @ b, a @ b),
    "taken-for-symmetric": torch.equal(b.mT @ b, (b.mT @ b).mT),
    "at-the-edge-of-its-limit": all((a @ b).sum() >= limit for _ in range(50)),
    "innocent": all((a @ b).sum() >= limit - 1e-3 for _ in range(50)),
}
same = 'source = "x"\norigin = "ours"\nsays = "x"\nkind = "exact"\nunit = "x"\nholds = "value == 1"\n'
file = Path("claims.toml").resolve()
file.write_text("".join(f"[{id}]\n{same}" for id in verdicts))
bad = claims.Ledger(file)
for id, holds in verdicts.items():
    bad.exact(id, holds)
bad.show()
"""


def test_what_hangs_on_the_last_bits_is_noticed(under, tmp_path):
    found = under(tiny(tmp_path, SABOTAGE), "rounding")
    assert all(row["verdict"] == "holds" for row in found["plain"]["rows"])
    turned = arithmetic.summary(found)["profiles"]["rounding"]["turned"]
    assert [text.split(":")[0] for text in turned] == ["exact-comparison", "taken-for-symmetric", "at-the-edge-of-its-limit"]


def test_a_failed_run_is_told(under, tmp_path):
    found = under(tiny(tmp_path, "# %%\n1 / 0\n"), "rounding")
    assert len(arithmetic.objections(arithmetic.summary(found))) == 2


def test_the_report_is_of_the_book_as_it_is():
    """Every chapter and claim is in it, and no verdict turned."""
    report = arithmetic.read()
    assert set(report["profiles"]) == set(arithmetic.PROFILES)
    assert report["chapters"].keys() == {chapter.name for chapter in catalogue.discover(ROOT)}
    assert not [said for one in report["chapters"].values() for said in arithmetic.objections(one)]
