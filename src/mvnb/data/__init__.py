"""Data: distributions as frozen dataclasses with ``sample(n, generator)``, and real images by name."""

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
from mvnb.data.features import orthonormal_features
from mvnb.data.hierarchical import HierarchicalMultiView, HierarchicalPatches
from mvnb.data.images import DATASETS, Images, load_images
from mvnb.data.label_functions import (
    cluster_within,
    grouped_labels,
    hierarchy_level,
    random_ids,
    rebalanced_counts,
)
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
from mvnb.data.signal_in_noise import SignalInNoise, SignalPoints
from mvnb.data.sparse_multi_view import SparseMultiView, SparsePatches
from mvnb.data.two_views import ConcatenatedViews, PrototypeMixture, class_pairing, draw_companions

__all__ = [
    "DATASETS",
    "PLACEMENTS",
    "ConcatenatedViews",
    "DecisionLists",
    "HierarchicalMultiView",
    "HierarchicalPatches",
    "Images",
    "MultiView",
    "Patches",
    "Points",
    "PrototypeMixture",
    "Sequences",
    "SignalInNoise",
    "SignalPoints",
    "SimpleMultiView",
    "SparseMultiView",
    "SparsePatches",
    "class_pairing",
    "cluster_within",
    "distractor_background",
    "draw_companions",
    "draw_corners",
    "draw_labels",
    "embed",
    "gaussian_background",
    "grouped_labels",
    "hierarchy_level",
    "keep_feature",
    "load_images",
    "orthonormal_features",
    "paste",
    "place",
    "random_ids",
    "random_positions",
    "rebalanced_counts",
    "resize",
    "texture_background",
]
