"""Data: distributions, as dataclasses with a method ``sample(n, generator)``, and real images and texts, loaded by name."""

from mvnb._renamed import old_names
from mvnb.data.images import DATASETS, Images, load_images, resize
from mvnb.data.mixtures import GaussianMixture
from mvnb.data.multi_view import (
    MultiView,
    Patches,
    Points,
    SimpleMultiView,
    embed,
    place,
)
from mvnb.data.sentiment import SENTIMENT_SETS, Rated, load_sentiment

__all__ = [
    "DATASETS",
    "SENTIMENT_SETS",
    "GaussianMixture",
    "Images",
    "MultiView",
    "Patches",
    "Points",
    "Rated",
    "SimpleMultiView",
    "embed",
    "load_images",
    "load_sentiment",
    "place",
    "resize",
]

__getattr__ = old_names(__name__, orthonormal_features="mvnb.papers.feature_emergence.data.orthonormal_features")
