"""Methods of domain generalisation on framed images of two sets, each domain left out in turn, in worlds with several hints."""

from __future__ import annotations

import torch

from mvnb.data import load_images, resize
from mvnb.papers.nuclear_norm.data import FramedDomains
from mvnb.papers.nuclear_norm.training import Comparison


def comparison(dataset, seed, *, n_images, image_side, **how) -> Comparison:
    """Return the comparison on ``n_images`` images, drawn with the seed from all training and test images of a set."""
    raw = load_images(dataset)
    x, y = torch.cat([raw.x_train, raw.x_test]), torch.cat([raw.y_train, raw.y_test])
    drawn = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:n_images]
    return Comparison(resize(x[drawn], image_side), y[drawn], **how)


def run(seed, device, scratch, *, sets, worlds, arms, network) -> dict[str, dict]:
    """Return by arm and method the percentages right in each domain when it is left out, and how training ended.

    An arm has a ``set``, a ``world`` and ``methods``, penalties by name; a ``step_size`` of its own replaces that of the set.
    """
    values = {}
    for name, arm in arms.items():
        path = scratch / f"{name}.pt"
        if not path.exists():
            own = {"step_size": arm["step_size"]} if "step_size" in arm else {}
            how = comparison(arm["set"], seed, **network | sets[arm["set"]] | own)
            found = how.run(list(arm["methods"].values()), FramedDomains(**worlds[arm["world"]]), [seed], device)
            rows = {k: 100 * getattr(found, k) for k in ("best", "averaged", "valid", "train")}
            rows["settled"] = found.risk / found.earlier
            torch.save({k: dict(zip(arm["methods"], row.tolist())) for k, row in rows.items()}, path)
        values[name] = torch.load(path)
    return values


def beginning(seed, device, *, worlds, network, **_) -> list[float]:
    """Return the losses of the first 50 steps of ERM-NU on digits, which ship with a package, means over domains."""
    small = network | {"channels": [4, 8], "hidden": 16, "features": 16, "step_size": 0.003}
    how = comparison("digits", seed, n_images=800, image_side=8, steps=50, **small)
    first = next(iter(worlds.values()))
    return how.first_losses([{"nuclear": 0.1}], FramedDomains(**first), [seed], device).double().mean(1).tolist()
