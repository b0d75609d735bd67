"""The benchmarks measure contenders that do the same work, and the report says what was measured. Nothing is timed here."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import contenders
import pytest
import report
import tasks
import torch

from mvnb import losses

TINY = {
    "ERM, small": partial(tasks.multi_view, 2, n=6, n_classes=3, n_filters=2),
    "ERM, medium": partial(tasks.gaussian, 2, n_classes=3, n_filters=2, n=6, patches=3, dim=8),
    "ERM, large and dense": partial(tasks.gaussian, 1, n_classes=3, n_filters=4, n=8, patches=2, dim=32),
    "Midpoint, small": partial(tasks.multi_view, 2, lam=0.5, n=6, n_classes=3, n_filters=2),
    "Midpoint, large": partial(tasks.gaussian, 2, n_classes=3, n_filters=2, n=6, patches=3, dim=8, lam=0.5),
    "Signal in noise, online": partial(tasks.signal_in_noise, 2, k=12, dim=3, n=8),
    "Linear attention, online": partial(tasks.linear_attention, 2, rank=3, n=16),
    "Two layers, dictionary, online": partial(tasks.dictionary, 2, dim=12, width=6, n=16),
}


def test_every_row_has_a_tiny_version():
    assert set(TINY) == set(tasks.ROWS)


@pytest.mark.parametrize("name", TINY)
def test_contenders_do_the_same(name):
    distances = contenders.disagreements(TINY[name]())
    assert {"loop", "autograd"} <= set(distances)
    assert max(distances.values()) < 1e-3, distances


def test_a_contender_that_does_something_else_is_noticed(monkeypatch):
    monkeypatch.setattr(contenders, "jax", None)
    task = TINY["ERM, small"]()
    task.loss = lambda f, *batch: 1.1 * losses.cross_entropy(f, *batch)
    assert contenders.disagreements(task)["loop"] > 1e-2


def test_everyone_draws_fresh_samples():
    """Training goes on with other samples than the first, and moves everyone by about as much."""
    task = TINY["Two layers, dictionary, online"]()
    fixed = contenders.mvnb(task, 20, fixed=True)
    results = [contenders.mvnb(task, 20), contenders.loop(task, 20)]
    if contenders.jax:
        results.append(contenders.as_torch(contenders.Compiled(task, 20)()))
    for k, start in task.start.items():
        moves = torch.stack([(params[k] - start).norm() for params in results])
        assert moves.max() < 2 * moves.min()
        assert all((params[k] - fixed[k]).norm() > 0.1 * moves.min() for params in results)


ONLINE = [name for name in TINY if name.endswith("online")]


def _of_one_law(ours, theirs):
    """First and second moments of every part of a batch agree within the scatter of some thousand points."""
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert a.shape == b.shape
        for f in (torch.clone, torch.square):
            scatter = 6 * f(a).std(0) * (2 / len(a)) ** 0.5 + 1e-6
            assert ((f(a).mean(0) - f(b).mean(0)).abs() < scatter).all()


@pytest.mark.parametrize("name", ONLINE)
def test_the_loop_draws_from_the_same_law(name):
    task = TINY[name]()
    n = 200 * task.sizes["samples"]
    _of_one_law(task.draw(n, torch.Generator().manual_seed(0)), task.user_draw(n, torch.Generator().manual_seed(0)))


@pytest.mark.skipif(contenders.jax is None, reason="JAX is an optional extra")
@pytest.mark.parametrize("name", ONLINE)
def test_jax_draws_from_the_same_law(name):
    task = TINY[name]()
    draw = contenders.jax.jit(contenders.jax.vmap(task.jax_draw))
    theirs = contenders.as_torch(dict(enumerate(draw(contenders.jax_keys(200)))))
    ours = task.draw(200 * task.sizes["samples"], torch.Generator().manual_seed(0))
    _of_one_law(ours, [part.flatten(0, 1) for part in theirs.values()])


def made_up(setting, ours, jax=True):
    """A result file of one row, one point of the sweep, one slope, memory and first calls."""
    seconds = {"mvnb": ours, "loop": 30e-3, "authors": 20e-3, "autograd": 10e-3, "sampling": ours / 2}
    info = {"row": "ERM, small", "sizes": {"replicas": 32, "dim": 16}, "bound": 0.5e-3, "gemm_rate": 1e11, "first_call": 0.1}
    if jax:
        seconds["jax"], info["jax_compile"] = 4e-3, 0.5
    slope = {"n": {"sizes": [8, 16], "seconds": [1e-3, 4e-3], "slope": 2.0}}
    first = {"cold": {"plain": 2.0, "mixed": 1.0, "steps": 3.0}, "cached": {"plain": 0.4, "mixed": 0.01, "steps": 0.02}}
    infos = [
        info | {"seconds": seconds},
        {"sweep": [{"replicas": 4, "seconds": {"mvnb": 1e-4}}]},
        {"slopes": "midpoint", "axes": slope},
        {"memory": "erm", "megabytes": {"imports": 400.0, "peak": 500.0}},
        {"first_call": first},
    ]
    machine = {"node": "secret", "cpu": {"brand_raw": "A chip", "count": 2}, "python_version": "3.11"}
    machine |= {"setting": setting, "device": None, "versions": {"torch": "2", "jax": "1" if jax else None}}
    return {"machine_info": machine, "benchmarks": [{"name": "x", "extra_info": i, "stats": {}} for i in infos]}


def test_report_forms_the_ratios(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "HERE", tmp_path)
    monkeypatch.setattr(report, "PICTURE", tmp_path / "picture.svg")
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for path, setting, ours in zip(paths, "12", (2e-3, 4e-3)):
        path.write_text(json.dumps(made_up(setting, ours)))
    report.main(paths)
    page = (tmp_path / "RESULTS.md").read_text()
    # Over 500 steps: (0.5 + 500 * 0.004) / (500 * 0.002).
    assert "| ERM, small | 2.00 | 15 | 10 | 5.00 | 2.00 | 2.50 | 25% |" in page
    # The bound is that of two cores, half as much.
    assert "| ERM, small | 4.00 | 7.50 | 5.00 | 2.50 | 1.00 | 1.25 | 6% |" in page
    assert "- *ERM, small*: 32 replicas, 16 dim" in page
    assert "| 4 | 100.0 | – | – |" in page
    assert "| midpoint, samples | 8, 16 | 1.00, 4.00 | 2.00 |" in page
    for words in ("## One core", "## Two cores", "A chip, 2 cores", "ERM, small 50%", "2.0 s for ERM", "erm 500 MB"):
        assert words in page
    assert "secret" not in page
    compact = json.loads((tmp_path / "results.json").read_text())
    assert compact["settings"]["1"]["rows"][0]["ratios"] == {
        "loop": 15.0,
        "authors": 10.0,
        "autograd": 5.0,
        "jax": 2.0,
        "jax_run": 2.5,
    }
    assert "secret" not in json.dumps(compact)
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_report_without_jax():
    page = report.markdown(report.summary([made_up("1", 2e-3, jax=False)]))
    assert "| 2.00 | 15 | 10 | 5.00 | – | – | 25% |" in page
    assert "JAX is not installed" in page


def test_a_fresh_process_measures_its_memory():
    command = [sys.executable, str(Path(tasks.__file__).parents[1] / "fresh_process.py"), "memory", "erm"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["peak"] > found["imports"] > 50
