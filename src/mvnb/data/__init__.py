"""Data: distributions as frozen dataclasses with ``sample(n, generator)``, and real images by name."""

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
from mvnb.data.sparse_multi_view import SparseMultiView, SparsePatches
from mvnb.data.two_views import ConcatenatedViews, PrototypeMixture, class_pairing, draw_companions

__all__ = [
    "DATASETS",
    "ConcatenatedViews",
    "HierarchicalMultiView",
    "HierarchicalPatches",
    "Images",
    "MultiView",
    "Patches",
    "Points",
    "PrototypeMixture",
    "SimpleMultiView",
    "SparseMultiView",
    "SparsePatches",
    "class_pairing",
    "cluster_within",
    "draw_companions",
    "draw_labels",
    "embed",
    "grouped_labels",
    "hierarchy_level",
    "keep_feature",
    "load_images",
    "orthonormal_features",
    "place",
    "random_ids",
    "random_positions",
    "rebalanced_counts",
]
