"""Data: distributions as frozen dataclasses with ``sample(n, generator)``, and real images and text by name."""

from mvnb.data.backgrounds import (
    PLACEMENTS,
    distractor_background,
    draw_corners,
    gaussian_background,
    paste,
    resize,
    texture_background,
)
from mvnb.data.decision_lists import DecisionLists, Sequences
from mvnb.data.dictionary import DictionaryData, PatternCodes
from mvnb.data.domains import EnvironmentFeatures, FramedDomains, LeaveOneOut, domain_folder
from mvnb.data.features import orthonormal_features
from mvnb.data.hierarchical import HierarchicalMultiView, HierarchicalPatches
from mvnb.data.icl_regression import InContextRegression, Prompts
from mvnb.data.images import DATASETS, Images, load_images
from mvnb.data.label_functions import (
    cluster_within,
    grouped_labels,
    hierarchy_level,
    random_ids,
    rebalanced_counts,
)
from mvnb.data.language import (
    LANGUAGE_OBJECTIVES,
    LanguageBatch,
    causal_lm,
    masked_lm,
    prefix_lm,
    span_corruption,
    ul2_mixture,
)
from mvnb.data.mixtures import BlockParity, GaussianMixture, LinearMargin, MultiIndex
from mvnb.data.modular import ModularSum
from mvnb.data.multi_view import (
    MultiView,
    Patches,
    Points,
    SimpleMultiView,
    draw_labels,
    embed,
    keep_feature,
    place,
    random_positions,
)
from mvnb.data.sentiment import SENTIMENT_SETS, Rated, load_sentiment
from mvnb.data.signal_in_noise import SignalInNoise, SignalPoints
from mvnb.data.sparse_multi_view import SparseMultiView, SparsePatches
from mvnb.data.text import Text, load_text, structure_targets
from mvnb.data.two_views import ConcatenatedViews, PrototypeMixture, class_pairing, draw_companions

__all__ = [
    "DATASETS",
    "LANGUAGE_OBJECTIVES",
    "PLACEMENTS",
    "SENTIMENT_SETS",
    "BlockParity",
    "ConcatenatedViews",
    "DecisionLists",
    "DictionaryData",
    "EnvironmentFeatures",
    "FramedDomains",
    "GaussianMixture",
    "HierarchicalMultiView",
    "HierarchicalPatches",
    "Images",
    "InContextRegression",
    "LanguageBatch",
    "LeaveOneOut",
    "LinearMargin",
    "ModularSum",
    "MultiIndex",
    "MultiView",
    "Patches",
    "PatternCodes",
    "Points",
    "Prompts",
    "PrototypeMixture",
    "Rated",
    "Sequences",
    "SignalInNoise",
    "SignalPoints",
    "SimpleMultiView",
    "SparseMultiView",
    "SparsePatches",
    "Text",
    "causal_lm",
    "class_pairing",
    "cluster_within",
    "distractor_background",
    "domain_folder",
    "draw_companions",
    "draw_corners",
    "draw_labels",
    "embed",
    "gaussian_background",
    "grouped_labels",
    "hierarchy_level",
    "keep_feature",
    "load_images",
    "load_sentiment",
    "load_text",
    "masked_lm",
    "orthonormal_features",
    "paste",
    "place",
    "prefix_lm",
    "random_ids",
    "random_positions",
    "rebalanced_counts",
    "resize",
    "span_corruption",
    "structure_targets",
    "texture_background",
    "ul2_mixture",
]
