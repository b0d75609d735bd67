"""Inputs of the runs and measures of chapter 12: methods, checkpoints, domains, decays and seeds."""

import numpy as np
import pytest
import torch
from test_nuclear_norm_criteria import same

from mvnb import kept_runs, training
from mvnb.papers.nuclear_norm import measure, model
from mvnb.papers.nuclear_norm import training as arms
from mvnb.papers.nuclear_norm.data import EnvironmentFeatures, FramedDomains
from mvnb.papers.nuclear_norm.training import Comparison, LeftOut, stable_rank

D64 = torch.float64


def test_claims_on_the_comparison_read_their_methods():
    names = [*arms.methods(0.6), *measure.SWAD.values()]
    reached = {name: np.random.default_rng(k).random(3) for k, name in enumerate(names)}
    pairs = {"erm": "ERM-NU/ERM", "mixup": "Mixup-NU/Mixup", "swad": "SWAD-NU/SWAD"}

    def gain(pair):
        return np.subtract(*(reached[name] for name in pair.split("/")))

    expected = {f"nu-helps-{key}": gain(pair) for key, pair in pairs.items()}
    rivals = {"irm": "ERM-NU/IRM", "vrex": "ERM-NU/VREx", "dro": "ERM-NU/GroupDRO"}
    expected["nu-above-risk-methods"] = {key: gain(pair) for key, pair in rivals.items()}
    expected |= {"nu-above-decay": gain("ERM-NU/weight decay"), "decay-does-not-help": gain("weight decay/ERM")}
    expected["nu-against-coral"] = {"erm": gain("ERM-NU/CORAL"), "swad": gain("SWAD-NU/SWAD-CORAL")}
    same(measure.method_claims(reached), expected)


def test_each_curve_is_of_its_own_decay():
    curves = measure.transition_curves(16, 0.3, [1.0, 0.01])
    for decay, (sizes, exact, normal) in curves.items():
        ((group, _, alpha, beta),) = measure.decay_optima(16, 0.3, [sizes[4]], [decay])
        assert exact[4] == pytest.approx(group.accuracy(alpha / beta))
        assert normal[4] == pytest.approx(group.normal_accuracy(alpha / beta))


def test_the_dial_reads_accuracy_and_features_at_the_end():
    number, z = torch.arange(8.0).view(2, 4), torch.randn(2, 4, 9, 3, dtype=D64) + 5
    found = measure.of_features(LeftOut(*(number + 10 * k for k in range(8)), z), 2)
    assert found["there"][1, 1].tolist() == [1600, 1700]  # of `last`, in %
    assert found["head"][1, 0].tolist() == [74, 75]
    assert found["rank"][0, 1, 0] == pytest.approx(stable_rank(z[0, 2]).item())
    assert found["centred"][0, 1, 0] == pytest.approx(stable_rank(z[0, 2] - z[0, 2].mean(0)).item())
    assert found["length"][0, 1, 0] == pytest.approx(z[0, 2].norm(dim=1).mean().item())


def test_weights_of_the_penalty_are_read_in_their_order():
    pair, swept = (
        {"rank": np.array(rows)[:, None, None] * np.ones((n, 4))} for rows, n in (([0.0, 0.6], 3), ([0.05, 4, 0.2], 2))
    )
    found = measure.over_weights(pair, swept, [0.0, 0.6, 0.05, 4, 0.2])["rank"]
    assert found.shape == (5, 2, 4) and found[:, 0, 0].tolist() == [0, 0.05, 0.2, 0.6, 4]


IMAGES = torch.rand(120, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 10


def test_what_is_returned_is_of_the_right_part_and_checkpoint(monkeypatch):
    def known(*args, **how):
        run, t = training.fit(*args, **how), torch.arange(5.0, dtype=D64)[:, None].expand(5, 4)
        run.log["valid"], run.log["test"] = torch.stack([0.9 - (t - 1).abs() / 10, t], -1), t / 10  # the second is best
        run.log["train"] = torch.stack([t / 20, t + 1], -1)
        return run

    monkeypatch.setattr(arms, "fit", known)
    found = Comparison(*IMAGES, 4, 4, 5, 2, 0.01).run([{}], FramedDomains(), [0])
    seen = [getattr(found, name).unique().item() for name in ("best", "last", "valid", "train", "risk", "earlier")]
    assert seen == pytest.approx([0.1, 0.4, 0.6, 0.2, 5, 4])


def given_to_fit(monkeypatch, settings, **how):
    """The objective and the optimizer of a comparison of 20 steps with step size 0.1."""

    def stop(objective, *_, optimizer, **__):
        raise InterruptedError(objective, optimizer)

    monkeypatch.setattr(arms, "fit", stop)
    with pytest.raises(InterruptedError) as stopped:
        Comparison(*IMAGES, 4, 4, 20, 2, 0.1, **how).run(settings, FramedDomains(), [0])
    return stopped.value.args


@pytest.mark.parametrize("falling", [False, True])
def test_the_step_size_falls_if_it_should(monkeypatch, falling):
    _, optimizer = given_to_fit(monkeypatch, [{}], falling=falling)
    rates = [0.1 * (training.cosine(step, 20) if falling else 1) for step in (0, 10, 19)]
    assert [optimizer.lr(step) for step in (0, 10, 19)] == pytest.approx(rates)


def test_adam_starts_anew_for_irm_and_vrex_only(monkeypatch):
    objective, optimizer = given_to_fit(monkeypatch, [{}, {"irm": 1}, {"mixup": 1}])
    assert optimizer.anew.tolist() == [False] * 4 + [True] * 4 + [False] * 4
    assert optimizer.restart == objective.warmup == 2


def test_the_risk_by_which_weights_are_averaged_is_a_cross_entropy():
    found = Comparison(*IMAGES, 4, 4, 5, 2, 1e-6).run([{}], FramedDomains(), [0])
    assert (found.risk - np.log(10)).abs().max() < 0.3  # ten classes, next to no training


def test_each_run_of_the_model_has_points_of_its_own():
    world = EnvironmentFeatures.uniform(3, 2, 0.3)
    both, alone = (model.LabelledFeatures.draw(world, seeds, 500) for seeds in ((0, 1), (1,)))
    for name in ("z", "there"):
        first, second = getattr(both, name)
        assert not first.equal(second) and second.equal(getattr(alone, name)[0])


def test_marks_are_right_and_wrong_independently():
    y, n = torch.zeros(4000, dtype=torch.long), 4000
    x = FramedDomains(agree=0.5, cues=2).frame(torch.zeros(n, 1, 8, 8), y, y, 10, torch.Generator().manual_seed(0))
    right = torch.stack([x[:, 0, 0, 1], x[:, 0, 1, -1]]) == 1  # class 0 above and on the right
    assert right.double().mean(1).tolist() == pytest.approx([0.55] * 2, abs=0.03)
    assert right.all(0).double().mean().item() == pytest.approx(0.55**2, abs=0.03)


def test_an_arm_has_the_set_and_the_world_of_its_name():
    run = kept_runs.declared("nuclear_norm")["domains"].parameters
    assert all(name == f"{one['set']}, {one['world']}" for name, one in run["arms"].items())
    assert run["worlds"]["one strong hint"]["agree"] == 0.9 and run["worlds"]["no hint"]["cues"] == 0


def test_a_method_with_nu_is_the_method_and_the_norm():
    methods = arms.methods(0.7)
    for name in ("ERM", "Mixup"):
        assert methods[f"{name}-NU"] == methods[name] | {"nuclear": 0.7}


def test_the_norm_sets_in_after_a_tenth_of_the_steps(monkeypatch):
    objective, optimizer = given_to_fit(monkeypatch, [{"nuclear": 1}])
    assert objective.warmup == optimizer.restart == 2


def test_a_run_is_tested_on_the_domain_that_it_leaves_out():
    how = Comparison(torch.zeros(200, 1, 8, 8), torch.arange(200) % 10, 4, 4, 5, 2, 0.01)
    points = how.domains(FramedDomains(cues=0), [0, 1])
    ground = (20 * points.x[:, 0]).round().long()  # the grey 0.05 e tells the domain e
    for row, (train, valid, test) in enumerate(zip(points.train, points.valid, points.test)):
        assert ground[test].unique().tolist() == [row % 4] and row % 4 not in ground[valid]
        assert [ground[one].unique().tolist() for one in train] == [[e] for e in range(4) if e != row % 4]


def test_features_are_of_the_domain_left_out():
    how = Comparison(*IMAGES, 4, 4, 5, 2, 0.01, domain=torch.arange(120) % 4)
    found = how.run([{}], FramedDomains(), [0])
    assert found.features.shape == (1, 4, 30, 4)  # all 30 points, of training points there would be 18


def test_the_average_is_chosen_by_the_risk_in_validation(monkeypatch):
    seen = []
    monkeypatch.setattr(arms, "_loss_valley", lambda losses: seen.append(losses) or (0, 4))

    def known(*args, **how):
        run = training.fit(*args, **how)
        run.log["valid"][..., 1] = 7.0
        return run

    monkeypatch.setattr(arms, "fit", known)
    Comparison(*IMAGES, 4, 4, 5, 2, 0.01).run([{}], FramedDomains(), [0])
    assert torch.stack(seen).eq(7).all() and len(seen) == 4
