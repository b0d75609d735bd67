"""Modules that two or more chapters use."""

from mvnb.models.activations import smoothed_relu, smoothed_relu_grad
from mvnb.models.linear_attention import AttentionObjective, LinearSelfAttention, linear_attention, prompt_moments
from mvnb.models.networks import MLP, MLPObjective, ResidualMLP, ResidualMLPObjective, ResNet18, ResNet20, SmallConvNet
from mvnb.models.patch_cnn import PatchCNN, PatchObjective, patch_features, patch_logits
from mvnb.models.transformer import (
    AnswerObjective,
    Transformer,
    TransformerObjective,
    initial_parameters,
    residual_stream,
    transformer_logits,
)
from mvnb.models.two_layer import (
    TwoLayer,
    TwoLayerObjective,
    tangent_features,
    tangent_objective,
    tangent_outputs,
    two_layer_outputs,
)

__all__ = [
    "MLP",
    "AnswerObjective",
    "AttentionObjective",
    "LinearSelfAttention",
    "MLPObjective",
    "PatchCNN",
    "PatchObjective",
    "ResNet18",
    "ResNet20",
    "ResidualMLP",
    "ResidualMLPObjective",
    "SmallConvNet",
    "Transformer",
    "TransformerObjective",
    "TwoLayer",
    "TwoLayerObjective",
    "initial_parameters",
    "linear_attention",
    "patch_features",
    "patch_logits",
    "prompt_moments",
    "residual_stream",
    "smoothed_relu",
    "smoothed_relu_grad",
    "tangent_features",
    "tangent_objective",
    "tangent_outputs",
    "transformer_logits",
    "two_layer_outputs",
]
