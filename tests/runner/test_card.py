"""The stand-in for a card: each rule is noticed when broken, innocent programs pass, and a fit asks nothing of the card."""

import io
import json
import shutil
from pathlib import Path

import card
import elsewhere
import gpu
import mvnb_gallery
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from mvnb import losses, training
from mvnb.models import PatchObjective
from mvnb.runner import catalogue, execution
from mvnb.runner.errors import CellFailed

ROOT = Path(__file__).resolve().parents[2]
BREACHES = {
    "two devices": lambda x: x + torch.ones(4),
    "two devices, in place": lambda x: torch.ones(4).add_(x),
    "two devices in a product": lambda x: torch.ones(4) @ x,
    "two devices in a list": lambda x: torch.cat([x, torch.ones(1)]),
    "two devices under vmap": lambda x: vmap(lambda a: a + torch.ones(1))(x),
    "two devices backward": lambda x: torch.autograd.grad((torch.ones(4, requires_grad=True) * x.cpu()).sum() * x[0], x),
    "a value of another device": lambda x: x.index_put_((torch.tensor([0, 1]),), torch.ones(2)),
    "a place without an axis": lambda x: torch.cat([x[:1], torch.tensor([1.0])]),
    "a module in part": lambda x: nn.Sequential(nn.Linear(4, 4).to(x.device), nn.Linear(4, 1))(x),
    "a module left behind": lambda x: nn.Linear(4, 1)(x),
    "numpy": lambda x: x.numpy(),
    "an array": lambda x: np.asarray(x),
    "a function of NumPy": lambda x: np.exp(x),
    "a CPU tensor indexed by a card's": lambda x: torch.arange(9)[x.long()],
    "gathered by a CPU index": lambda x: x.gather(0, torch.tensor([0])),
    "a generator of the CPU": lambda x: torch.randn(2, generator=torch.Generator(), device=x.device),
    "a generator of the CPU, in place": lambda x: x.normal_(generator=torch.Generator()),
    "a generator of the card": lambda x: torch.rand(2, generator=torch.Generator(x.device)),
    "loaded onto the card": lambda x: saved_and_loaded(x).numpy(),
}


def saved_and_loaded(x):
    buffer = io.BytesIO()
    torch.save({"x": x.cpu()}, buffer)
    buffer.seek(0)
    return torch.load(buffer, map_location=x.device)["x"]


@pytest.mark.parametrize("name", BREACHES)
def test_what_a_card_refuses_is_refused(name):
    with card.card():
        x = torch.arange(4.0, device="cuda", requires_grad=name == "two devices backward")
        with pytest.raises((RuntimeError, TypeError)) as error:
            BREACHES[name](x)
    said = str(error.value)
    assert any(word in said for word in ("same device", "to numpy", "device type for generator")), said


def test_innocent_programs_pass():
    with card.card():
        x = torch.arange(6.0).to("cuda").reshape(2, 3)
        assert (x.device, x.is_cuda, x.is_cpu, x[0].device.type) == (card.CARD, True, False, "cuda")
        assert not torch.zeros(2).is_cuda and torch.zeros_like(x).is_cuda and x.new_ones(2).is_cuda
        assert not torch.zeros_like(x, device="cpu").is_cuda and not x.cpu().is_cuda
        assert (x + torch.tensor(1.0)).is_cuda and (2 * x).is_cuda and torch.where(x > 1, x, 0.0).is_cuda
        assert x[torch.tensor([1])].is_cuda and x[x > 1].is_cuda  # a card takes the CPU's indices
        assert x.to("cuda") is x and x.double().is_cuda and x.to(torch.float64).is_cuda
        assert x.to("cpu", torch.float64).dtype == torch.float64 and torch.zeros(2).to(x).is_cuda
        assert torch.as_tensor(np.ones(2), device="cuda").is_cuda and torch.tensor([1.0], device=x.device).is_cuda
        assert x.cpu().numpy().sum() == 15 and float(x.sum()) == 15 and x.sum().item() == 15
        generator = torch.Generator("cuda").manual_seed(0)
        assert torch.randn(2, generator=generator, device="cuda").is_cuda
        assert torch.cdist(x, x).is_cuda and torch.einsum("ij,kj->ik", x, x).is_cuda and torch.linalg.svd(x)[0].is_cuda
        assert saved_and_loaded(x).is_cuda and torch.zeros(2).copy_(x[0, :2]).is_cpu
        sparse = torch.eye(3).to_sparse().to("cuda")
        assert sparse.is_cuda and (sparse @ x.T).is_cuda


def test_what_is_sent_is_a_copy():
    with card.card():
        here = torch.zeros(3)
        there = here.to("cuda")
        there += 1
        assert not here.any() and there.all()
        back = there.cpu()
        back += 1
        assert (there == 1).all()


def test_gradients_transforms_and_modules_keep_to_their_device():
    with card.card():
        x = torch.rand(5, 4, device="cuda")
        w = torch.rand(4, requires_grad=True)
        (x @ w.to("cuda")).sum().backward()  # the gradient goes the way back
        assert w.grad.is_cpu and torch.allclose(w.grad, x.sum(0).cpu())
        assert vmap(grad(lambda a, b: (a * b).sum().sin()))(x, x).is_cuda
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).to("cuda")
        optimizer = torch.optim.Adam(net.parameters())
        net(x).square().mean().backward()
        optimizer.step()
        assert {p.device for p in (*net.parameters(), *net.buffers())} == {card.CARD}
        assert all(p.grad.is_cuda for p in net.parameters())
        nets = [nn.Linear(4, 2).to("cuda") for _ in range(3)]
        params, buffers = stack_module_state(nets)
        out = vmap(lambda p, b: functional_call(nets[0], (p, b), (x,)))(params, buffers)
        assert out.shape == (3, 5, 2) and out.is_cuda


def test_transfers_and_synchronisations_are_counted():
    with card.card() as counts:
        x = torch.ones(3, device="cuda")
        assert (counts.transfers, counts.synchronisations) == (0, 0)
        for act, moved in (
            (lambda: torch.ones(3).to("cuda"), 1),
            (lambda: x.cpu(), 1),
            (lambda: torch.tensor([1.0], device="cuda"), 1),
            (lambda: x[torch.tensor([0])], 1),
            (lambda: x.sum().item(), 0),
            (lambda: bool(x.any()), 0),
            (lambda: x.tolist(), 0),
            (lambda: x.nonzero(), 0),
            (lambda: x[x > 0], 0),
        ):
            before = counts.transfers, counts.synchronisations
            act()
            assert counts.transfers - before[0] == moved
            assert counts.synchronisations > before[1] or moved
        before = counts.transfers, counts.synchronisations
        (x.exp() @ x).clamp(max=2).where(x > 0, 1.0)
        x[1:] = 2
        x.add_(torch.tensor(1.0))
        torch.nn.functional.one_hot(x.long(), 4)
        assert (counts.transfers, counts.synchronisations) == before


# --- What a fit asks of the card ---

PERCEPTRON = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def cross_entropy(f, x, y):
    return nn.functional.cross_entropy(f(x), y)


def mixed(f, x, y):
    return losses.midpoint_mixup(f, x, y)


OPTIMIZERS = {
    "GD": lambda: training.SGD(0.1, momentum=0.9, weight_decay=1e-3),
    "GD, a step size a replica": lambda: training.SGD(torch.tensor([0.1, 0.2], device="cuda")),
    "SGD, scheduled": lambda: training.SGD(lambda step: 0.1 / (1 + step)),
    "FlowGD": lambda: training.FlowGD(max_step=0.1),
    "Adam": lambda: training.Adam(0.01),
    "Adam, a step size a replica": lambda: training.Adam(torch.tensor([0.1, 0.2], device="cuda"), weight_decay=0.01),
}


@pytest.mark.parametrize("loss", [cross_entropy, mixed])
@pytest.mark.parametrize("fresh", [False, True], ids=["full batch", "fresh batches"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_transfers_nothing_and_waits_for_nothing(name, fresh, loss):
    with card.card() as counts:
        seen = []
        params = {k: v.to("cuda") for k, v in training.stack([PERCEPTRON] * 2).items()}
        if fresh:

            def draw(n, g):
                return torch.randn(n, 3, generator=g), torch.randint(2, (n,), generator=g)

            batches = training.Fresh(draw, 8, training.generators(0, 2), block=16, device="cuda")
        else:
            batch = (torch.randn(2, 8, 3, device="cuda"), torch.randint(2, (2, 8), device="cuda"))

            def batches(step):
                return batch

        def watched(step):
            seen.append((counts.transfers, counts.synchronisations))
            return batches(step)

        objective = training.ModuleObjective(PERCEPTRON, loss)
        training.fit(objective, params, watched, steps=40, optimizer=OPTIMIZERS[name](), log_at=[0, 40])
    within = seen[17:32]  # no step is logged, no block begins
    assert len(set(within)) == 1, np.diff(within, axis=0).tolist()


@pytest.mark.parametrize("lam", [None, 0.5])
def test_a_step_along_the_flow_of_a_patch_network_waits_for_nothing(lam):
    with card.card() as counts:
        seen, objective = [], PatchObjective(4, 1.0)
        batch = torch.randn(2, 6, 3, 8).cuda(), torch.randint(3, (2, 6)).cuda(), torch.ones(2, 3).cuda()

        def watched(params, *batch):
            seen.append((counts.transfers, counts.synchronisations))
            return objective(params, *batch, lam)

        start = {"weight": torch.randn(2, 3, 4, 8).cuda()}
        training.fit(watched, start, batch, steps=40, optimizer=training.FlowGD(max_step=0.1, horizon=99.0), log_at=[0, 40])
    assert len(set(seen[2:32])) == 1, np.diff(seen[2:32], axis=0).tolist()


def test_a_run_saved_on_a_card_is_read_and_goes_on(tmp_path):
    with card.card():
        x = torch.randn(2, 8, 3, device="cuda"), torch.randint(2, (2, 8), device="cuda")
        params = {k: v.to("cuda") for k, v in training.stack([PERCEPTRON] * 2).items()}
        objective = training.ModuleObjective(PERCEPTRON, cross_entropy)
        settings = {"optimizer": training.Adam(0.01), "log_at": [0, 5]}
        run = training.fit(objective, params, x, steps=5, **settings)
        run.save(tmp_path / "run")
        again = training.Run.load(tmp_path / "run", device="cuda")
        assert torch.equal(again.log["loss"], run.log["loss"]) and next(iter(again.params.values())).is_cuda
        longer = training.fit(objective, again, x, steps=9, optimizer=training.Adam(0.01), log_at=[5, 9])
        assert longer.step == 9 and longer.log["loss"].shape == (3, 2)


def test_batches_in_blocks_are_the_batches_and_cross_once_a_block():
    def draw(step):
        return torch.full((2, 3), float(step)), torch.tensor([step, -step])

    batch = training.in_blocks(draw, "cpu")
    assert all(torch.equal(*pair) for step in (0, 0, 1, 9) for pair in zip(batch(step), draw(step)))
    with card.card() as counts:
        batch = training.in_blocks(draw, "cuda", block=4)
        for step in (0, 0, 1, 2, 3, 4, 9):
            for part, expected in zip(batch(step), draw(step)):
                assert part.is_cuda and torch.equal(part.cpu(), expected)
        before = counts.transfers
        batch(9), batch(10), batch(11)
        assert counts.transfers == before
        batch(12)
        assert counts.transfers == before + 2


# --- Chapters on the card ---

SABOTAGE = {
    "a result for NumPy": ("01", "threshold=0.9).cpu().numpy()", "threshold=0.9).numpy()"),
    "an operand": (
        "02",
        "training.to_device(runs.Start(free, unknown, unknown), device)",
        "runs.Start(free, unknown, unknown)",
    ),
    "a network": ("04", "nets = [build(s).to(device) for s in trial_seeds]", "nets = [build(s) for s in trial_seeds]"),
    "parameters": ("11", "training.to_device(factors, device)", "factors"),
    "what is indexed": ("13", "(x.to(device), y) for", "(x, y) for"),
}


@pytest.mark.weekly
@pytest.mark.parametrize("name", SABOTAGE)
def test_what_a_chapter_forgets_is_noticed(name, tmp_path):
    """Without one transfer that it needs, a chapter's smoke preset fails on the stand-in."""
    number, needed, forgotten = SABOTAGE[name]
    chapter = catalogue.resolve(number, ROOT)
    preset = catalogue.preset(chapter, "smoke")
    source = chapter.source.read_text(encoding="utf-8")
    assert source.count(needed) == 1
    broken = tmp_path / chapter.source.name
    broken.write_text(source.replace(needed, forgotten), encoding="utf-8")
    startup = elsewhere.startup(tmp_path / "begun", elsewhere.CARD)
    with pytest.raises(CellFailed, match=r"same device|to numpy|indexed tensor"):
        execution.run(catalogue.resolve(str(broken)), preset, tmp_path / "run", startup=startup)


# --- The report of a real card ---


def test_without_a_card_there_is_one_line_and_status_2(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main() == 2
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1 and not said.out


@pytest.mark.weekly
def test_the_report_resumes_and_says_what_differs(book, capsys):
    startup = elsewhere.startup(book / "begun", elsewhere.CARD)
    (chapter,) = catalogue.discover(book)
    shutil.copy(execution.run(chapter, {}, book / "plain").notebook, chapter.notebook)
    with card.card():
        assert gpu.main(0, root=book, startup=startup) == 3 and "3 of 3 runs are left" in capsys.readouterr().out
        assert gpu.main(600, root=book, startup=startup) == 0 and "no verdict is the opposite" in capsys.readouterr().out
        (book / "begun").unlink()
        assert gpu.main(600, root=book, startup=startup) == 0 and "no verdict" in capsys.readouterr().out
        assert not (book / "begun").exists()  # nothing was run again
        kept = book / "runs" / "gpu" / "01_tiny-card.json"
        found = json.loads(kept.read_text())
        found["found"]["verdicts"] = dict.fromkeys(found["found"]["verdicts"], "fails")
        kept.write_text(json.dumps(found))
        assert gpu.main(600, root=book, startup=startup) == 1 and "fails on the card" in capsys.readouterr().out
    report = json.loads((book / "results" / "gpu.json").read_text())
    assert report["card"] == "stand-in" and set(report["seconds"]["01_tiny"]) == {"smoke", "card", "cpu"}
    assert all(seconds > 0 for seconds in report["seconds"]["01_tiny"].values()) and report["wrong"]


def test_the_page_on_costs_has_the_report(book):
    report = {"card": "stand-in", "date": "2026-11-05", "at_once": 2, "versions": {"torch": "2", "cuda": "12"}, "wrong": []}
    report["seconds"] = {"01_tiny": {"smoke": 3.0, "card": 7.2, "cpu": 9.9}}
    said, table = mvnb_gallery.card_seconds(report, catalogue.discover(book))
    assert all(part in said.astext() for part in ("of 5 November 2026", "no verdict was the opposite"))
    assert all(part in table.astext() for part in ("7", "10"))
    del report["seconds"]["01_tiny"]["card"]
    assert "dash" not in said.astext() and "dash" in mvnb_gallery.card_seconds(report, catalogue.discover(book))[0].astext()
