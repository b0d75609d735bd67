"""Four methods on small sets of pictures, each at its own step and for equally many passes, on growing unions."""

from mvnb.papers.contrastive_tradeoff import measure, training
from mvnb.papers.contrastive_tradeoff.data import SETS, TARGET, SmallSets
from mvnb.papers.contrastive_tradeoff.model import Networks, make_encoder
from mvnb.training import percent_fallen, stack, to_device


def run(seed, device, *, dataset, judged, side, own_images, encoder, labels, pretraining, arms) -> dict[str, dict]:
    """Return by arm, and by number of sets in pretraining, what :func:`measure.probe` finds for one network.

    An untrained network and raw pixels have the number 0. ``judged`` are pictures of the target: ``"test"``, or ``"valid"``,
    labelled otherwise. An arm has ``unions``, numbers of sets, and settings of :func:`training.pretraining`.
    """
    sets = SmallSets.load(dataset, side, own_images, device)
    if judged == "valid":
        sets = SmallSets(sets.sets | {TARGET: [part[: -sets.n_test] for part in sets.sets[TARGET]]}, own_images)
    nets = Networks(make_encoder(side=side, **encoder), encoder["features"], 1, seed, device)

    def probed(features):
        found = measure.probe(features, sets, [*labels, len(sets.known[1])])
        return {"target": found["target"][0].round(3).tolist(), "average": round(float(found["average"][0]), 3)}

    untrained = to_device(stack(nets.untrained("simclr")), device)
    values = {"pixels": {"0": probed(lambda x: x.flatten(1)[None])}}
    values["untrained"] = {"0": probed(lambda x: nets.encode(untrained, x))}
    for name, arm in arms.items():
        setting = pretraining | {key: value for key, value in arm.items() if key != "unions"}
        for k in arm["unions"]:
            trained = training.pretraining(nets, sets.pool(SETS[:k]), **setting)
            found = probed(lambda x, params=trained.params: nets.encode(params, x))
            found["fell"] = percent_fallen(trained.log["loss"][:, 0].tolist())
            values.setdefault(name, {})[str(k)] = found
    return values


def beginning(seed, device, *, side, encoder, **_) -> list[float]:
    """Return the losses of the first 50 steps of MoCo, in batches of 40 of 400 pictures that ship with a package."""
    sets = SmallSets.load("mnist5k", side, 400, device)
    nets = Networks(make_encoder(side=side, **encoder), encoder["features"], 1, seed, device)
    setting = {"method": "moco", "passes": 5, "batch": 40, "lr": 0.003, "temperature": 0.1}
    return training.pretraining(nets, sets.pool(SETS[:1]), **setting).log["loss"][:, 0].tolist()
