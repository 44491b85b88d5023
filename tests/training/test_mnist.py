"""MNIST: the embedded copy, and idx files of every kind of damage."""

from __future__ import annotations

import gzip
import tempfile
import tracemalloc
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError, DataError
from diffsketch.training.data import load_mnist, mnist
from diffsketch.training.data.mnist import MAX_BYTES, read_idx
from tests.helpers.refusals import refused
from tests.training.reference import idx_bytes

# Damage is looked for in small files; a slow disk must not fail the test.
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def zipped(content: bytes) -> bytes:
    """Without the time of day, which would give the test another name in every process."""
    return gzip.compress(content, mtime=0)


IMAGE_FILE = idx_bytes((3, 2, 5), bytes(range(30)))
LABEL_FILE = idx_bytes((3,), bytes([7, 2, 255]))


def write_test_split(
    directory: Path, images: bytes = IMAGE_FILE, labels: bytes = LABEL_FILE
) -> None:
    (directory / IMAGES).write_bytes(images)
    (directory / LABELS).write_bytes(labels)


@pytest.mark.parametrize(
    ("split", "first", "ones", "mean"),
    [("train", [5, 0, 4, 1, 9], 6742, 0.1307), ("test", [7, 2, 1, 0, 4], 1135, 0.1325)],
)
def test_embedded_splits_are_mnist(
    split: Literal["train", "test"], first: list[int], ones: int, mean: float
) -> None:
    data = load_mnist(split=split)
    count = {"train": 60_000, "test": 10_000}[split]
    assert len(data) == count
    assert data.inputs.shape == (count, 28, 28)
    assert data.inputs.dtype == torch.uint8
    assert data.labels.dtype == torch.int64
    assert data.labels[:5].tolist() == first
    assert int((data.labels == 1).sum()) == ones
    assert sorted(set(data.labels.tolist())) == list(range(10))
    pixel_mean = int(data.inputs.sum(dtype=torch.int64)) / data.inputs.numel() / 255
    assert round(pixel_mean, 4) == mean


@pytest.mark.parametrize("damaged", [IMAGES, LABELS])
def test_flipped_bit_in_embedded_images_is_found(
    damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "embedded_file", lambda name: tmp_path / name)
    # Without what other tests have read.
    monkeypatch.setattr(mnist, "_embedded", mnist._embedded.__wrapped__)
    with pytest.raises(DataError, match=rf"{IMAGES}\.gz: damaged or unreadable"):
        load_mnist(split="test")  # the files are lost
    for name in (IMAGES, LABELS):
        source = files("diffsketch.training.data") / "files" / f"{name}.gz"
        (tmp_path / f"{name}.gz").write_bytes(source.read_bytes())
    assert len(load_mnist(split="test")) == 10_000
    file = tmp_path / f"{damaged}.gz"
    content = bytearray(gzip.decompress(file.read_bytes()))
    content[5_000] ^= 1
    # Packed anew the file is a valid one, so only the checksum can tell.
    file.write_bytes(gzip.compress(content, compresslevel=1))
    assert len(load_mnist(tmp_path, split="test")) == 10_000
    with pytest.raises(DataError, match=rf"{damaged}\.gz: checksum failure: expected SHA-256"):
        load_mnist(split="test")


@pytest.mark.parametrize(
    ("dash", "packed", "suffix"), [("-", True, ".gz"), (".", False, ""), ("-", True, "")]
)
def test_user_directory_spellings(tmp_path: Path, dash: str, packed: bool, suffix: str) -> None:
    for stem, content in (("train-images-idx3", IMAGE_FILE), ("train-labels-idx1", LABEL_FILE)):
        name = stem.replace("-idx", f"{dash}idx") + "-ubyte" + suffix
        (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    data = load_mnist(str(tmp_path), split="train")
    assert data.inputs.flatten().tolist() == list(range(30))
    assert data.inputs.shape == (3, 2, 5)
    assert data.labels.tolist() == [7, 2, 255]


def test_plain_goes_before_gzipped(tmp_path: Path) -> None:
    write_test_split(tmp_path)
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(idx_bytes((3,), bytes(3))))
    assert load_mnist(tmp_path, split="test").labels.tolist() == [7, 2, 255]


def test_all_missing_files_are_listed(tmp_path: Path) -> None:
    (tmp_path / LABELS).mkdir()  # A folder of that name is not the file.
    with pytest.raises(DataError) as caught:
        load_mnist(tmp_path, split="test")
    assert str(tmp_path) in str(caught.value)
    assert f"missing {IMAGES} and {LABELS}" in str(caught.value)
    (tmp_path / IMAGES).write_bytes(IMAGE_FILE)
    refused(DataError, rf"missing {LABELS} \(", load_mnist, tmp_path, split="test")
    with pytest.raises(DataError, match="nowhere: cannot be read as a directory"):
        load_mnist(tmp_path / "nowhere", split="train")
    with pytest.raises(ArgumentError, match="split must be 'train' or 'test', got split='valid'"):
        load_mnist(split="valid")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected it to start with 00 00 08 03, found nothing"),
        (b"\x1f\x8b", "damaged or unreadable"),
        (b"garbage, not idx", "found 67 61 72 62"),
        (zipped(b"garbage"), "found 67 61 72 62"),
        (zipped(IMAGE_FILE)[:-12], "damaged or unreadable"),
        (zipped(IMAGE_FILE)[:-8] + bytes(8), "CRC check failed"),
        (zipped(IMAGE_FILE) + b"more", "damaged or unreadable"),
        (b"\0\0\x0d\x03" + IMAGE_FILE[4:], "expected it to start with 00 00 08 03"),
        (LABEL_FILE, "in 3 dimension"),
        (IMAGE_FILE[:9], "header is cut short: expected 16 bytes, found 9"),
        (IMAGE_FILE[:-1], r"expected 46 bytes .*shape \(3, 2, 5\).*, found only 45"),
        (IMAGE_FILE + b"\0", "expected 46 bytes .*, found more"),
        (idx_bytes((0, 28, 28), b""), r"dimensions of at least 1, found \(0, 28, 28\)"),
        (idx_bytes((2, 2, 5), bytes(20)), "found 2 images, 3 labels"),
    ],
)
def test_damaged_images_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_test_split(tmp_path, images=content)
    with pytest.raises(DataError, match=message) as caught:
        load_mnist(tmp_path, split="test")
    assert str(tmp_path / IMAGES) in str(caught.value)


WITHIN = idx_bytes((MAX_BYTES // 2**16, 2**8, 2**8), bytes(100))
BEYOND = idx_bytes((2**32 - 1,) * 3, bytes(100))


@pytest.mark.parametrize(
    ("content", "message", "most"),
    [
        # Just within the limit: refused for its length, after reading 100 bytes and not 2 GiB.
        (WITHIN, "found only 116", 2**23),
        (zipped(WITHIN), "found only 116", 2**23),
        (BEYOND, "expected at most", 2**23),
        (zipped(BEYOND), "expected at most", 2**23),
        (zipped(IMAGE_FILE + bytes(2**25)), "found more", 2**22),
        # Data that ends where a piece of the reading ends: only one more read sees the extra byte.
        (idx_bytes((16, 2**8, 2**8), bytes(2**20 + 1)), "found more", 2**23),
    ],
    ids=["within", "within, gzipped", "beyond", "beyond, gzipped", "bomb", "whole pieces"],
)
def test_memory_is_bounded(tmp_path: Path, content: bytes, message: str, most: int) -> None:
    write_test_split(tmp_path, images=content)
    tracemalloc.start()
    refused(DataError, message, load_mnist, tmp_path, split="test")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


@SETTINGS
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple),
    packed=st.booleans(),
    data=st.data(),
)
def test_idx_round_trip(shape: tuple[int, ...], packed: bool, data: st.DataObject) -> None:
    count = torch.Size(shape).numel()
    values = data.draw(st.binary(min_size=count, max_size=count))
    content = idx_bytes(shape, values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(gzip.compress(content) if packed else content)
        found = read_idx(path, ndim=len(shape))
    assert found.shape == shape
    assert bytes(found.flatten().tolist()) == values


@st.composite
def mutations(draw: st.DrawFn, original: bytes) -> bytes:
    """The bytes with some overwritten, cut out or put in."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.integers(0, 8)))
        content[start:stop] = draw(st.binary(max_size=8))
    return bytes(content)


@SETTINGS
@given(
    images=mutations(IMAGE_FILE) | mutations(gzip.compress(IMAGE_FILE)) | st.binary(max_size=40),
    labels=st.just(LABEL_FILE) | mutations(LABEL_FILE) | mutations(gzip.compress(LABEL_FILE)),
)
def test_mutated_files_never_crash(images: bytes, labels: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_test_split(Path(folder), images, labels)
        try:
            data = load_mnist(folder, split="test")
        except DataError:
            return
    assert data.inputs.ndim == 3
    assert data.inputs.dtype == torch.uint8
    assert data.labels.shape == (len(data.inputs),)
    assert 0 <= int(data.labels.max()) < 256
