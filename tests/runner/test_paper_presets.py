"""The preset ``paper`` of each lesson, cut short: its networks and its code path, with few replicas, steps and points."""

from pathlib import Path

import numpy as np
import pytest

from mvnb.runner import catalogue, execution

ROOT = Path(__file__).resolve().parents[2]
# Numbers of replicas, steps, epochs and points, taken from the preset ``smoke`` instead. All else is as in ``paper``.
CUT = {
    "01": (
        "replicas midpoint_replicas erm_steps midpoint_steps dim_replicas dim_steps image_epochs image_replicas "
        "standin_epochs standin_replicas"
    ),
    "02": "replicas coarse_steps fine_steps ideal_steps sweep_steps image_epochs image_replicas",
    "03": (
        "replicas n_points mae_steps sl_steps n_test side_points side_steps side_replicas ts_steps image_points image_labels "
        "image_steps image_label_steps image_replicas"
    ),
    "05": (
        "replicas batch steps fast_replicas fast_steps kernel_draws many_draws kernel_points n_train n_test image_epochs "
        "image_batch image_replicas"
    ),
    "06": (
        "replicas one_step_sequences lemma_sets exact_steps column_steps column_batch uniform_steps extension_steps "
        "extension_batch extension_replicas n_test"
    ),
    "07": "replicas length index_step batch_size pretrain_steps growth_steps lag_steps n_valid n_end variant_steps",
    "13": (
        "replicas sgd_steps sgd_batch lookup_steps label_runs hidden own_images image_batch image_replicas epochs tune_steps"
    ),
    "14": "replicas scaling_draws limit_draws train_runs train_steps train_prompts train_batch skew_steps noise_draws",
    "15": "replicas steps test_prompts check_draws language_model",  # the language model's path runs with the defaults
}


@pytest.fixture(scope="module")
def noise_images(tmp_path_factory):
    """A folder with 60 training and 20 test images of noise, of the shape of each data set that is downloaded."""
    folder = tmp_path_factory.mktemp("images")
    for name, shape in {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}.items():
        x = np.random.default_rng(0).integers(256, size=(60, *shape), dtype=np.uint8)
        y = np.arange(60) % (100 if name == "cifar100" else 10)
        np.savez_compressed(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return folder


@pytest.mark.weekly
@pytest.mark.parametrize("number", CUT)
def test_paper_preset_cut_short(number, noise_images, tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", str(noise_images))
    chapter = catalogue.resolve(number, ROOT)
    paper, smoke = (catalogue.preset(chapter, name) for name in ("paper", "smoke"))
    execution.run(chapter, paper | {name: smoke[name] for name in CUT[number].split()}, tmp_path)
