"""Contrastive losses, networks and objectives; views of images; small sets of pictures."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mvnb import training
from mvnb.papers.contrastive_tradeoff import data, study
from mvnb.papers.contrastive_tradeoff import training as contrastive


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def directions(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=gen(seed), dtype=torch.float64), dim=-1)


# --- Losses ---


def test_losses_of_equal_embeddings():
    one = directions(1, 1, 4).expand(2, 5, 4)
    assert torch.allclose(contrastive.nt_xent(one, one, 0.3), torch.full((2,), math.log(9.0), dtype=torch.float64))
    assert torch.allclose(contrastive._info_nce(one, one, one, 0.1), torch.full((2,), math.log(6.0), dtype=torch.float64))


def test_nt_xent_is_the_cross_entropy_among_the_others():
    first, second = directions(6, 3), directions(6, 3, seed=1)
    z = torch.cat([first, second])
    logits = (z @ z.T / 0.2).fill_diagonal_(-math.inf)
    expected = F.cross_entropy(logits, torch.arange(12).roll(6))
    assert torch.allclose(contrastive.nt_xent(first, second, 0.2), expected)


def test_nt_xent_at_a_low_temperature_is_that_of_double_precision():
    first, second = directions(32, 16), directions(32, 16, seed=1)
    logits = (torch.cat([first, second]) @ torch.cat([first, second]).T / 0.005).fill_diagonal_(-math.inf)
    exact = F.cross_entropy(logits, torch.arange(64).roll(32))
    single = contrastive.nt_xent(first.float(), second.float(), 0.005)
    assert torch.allclose(single.double(), exact, rtol=1e-5)


def test_info_nce_is_the_cross_entropy_among_key_and_negatives():
    q, k, negatives = directions(6, 3), directions(6, 3, seed=1), directions(9, 3, seed=2)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ negatives.T], 1) / 0.1
    expected = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    assert torch.allclose(contrastive._info_nce(q, k, negatives, 0.1), expected)


def test_nnclr_is_nt_xent_between_neighbours_and_predictions():
    """As in the authors' code: the cross-entropy among all other neighbours and predictions, in both directions."""
    objective, params = begin("nnclr", temperature=0.5)
    first, second = views()
    (z1, p1), (z2, p2) = (objective._embed(params, view) for view in (first, second))
    queue, expected = params["queue"].clone(), 0.0
    for z, p in ((z1, p2), (z2, p1)):
        near = torch.stack([q[(a @ q.T).argmax(1)] for a, q in zip(z, queue)])
        both = torch.cat([near, p], 1)
        logits = (both @ both.mT / 0.5).masked_fill(torch.eye(16, dtype=torch.bool), -math.inf)
        expected = expected + torch.stack([F.cross_entropy(row, torch.arange(16).roll(8)) for row in logits]) / 2
    found = objective.losses(params, first, second)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(params["queue"][:, :8], z2) and torch.equal(params["queue"][:, 8:], queue[:, :8])


def test_nearest():
    support = directions(2, 7, 3)
    assert torch.equal(contrastive._nearest(support[:, 2:4], support), support[:, 2:4])


# --- Objectives ---


def networks(method, replicas=2, encoder=None):
    project, predict = {"moco": ((), ()), "simclr": ((), ()), "simsiam": ((6, 5), (4, 5)), "nnclr": ((6, 5), (6, 5))}[method]

    def one(seed):
        torch.manual_seed(seed)
        inner = encoder() if encoder else nn.Sequential(nn.Flatten(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 5))
        return contrastive.ContrastiveNet(inner, 5, project, predict)

    return [one(s) for s in range(replicas)]


def views(replicas=2, n=8, seed=3):
    return [torch.randn(replicas, n, 1, 4, 4, generator=gen(seed + i)) for i in range(2)]


def begin(method, encoder=None, **settings):
    nets = networks(method, encoder=encoder)
    objective = contrastive.ContrastiveObjective(nets[0], method, **{"queue": 16, **settings})
    return objective, objective.start(nets, training.generators(0, 2))


@pytest.mark.parametrize("method", contrastive.METHODS)
def test_replicas_are_runs_of_their_own_and_learn(method):
    objective, params = begin(method)
    batch = views()
    steps = {"steps": 10, "optimizer": training.SGD(0.05)}
    both = training.fit(objective, params, tuple(batch), **steps)
    alone = training.fit(objective, {k: v[1:] for k, v in params.items()}, tuple(b[1:] for b in batch), **steps)
    for k, v in alone.params.items():
        assert torch.allclose(both.params[k][1:], v, atol=2e-4), k
    if method != "moco":  # whose queue holds the keys of this one batch
        assert (both.log["loss"][-1] < both.log["loss"][0]).all()


@pytest.mark.parametrize("method", contrastive.METHODS)
def test_convolutions_run_too(method):
    objective, params = begin(method, lambda: nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()))
    loss, grads = objective(params, *views())
    assert loss.isfinite().all() and all(g.isfinite().all() for g in grads.values())


def test_moco_moves_its_copy_and_its_queue():
    objective, params = begin("moco", momentum=0.9)
    name = "encoder.1.weight"
    params[name] += 1.0
    before, query, old = params["key." + name].clone(), params[name].clone(), params["queue"].clone()
    first, second = views()
    objective(params, first, second)
    assert torch.allclose(params["key." + name], 0.9 * before + 0.1 * query)
    assert torch.equal(params["queue"][:, 16:], old[:, :0]) and params["queue"].shape == old.shape
    slow = {k: params["key." + k] for k in objective.net.state_dict()}
    keys = torch.cat([objective._embed(slow, view)[0] for view in (first, second)], 1)
    assert torch.allclose(params["queue"], keys, atol=1e-6)  # 16 keys fill it


def test_the_queue_is_first_in_first_out():
    objective, params = begin("moco", queue=20)
    old = params["queue"].clone()
    objective(params, *views())
    assert torch.equal(params["queue"][:, 16:], old[:, :4])


def test_simsiam_stops_the_gradient():
    """With the targets frozen by hand the gradient is the same."""
    objective, params = begin("simsiam")
    batch = views()
    _, grads = objective(params, *batch)
    with torch.no_grad():
        z1, z2 = (objective._embed(params, view)[0] for view in batch)
    leaves = {k: v.detach().clone().requires_grad_() for k, v in params.items()}
    p1, p2 = (objective._embed(leaves, view)[1] for view in batch)
    loss = -((p1 * z2).sum(-1) + (p2 * z1).sum(-1)).mean(1) / 2
    own = torch.autograd.grad(loss.sum(), leaves["encoder.1.weight"])[0]
    assert torch.allclose(grads["encoder.1.weight"], own, atol=1e-6)


def with_head(params, classes=3):
    head = {"head.weight": torch.zeros(2, classes, 5), "head.bias": torch.zeros(2, classes)}
    return params | head


def test_regularisation_without_weight_is_fine_tuning():
    objective, params = begin("simclr")
    batch = (*views(), torch.randint(3, (2, 8), generator=gen(9)))
    steps = {"steps": 10, "optimizer": training.SGD(0.1)}
    none = training.fit(contrastive.RegularisedObjective(objective, 0.0), with_head(params), batch, **steps)
    tiny = training.fit(contrastive.RegularisedObjective(objective, 1e-9), with_head(params), batch, **steps)
    much = training.fit(contrastive.RegularisedObjective(objective, 1.0), with_head(params), batch, **steps)
    for k, v in none.params.items():
        assert torch.allclose(v, tiny.params[k], atol=1e-6)
    assert not torch.allclose(none.params["encoder.1.weight"], much.params["encoder.1.weight"], atol=1e-4)
    loss, _ = contrastive.RegularisedObjective(objective, 2.0)(with_head(params), *batch)
    own, _ = objective(params, *batch[:2])
    assert torch.allclose(loss, math.log(3) + 2 * own)


def test_wrong_settings():
    net = networks("moco")[0]
    for wrong in ({"method": "byol"}, {"temperature": 0.0}, {"momentum": 1.0}, {"queue": 0}):
        with pytest.raises(ValueError):
            contrastive.ContrastiveObjective(net, **{"method": "moco", **wrong})
    with pytest.raises(ValueError):
        contrastive.RegularisedObjective(contrastive.ContrastiveObjective(net, "moco"), -1.0)


# --- Views ---

PLAIN = torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])  # the whole image, upright, as bright as it was
AUGMENT = data.Augmentation((0.25, 1.0), 90.0)


def test_in_the_middle_of_the_ranges_nothing_changes():
    x = torch.rand(4, 3, 9, 9, generator=gen())
    assert torch.allclose(AUGMENT.apply(x, PLAIN.expand(4, -1)), x, atol=1e-5)


def test_the_grid_is_that_of_affine_grid():
    maps = torch.randn(5, 2, 3, generator=gen(), dtype=torch.float64)
    expected = F.affine_grid(maps, [5, 1, 7, 4], align_corners=False)
    assert torch.allclose(data._sampling_grid(maps, 7, 4), expected, rtol=0, atol=1e-12)


def test_turn_crop_contrast_and_brightness():
    x = 0.6 * torch.rand(4, 1, 8, 8, generator=gen())

    def changed(images, **values):
        draws = PLAIN.repeat(len(images), 1)
        for place, value in values.items():
            draws[:, int(place[1:])] = value
        return AUGMENT.apply(images, draws)

    assert torch.allclose(changed(x, _2=1.0), x.rot90(1, (2, 3)), atol=1e-5)
    assert torch.allclose(changed(x, _6=1.0), 1.4 * x, atol=1e-5)
    mean = x.mean((1, 2, 3), keepdim=True)
    assert torch.allclose(changed(x, _5=0.0), mean + 0.6 * (x - mean), atol=1e-5)
    # a quarter of the area of a ramp spans half of its range
    ramp = torch.linspace(0, 1, 64).expand(50, 1, 64, 64)
    crop = changed(ramp, _0=0.0, _3=torch.linspace(0, 1, 50))
    span = crop[..., -1] - crop[..., 0]
    wider = changed(ramp, _0=0.0, _1=1.0)
    assert (span - 0.5).abs().max() < 0.02 and (wider[..., -1] - wider[..., 0] - 3**-0.5).abs().max() < 0.02
    assert crop[..., 0].min() < 0.1 and crop[..., -1].max() > 0.9


def test_a_wrong_range():
    with pytest.raises(ValueError, match="scale must be a range"):
        data.Augmentation((0.0, 1.0), 0.0)


@pytest.mark.parametrize(("name", "classes"), [("letters", 26), ("photographs", 12), ("relief", 12)])
def test_picture_sets(name, classes):
    x, y = data.PICTURE_SETS[name](12)
    assert x.shape[1:] == (1, 12, 12) and len(x) == len(y) >= 1000
    assert x.min() >= 0 and x.max() <= 1 and x.std() > 0.05
    assert y.bincount().tolist() == [len(y) // classes] * classes
    again, _ = data.PICTURE_SETS[name](12)
    assert torch.equal(x, again)


# --- The study of pictures ---


def small_study(own=40):
    sets = study.load_pictures("digits", 8)
    setting = {"runs": 2, "seed": 0, "device": torch.device("cpu"), "batch": 16, "step_size": 0.01, "temperature": 0.2}
    return study.Study(sets, own, study.make_encoder("mlp", 8, 16, 8), 8, [20], **setting)


def test_more_unlabelled_pictures_than_half_of_a_set_are_refused():
    sets = study.load_pictures("digits", 8)
    study.check_own_images(sets, 546)
    with pytest.raises(ValueError, match="own_images must be at most 546, half of the set letters, got 600"):
        study.check_own_images(sets, 600)


def test_runs_start_alike_on_every_union_and_see_no_labelled_picture():
    one = small_study()
    start, again = one.start("simclr"), one.start("simclr")
    assert all(torch.equal(start[k], again[k]) for k in start)
    target = one.sets["handwriting"][0]
    assert torch.equal(torch.cat([target[:40], one.known[0], one.test[0]]), target)
    trained = one.pretrain("simclr", ["handwriting"], 2)
    assert not torch.equal(trained["encoder.1.weight"], start["encoder.1.weight"])


def test_accuracies_are_those_of_a_probe():
    one = small_study()
    found = one.judge(lambda x: 10.0 * x.flatten(1)[None])
    assert found["target"].shape == (1, 2) and found["target"][0, 0] < found["target"][0, 1] and found["target"][0, 1] > 85
    weights = [one.classes[name] for name in study.SETS]
    assert weights == [10, 12, 12, 26]
    mean = sum(w * found[name] for w, name in zip(weights, study.SETS)) / sum(weights)
    assert found["average"] == pytest.approx(mean)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_adapters_learn_from_their_own_labels(weight):
    one = small_study()
    start = one.start("simclr")
    found = one.adapt(start, weight, 100, 400)
    one.known = one.known[0], one.known[1].roll(1)  # labels of other pictures
    assert found.min() > one.adapt(start, weight, 100, 400).max() + 5
