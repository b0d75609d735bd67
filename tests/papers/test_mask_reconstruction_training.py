"""Arms of chapter 03: what each is trained on, from which start, and by which rule, on a few points or small images."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from mvnb import losses, training
from mvnb.models import patch_logits, smoothed_relu
from mvnb.papers.mask_reconstruction import data, model
from mvnb.papers.mask_reconstruction import training as arms

R, CLASSES, FILTERS, POINTS, ACTIVATION, KEEP = 2, 3, 4, 9, (3, 0.5), 0.5
WORLD = data.SparseMultiView(CLASSES, 8, 10, foreign=1.0, balanced=True)
SLOW = training.SGD(0.1)


@pytest.fixture(scope="module")
def drawn():
    points, weight = data.draw(WORLD, POINTS, CLASSES * FILTERS, 0.5, training.generators(0, R), torch.device("cpu"))
    return SimpleNamespace(points=points, weight=weight, owned=weight.unflatten(1, (CLASSES, FILTERS)))


@pytest.fixture
def begun(monkeypatch):
    """Parameters at the start of each training, in order, and its batches of the first three steps."""
    calls, fit = [], training.fit

    def recorded(objective, params, batches, **how):
        seen, many = [], callable(batches)
        taken = (lambda step: seen.append(batches(step)) or seen[-1]) if many else batches
        run = fit(objective, params, taken, **how)
        calls.append(
            SimpleNamespace(params={k: v.clone() for k, v in params.items()}, batches=seen if many else [batches], **how)
        )
        return run

    monkeypatch.setattr(training, "fit", recorded)
    return calls


def same(a, b):
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-6)


def best(params):
    return model.best_correlations(params, WORLD.n_features)


# --- Data ---


def test_a_stack_has_a_sample_and_kernels_of_its_own_for_each_generator(drawn):
    alone, kernels = data.draw(WORLD, POINTS, CLASSES * FILTERS, 1.0, training.generators(1, 1), "cpu")
    assert torch.equal(alone.x[0], drawn.points.x[1]) and same(kernels[0] / 2, drawn.weight[1])
    assert not same(drawn.points.x[0], drawn.points.x[1]) and not same(drawn.weight[0], drawn.weight[1])
    assert 0.4 < drawn.weight.std() < 0.6


# --- Pretraining ---


@pytest.mark.parametrize("gradient", ["exact", "paper"])
def test_the_autoencoder_follows_its_gradient_from_the_kernels_it_is_given(drawn, gradient):
    run = arms.autoencode(drawn.weight, (drawn.points.x, KEEP), ACTIVATION, 1, SLOW, gradient)
    objective = model.MaskedAutoencoderObjective(*ACTIVATION, gradient)
    push = objective({"weight": drawn.weight}, drawn.points.x, KEEP)[1]["weight"]
    assert same(run.params["weight"], drawn.weight - 0.1 * push)
    other = arms.autoencode(drawn.weight, (drawn.points.x, 0.9), ACTIVATION, 1, SLOW, gradient)
    assert not same(run.params["weight"], other.params["weight"])


def test_masks_are_fresh_in_every_step_and_keep_the_share_that_is_asked_for():
    x = torch.zeros(3, 50, 20, 4)
    kept = arms.draw_kept(x, 0.3, seed=0)
    first, second = kept(0), kept(1)
    assert first.shape == (3, 50, 20) and not torch.equal(first, second)
    assert first.double().mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(first, arms.draw_kept(x, 0.3, seed=0)(0)) and not torch.equal(first, arms.draw_kept(x, 0.3, seed=1)(0))


def test_the_teacher_student_race_ends_when_the_last_feature_is_held():
    calm, here = replace(WORLD, background_noise=0.1), (3, 0.2)
    points, weight = data.draw(calm, 30, 60, 0.08, training.generators(0, R), "cpu")
    run = arms.until_all_held(weight, points.x, KEEP, here, 150, best)
    last = run.log["best"].amin(-1)  # (look, run)
    assert torch.equal(run.log["best"][0], best({"weight": weight}))
    for r in range(R):
        arrived = (last[:, r] >= 0.2).nonzero()[0, 0]
        assert 0 < arrived < 150 and torch.equal(best(run.params)[r], run.log["best"][arrived, r])
    without = arms.until_all_held(weight, points.x, 1.0, here, 5, best)
    assert torch.equal(without.params["weight"], weight)


def test_a_student_starts_from_its_own_kernels_and_is_asked_for_the_features_of_the_longer_teacher(drawn, begun):
    teacher, keep = drawn.weight.flip(1), 0.4
    arms.student_of(teacher, drawn.weight, drawn.points.x, keep, ACTIVATION, 1)
    (call,) = begun
    assert torch.equal(call.params["weight"], drawn.weight)
    x, kept, target = call.batches[0]
    answers = smoothed_relu(torch.einsum("rnpd,rkd->rnpk", drawn.points.x, teacher / keep), *ACTIVATION).sum(2)
    assert torch.equal(x, drawn.points.x) and kept == keep and same(target, answers)


# --- Training with labels ---


def test_from_scratch_is_trained_on_all_points_until_the_loss_is_small(drawn, begun):
    run = arms.from_scratch(drawn.owned, drawn.points, ACTIVATION, 2000)
    (call,) = begun
    assert torch.equal(call.params["weight"], drawn.owned) and all(map(torch.equal, call.batches[0], drawn.points[:3]))
    assert (run.log["loss"][-1] <= 0.01).all() and run.step < 2000
    assert (arms.from_scratch(drawn.owned, drawn.points, ACTIVATION, 2000, stop=0.1).log["loss"][-1] > 0.01).all()


def test_training_on_goes_past_the_stop_from_where_the_run_ended(drawn, begun):
    stopped = arms.from_scratch(drawn.owned, drawn.points, ACTIVATION, 300, **arms.logged(best, 300, 2))
    further, log = arms.train_on(stopped, drawn.points, ACTIVATION, 300, best)
    assert torch.equal(begun[1].params["weight"], stopped.params["weight"])
    assert stopped.step + further.step == 300 and (further.log["loss"][-1] < 0.001).all()
    assert (log["time"].diff(dim=0) >= 0).all() and torch.equal(log["best"][-1], best(further.params))
    assert torch.allclose(log["time"][-1], stopped.log["time"][-1] + further.log["time"][-1])
    assert torch.equal(log["best"][0], best({"weight": drawn.owned}))


def test_masked_labels_hide_patches_anew_in_every_step_and_divide_the_outputs(drawn, begun):
    run = arms.masked_labels(drawn.owned[:1], drawn.points, KEEP, ACTIVATION, 12, seed=0)
    (call,) = begun
    assert torch.equal(call.params["weight"], drawn.owned[:1]) and run.step == 12
    hidden = []
    for x, y, multiplicity in call.batches:
        hidden.append((x == 0).all(-1))
        assert torch.equal(torch.where(hidden[-1][..., None], 0.0, drawn.points.x[:1]), x)
        assert torch.equal(y, drawn.points.y[:1]) and torch.equal(multiplicity, drawn.points.multiplicity[:1] / KEEP)
    share = torch.stack(hidden).double().mean().item()
    assert share == pytest.approx(1 - KEEP, abs=0.06) and not torch.equal(hidden[0], hidden[1])


def cross_entropy(weight, head, points):
    """The loss of one run by its definition."""
    logits = smoothed_relu(points.x[0] @ weight.T, *ACTIVATION).sum(1) @ head.T
    return torch.nn.functional.cross_entropy(logits, points.y[0])


def test_the_first_step_of_a_head_from_zero_is_minus_the_gradient(drawn):
    head = torch.zeros(CLASSES, CLASSES * FILTERS, requires_grad=True)
    (slope,) = torch.autograd.grad(cross_entropy(drawn.weight[0], head, drawn.points), head)
    assert same(arms.centroid_head(drawn.weight, drawn.points, ACTIVATION, CLASSES)[0], -slope)


def test_a_trained_head_starts_as_the_centroid_of_length_one_or_as_it_is_given(drawn, begun):
    given = torch.ones(R, CLASSES, CLASSES * FILTERS)
    for head in (None, given):
        arms.with_head(drawn.weight, drawn.points, ACTIVATION, CLASSES, 20, head)
    centroid = arms.centroid_head(drawn.weight, drawn.points, ACTIVATION, CLASSES)
    assert all(torch.equal(call.params["weight"], drawn.weight) for call in begun)
    assert same(begun[0].params["head"], torch.nn.functional.normalize(centroid, dim=-1))
    assert torch.equal(begun[1].params["head"], given)


def test_fine_tuning_starts_from_the_kernels_with_the_steps_of_theorem_2(drawn):
    def tuned(steps):
        params = arms.fine_tune(drawn.weight, drawn.points, ACTIVATION, CLASSES, steps=steps, stop=-1.0).params
        return params["weight"], params["head"]

    leaves = drawn.weight[0].clone(), torch.zeros(CLASSES, CLASSES * FILTERS)
    for steps in range(3):
        assert all(same(found[0], expected) for found, expected in zip(tuned(steps), leaves))
        leaves = [leaf.requires_grad_() for leaf in leaves]
        slopes = torch.autograd.grad(cross_entropy(*leaves, drawn.points), leaves)
        leaves = [(leaf - rate * slope).detach() for leaf, rate, slope in zip(leaves, (0.2, CLASSES), slopes)]
    assert not same(tuned(2)[0], drawn.weight)


def test_tasks_that_follow_start_from_a_hundred_steps_of_fine_tuning(drawn, begun):
    arms.fine_tune_on(drawn.weight, drawn.points, ACTIVATION, CLASSES, 20)
    first, second = begun
    tuned = arms.fine_tune(drawn.weight, drawn.points, ACTIVATION, CLASSES, steps=100)
    assert torch.equal(first.params["weight"], drawn.weight) and first.steps == 100 and second.steps == 20
    assert all(torch.allclose(second.params[k], tuned.params[k], rtol=1e-3, atol=1e-6) for k in ("weight", "head"))


def test_outputs_are_those_of_the_kernels_and_of_the_head(drawn):
    x, head = drawn.points.x[:1], torch.randn(R, CLASSES, CLASSES * FILTERS, generator=torch.Generator().manual_seed(0))
    answers = torch.einsum("npd,rkd->rnpk", x[0], drawn.weight)
    answers = smoothed_relu(answers, *ACTIVATION).sum(2)
    assert same(arms.outputs({"weight": drawn.weight, "head": head}, ACTIVATION)(x), answers @ head.mT)
    owned = arms.outputs({"weight": drawn.owned}, ACTIVATION)(x)
    assert same(owned, answers.unflatten(-1, (CLASSES, FILTERS)).sum(-1))
    assert same(owned, patch_logits(drawn.owned, x, None, *ACTIVATION))


def test_a_linear_probe_reads_what_its_kernels_answer(drawn):
    points, start = data.draw(WORLD, 60, 6, 1.0, training.generators(5, R), "cpu")
    known = torch.eye(10)[:6].expand(R, -1, -1)
    for weight, low, high in ((known, 0.95, 1.0), (0 * start - 1, 0.0, 0.6)):  # the others answer nothing or alike
        logits = arms.linear_probe(weight, points, ACTIVATION, CLASSES, 200)
        right = (logits(points.x).argmax(-1) == points.y).double().mean().item()
        assert low <= right <= high


# --- Images ---


def test_the_fall_of_a_loss_is_that_of_its_last_fifth():
    values = [10.0] * 80 + [4.0] * 5 + [7.0] * 10 + [3.0] * 5
    assert arms.fall(torch.tensor(values), 20, 5) == 0.25
    assert arms.fall(torch.tensor(values), 15, 5) == pytest.approx(4 / 7)


def test_masks_cover_whole_patches_at_the_ratio():
    masks = arms.draw_masks(torch.empty(400, 3, 32, 24), 0.6, torch.Generator().manual_seed(0), patch=8)
    cells = masks[:, 0].unfold(1, 8, 8).unfold(2, 8, 8).flatten(3)
    assert masks.shape == (400, 1, 32, 24) and (cells.all(-1) == cells.any(-1)).all()
    assert masks.double().mean().item() == pytest.approx(0.6, abs=0.02)


@pytest.fixture(scope="module")
def images():
    g = torch.Generator().manual_seed(0)
    return torch.randn(R, 40, 1, 32, 32, generator=g), torch.randint(3, (R, 40), generator=g)


def test_batches_are_of_the_first_images_with_their_labels_or_of_all_with_masks(images):
    x, y = images
    number = {tuple(one.flatten()[:4].tolist()): (r, i) for r in range(R) for i, one in enumerate(x[r])}

    def rows(batch):
        return [[number[tuple(one.flatten()[:4].tolist())] for one in run] for run in batch]

    labelled = arms.image_batches(x, y, 12, 5, training.generators(0, R))
    for step in range(6):
        seen, labels = labelled(step)
        for r, run in enumerate(rows(seen)):
            assert all(owner == r and i < 12 for owner, i in run) and len(set(run)) == 5
            assert [y[r, i].item() for _, i in run] == labels[r].tolist()
        first, second = ([i for _, i in run] for run in rows(seen))
        assert first != second  # each run in an order of its own
    masked = arms.image_batches(x, y, 40, 30, training.generators(0, R), patch=8, mask_ratio=0.25)
    seen, masks = masked(0)
    assert max(i for run in rows(seen) for _, i in run) > 30 and masks.shape == (R, 30, 1, 32, 32)
    assert masks.double().mean().item() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks, masked(1)[1])  # drawn anew for each run and step


def test_classifiers_differ_in_their_encoder_only_which_is_simmims_or_its_start(images, begun):
    network = model.NETWORKS["small"]._replace(width=4, squares=1)
    how = {"labels": 20, "n_classes": 3, "batch": 5, "seed": 3, "steps": 4, "label_steps": 3}
    _, runs = arms.image_arms(*images, network, **how)
    filler, scratch, pretrained = begun
    encoder = [k for k in scratch.params if k.startswith("encoder")]
    assert encoder and all(torch.equal(scratch.params[k], filler.params[k]) for k in encoder)
    assert all(torch.equal(pretrained.params[k], runs["SimMIM"].params[k]) for k in encoder)
    assert not any(torch.equal(pretrained.params[k], scratch.params[k]) for k in encoder)
    assert all(torch.equal(v, scratch.params[k]) for k, v in pretrained.params.items() if k not in encoder)
    assert all(not torch.equal(v[0], v[1]) for k, v in scratch.params.items() if k in encoder)  # two runs, two starts
    labelled = [{*map(tuple, one[:20].flatten(1).tolist())} for one in images[0]]
    for ours, theirs in zip(scratch.batches, pretrained.batches):
        assert all(map(torch.equal, ours, theirs))
        assert all({*map(tuple, seen.flatten(1).tolist())} <= known for seen, known in zip(ours[0], labelled))
    assert any(tuple(one.flatten().tolist()) not in labelled[0] for x, _ in filler.batches for one in x[0])
    assert (scratch.steps, filler.steps) == (3, 4) and filler.batches[0][1].dtype == torch.bool
    for name, value in (("mask_ratio", 0.3), ("step_size", 0.01), ("batch", 4)):
        other = arms.image_arms(*images, network, **how | {name: value})[1]["MAE"]
        assert not torch.equal(other.params["head.weight"], runs["MAE"].params["head.weight"]), name
    first, last = ([runs[arm].log["loss"][i] for arm in ("ERM", "MAE")] for i in (0, -1))
    assert torch.allclose(*first) and not torch.allclose(*last)  # the head is zero at first


# --- One network on digits ---


@pytest.fixture(scope="module")
def split():
    return data.Split("digits", {20: 2, 50: 1}, 400, 200, False, 0, torch.device("cpu"))


HOW = {"steps": 4, "batch": 10, "step_size": 0.01, "weight_decay": 0.1, "seed": 5}


def states(*nets):
    return [{k: v.clone() for k, v in net.state_dict().items()} for net in nets]


def equal(one, other):
    return all(torch.equal(one[k], other[k]) for k in one)


def test_a_classifier_has_the_encoder_that_is_pretrained(split):
    filler, net = arms.pair(split, 4, 0)
    before, head = states(net.encoder, net.head)
    arms.simmim(filler, split.x["all"], 0.6, **HOW)
    assert net.encoder is filler.encoder and not equal(before, net.encoder.state_dict()) and equal(head, net.head.state_dict())
    again, other = (arms.pair(split, 4, seed)[0].encoder for seed in (0, 1))
    assert equal(before, again.state_dict()) and not equal(before, other.state_dict())
    assert net.head.out_features == 10 and net(split.x[20, 0]).shape == (20, 10)


def test_few_labels_train_a_copy_of_the_classifier_on_them(split, monkeypatch):
    filler, net = arms.pair(split, 4, 0)
    (before,), seen = states(net), []
    minimise = arms._minimise

    def recorded(copied, loss, n, **how):
        seen.append((copied, *states(copied), n))
        return minimise(copied, loss, n, **how)

    monkeypatch.setattr(arms, "_minimise", recorded)
    parts = (20, 0), (20, 1), (50, 0)
    found = {part: arms.few_labels(net, split, part, 0, 0.0, **HOW | {"steps": 60}) for part in parts}
    assert equal(before, net.state_dict()) and [n for *_, n in seen] == [20, 20, 50]
    for part, (copied, start, _) in zip(found, seen):
        assert copied is not net and equal(start, before)
        scores = {of: arms._outputs(copied, split.x[of]).argmax(1) for of in (part, "judged")}
        for key, of in (("train", part), ("error", "judged")):
            assert found[part][key] == pytest.approx(100 * (scores[of] != split.y[of]).double().mean().item(), abs=1e-3)
    assert found[20, 0]["train"] == 0 and 0 < found[50, 0]["error"] < found[20, 0]["error"] < 60
    assert found[20, 0]["error"] != found[20, 1]["error"]

    arms.simmim(filler, split.x["all"], 0.6, **HOW)
    arms.few_labels(net, split, (20, 0), 0, 0.0, **HOW)
    assert equal(seen[-1][1], states(net)[0]) and not equal(seen[-1][1], before)


def test_every_setting_of_a_training_with_few_labels_is_used(split):
    _, net = arms.pair(split, 4, 0)
    settings = {"shift": 0, "smoothing": 0.0} | HOW
    base = arms.few_labels(net, split, (20, 0), **settings)["fell"]
    assert base == arms.few_labels(net, split, (20, 0), **settings)["fell"]
    assert base == arms.few_labels(net, split, (20, 0), **settings, encoder_rate=1.0)["fell"]
    changes = {"shift": 2, "smoothing": 0.3, "step_size": 0.02, "weight_decay": 5.0, "batch": 5, "seed": 6, "steps": 6}
    for name, value in (changes | {"encoder_rate": 0.3}).items():
        assert arms.few_labels(net, split, (20, 0), **settings | {name: value})["fell"] != base, name


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_the_rate_of_the_encoder_multiplies_its_steps_and_its_decay(rate, decay):
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({"encoder": torch.nn.Linear(3, 3), "head": torch.nn.Linear(3, 3)})
    before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    how = HOW | {"steps": 2, "weight_decay": decay}  # the first two steps of the schedule have the full size
    arms._minimise(net, lambda rows, g: sum(w.sum() for w in net.parameters()), 10, **how, encoder_rate=rate)
    for name, weight in net.named_parameters():
        step = 0.01 * (rate if name.startswith("encoder") else 1)
        once = before[name] * (1 - step * decay) - step
        assert torch.allclose(weight, once * (1 - step * decay) - step, atol=1e-6), name


def test_a_frozen_encoder_keeps_its_weights_and_the_head_learns(split):
    _, net = arms.pair(split, 4, 0)
    (before,), nets, minimise = states(net), [], arms._minimise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "_minimise", lambda net, *args, **how: nets.append(net) or minimise(net, *args, **how))
        found = arms.few_labels(net, split, (50, 0), 0, 0.0, **HOW | {"steps": 80}, encoder_rate=0.0)
    after = nets[0].state_dict()
    same = {k for k, v in before.items() if torch.equal(v, after[k])}
    changed = {k for k in before if k not in same}
    assert all(k.startswith("head") or "running" in k or "num_batches" in k for k in changed) and "head.weight" in changed
    assert found["train"] < 20 and 0 < found["error"] < 60


def test_every_image_is_seen_once_before_any_is_seen_again():
    seen, net = [], torch.nn.Linear(1, 1)

    def loss(rows, g):
        seen.extend(rows.tolist())
        return net(torch.ones(1, 1)).sum()

    values = arms._minimise(net, loss, 6, **HOW | {"batch": 4, "steps": 6})
    assert len(values) == 6 and values[-1] < values[0]
    assert [sorted(seen[i : i + 6]) for i in (0, 6, 12)] == [[*range(6)]] * 3 and seen[:6] != seen[6:12]


def test_the_first_steps_are_shorter():
    net, seen = torch.nn.Linear(1, 1, bias=False), []

    def loss(rows, g):
        seen.append(net.weight.item())
        return net.weight.sum()

    arms._minimise(net, loss, 6, **HOW | {"steps": 80, "weight_decay": 0.0})
    assert [a - b for a, b in pairwise(seen[:5])] == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=1e-3)


def test_outputs_for_an_image_do_not_depend_on_the_others(split):
    _, net = arms.pair(split, 4, 0)
    torch.nn.init.ones_(net.head.weight[:1])
    net.train()
    together, alone = arms._outputs(net, split.x["judged"]), arms._outputs(net, split.x["judged"][:5])
    assert torch.allclose(together[:5], alone, rtol=1e-4) and len(together[:, 0].unique()) > 5


def test_simmim_judges_hidden_pixels_at_the_ratio(split):
    ratios = {}
    for ratio in (0.3, 0.6):
        filler, _ = arms.pair(split, 4, 0)
        ratios[ratio] = arms.simmim(filler, split.x["all"], ratio, **HOW | {"steps": 60})
        assert ratios[ratio][-1] < ratios[ratio][0]
    assert ratios[0.3] != ratios[0.6]


def test_simmim_masks_each_image_anew_in_every_step(split):
    filler, _ = arms.pair(split, 4, 0)
    seen = []
    filler.register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    arms.simmim(filler, split.x["all"], 0.6, **HOW)
    assert len(torch.stack(seen).unique(dim=0)) == 4  # steps
    assert all(len(masks.unique(dim=0)) > 3 for masks in seen)  # of 16 possible ones


def test_the_loss_of_simmim_leaves_visible_pixels_out():
    torch.manual_seed(0)
    filler, x = model.Filler(model.convolutions(1, 4), 8, 1).eval(), torch.randn(3, 1, 8, 8)
    masked = torch.zeros(3, 1, 8, 8, dtype=torch.bool)
    masked[..., :4] = True
    with torch.no_grad():
        other = torch.where(masked, torch.randn(3, 1, 8, 8), x)
        assert torch.allclose(filler(x, masked), filler(other, masked), atol=1e-5)
        error = (filler(x, masked) - x).abs()
        assert arms.fill_in(filler, x, masked).item() == pytest.approx(error[..., :4].mean().item(), rel=1e-5)


def test_the_loss_of_a_classifier_on_images_is_the_cross_entropy(images, begun):
    network = model.NETWORKS["small"]._replace(width=4, squares=1)
    how = {"labels": 20, "n_classes": 3, "batch": 5, "seed": 3, "steps": 1, "label_steps": 2}
    net, runs = arms.image_arms(*images, network, **how)
    x, y = begun[1].batches[1]
    again = training.fit(
        training.ModuleObjective(net, losses.cross_entropy),
        begun[1].params,
        lambda step: begun[1].batches[step],
        steps=2,
        log_at=range(2),
        optimizer=training.Adam(lambda step: 3e-3 * (1, 0.5)[step]),
    )
    assert (
        x.shape == (R, 5, 1, 32, 32)
        and y.shape == (R, 5)
        and all(same(v, again.params[k]) for k, v in runs["ERM"].params.items())
    )
