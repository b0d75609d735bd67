"""Names of the package: submodules on first use, and errors that give the new name of a renamed one."""

import importlib
import subprocess
import sys

import pytest

import mvnb
from mvnb import training


@pytest.mark.parametrize("name", mvnb.__all__)
def test_submodules_need_no_import_of_their_own(name):
    program = f"import sys, mvnb; assert 'torch' not in sys.modules; print(mvnb.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"mvnb.{name}\n", done.stderr


def test_unknown_names_are_attribute_errors():
    for module in (mvnb, training):
        assert not hasattr(module, "nothing") and set(module.__all__) <= set(dir(module))


OLD = {"training.GD": "SGD", "training.stack_modules": "stack", "training.stacked": "ModuleObjective"}
OLD |= {"models.linear_attention": "mvnb.papers.looped_transformers.theory.linear_attention"}
OLD |= {"data.orthonormal_features": "mvnb.papers.feature_emergence.data.orthonormal_features"}
OLD |= {"probes.feature_accuracy": "mvnb.papers.midpoint_mixup.measure.feature_accuracy"}


@pytest.mark.parametrize("old, new", OLD.items())
def test_old_names_give_the_new_one(old, new):
    module, _, name = old.partition(".")
    with pytest.raises(ImportError, match=f"^mvnb.{old} is now {new}$"):
        getattr(getattr(mvnb, module), name)
    with pytest.raises(ImportError, match=f"^mvnb.{old} is now {new}$"):
        exec(f"from mvnb.{module} import {name}")
    where, _, name = (new if "." in new else f"mvnb.{module}.{new}").rpartition(".")
    assert callable(getattr(importlib.import_module(where), name))


@pytest.mark.parametrize(
    "kind, old, new", [("SGD", "step_size", "lr"), ("Adam", "beta2", "betas"), ("AdamW", "step_size", "lr")]
)
def test_old_arguments_give_the_new_one(kind, old, new):
    with pytest.raises(TypeError, match=f"^{kind}: the argument {old} is now {new}$"):
        getattr(training, kind)(**{old: 0.1})
