"""Models shared by two or more chapters."""

from mvnb._renamed import old_names
from mvnb.models.activations import smoothed_relu
from mvnb.models.networks import MLP, ResNet18, SmallConvNet
from mvnb.models.patch_cnn import PatchObjective, patch_features, patch_logits
from mvnb.models.transformer import (
    AnswerObjective,
    TransformerObjective,
    initial_parameters,
    residual_stream,
    transformer_logits,
)
from mvnb.models.two_layer import (
    TwoLayer,
    TwoLayerObjective,
    two_layer_outputs,
)

__all__ = [
    "MLP",
    "AnswerObjective",
    "PatchObjective",
    "ResNet18",
    "SmallConvNet",
    "TransformerObjective",
    "TwoLayer",
    "TwoLayerObjective",
    "initial_parameters",
    "patch_features",
    "patch_logits",
    "residual_stream",
    "smoothed_relu",
    "transformer_logits",
    "two_layer_outputs",
]

__getattr__ = old_names(__name__, linear_attention="mvnb.papers.looped_transformers.theory.linear_attention")
