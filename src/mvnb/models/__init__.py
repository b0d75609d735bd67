"""Modules that two or more chapters use."""

from mvnb.models.activations import smoothed_relu, smoothed_relu_grad
from mvnb.models.networks import MLP, ResNet18, SmallConvNet
from mvnb.models.patch_cnn import PatchCNN, PatchObjective, patch_logits

__all__ = [
    "MLP",
    "PatchCNN",
    "PatchObjective",
    "ResNet18",
    "SmallConvNet",
    "patch_logits",
    "smoothed_relu",
    "smoothed_relu_grad",
]
