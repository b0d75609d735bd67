"""Modules that two or more chapters use."""

from mvnb.models.activations import smoothed_relu, smoothed_relu_grad
from mvnb.models.growth import Growth, grow, post_stacking, search_space
from mvnb.models.linear_attention import AttentionObjective, LinearSelfAttention, linear_attention, prompt_moments
from mvnb.models.mask_reconstruction import (
    FineTuneObjective,
    MaskedAutoencoderObjective,
    TeacherStudentObjective,
    head_objective,
)
from mvnb.models.networks import MLP, MLPObjective, ResidualMLP, ResidualMLPObjective, ResNet18, ResNet20, SmallConvNet
from mvnb.models.patch_cnn import PatchCNN, PatchObjective, patch_features, patch_logits
from mvnb.models.polynomial import PolynomialNet, PolynomialObjective, group_norm, neuron_norms, polynomial_logits
from mvnb.models.relu_patches import (
    ReluPatchObjective,
    compressed_detectors,
    dense_detectors,
    detector_masks,
    max_read_out,
    relu_logits,
    relu_responses,
    stratified_detectors,
)
from mvnb.models.soft_threshold import (
    SoftThresholdFilter,
    SoftThresholdObjective,
    SurvivorObjective,
    step_keys,
)
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
from mvnb.models.window_net import WindowNet, WindowObjective, window_jacobian

__all__ = [
    "MLP",
    "AnswerObjective",
    "AttentionObjective",
    "FineTuneObjective",
    "Growth",
    "LinearSelfAttention",
    "MLPObjective",
    "MaskedAutoencoderObjective",
    "PatchCNN",
    "PatchObjective",
    "PolynomialNet",
    "PolynomialObjective",
    "ReluPatchObjective",
    "ResNet18",
    "ResNet20",
    "ResidualMLP",
    "ResidualMLPObjective",
    "SmallConvNet",
    "SoftThresholdFilter",
    "SoftThresholdObjective",
    "SurvivorObjective",
    "TeacherStudentObjective",
    "Transformer",
    "TransformerObjective",
    "TwoLayer",
    "TwoLayerObjective",
    "WindowNet",
    "WindowObjective",
    "compressed_detectors",
    "dense_detectors",
    "detector_masks",
    "group_norm",
    "grow",
    "head_objective",
    "initial_parameters",
    "linear_attention",
    "max_read_out",
    "neuron_norms",
    "patch_features",
    "patch_logits",
    "polynomial_logits",
    "post_stacking",
    "prompt_moments",
    "relu_logits",
    "relu_responses",
    "residual_stream",
    "search_space",
    "smoothed_relu",
    "smoothed_relu_grad",
    "step_keys",
    "stratified_detectors",
    "tangent_features",
    "tangent_objective",
    "tangent_outputs",
    "transformer_logits",
    "two_layer_outputs",
    "window_jacobian",
]
