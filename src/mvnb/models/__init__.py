"""Modules that two or more chapters use."""

from mvnb.models.activations import smoothed_relu, smoothed_relu_grad
from mvnb.models.linear_attention import AttentionObjective, LinearSelfAttention, prompt_moments
from mvnb.models.networks import MLP, ResNet18, SmallConvNet
from mvnb.models.patch_cnn import PatchCNN, PatchObjective, patch_features, patch_logits
from mvnb.models.two_layer import TwoLayer, TwoLayerObjective

__all__ = [
    "MLP",
    "AttentionObjective",
    "LinearSelfAttention",
    "PatchCNN",
    "PatchObjective",
    "ResNet18",
    "SmallConvNet",
    "TwoLayer",
    "TwoLayerObjective",
    "patch_features",
    "patch_logits",
    "prompt_moments",
    "smoothed_relu",
    "smoothed_relu_grad",
]
