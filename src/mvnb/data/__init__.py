"""Data: distributions as frozen dataclasses with ``sample(n, generator)``, and real images by name."""

from mvnb.data.features import orthonormal_features
from mvnb.data.images import DATASETS, Images, load_images
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
from mvnb.data.two_views import ConcatenatedViews, PrototypeMixture, class_pairing, draw_companions

__all__ = [
    "DATASETS",
    "ConcatenatedViews",
    "Images",
    "MultiView",
    "Patches",
    "Points",
    "PrototypeMixture",
    "SimpleMultiView",
    "class_pairing",
    "draw_companions",
    "draw_labels",
    "embed",
    "keep_feature",
    "load_images",
    "orthonormal_features",
    "place",
    "random_positions",
]
