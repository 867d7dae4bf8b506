"""`image-classification`: PNG, JPEG or WebP in, decoded and resized by Pillow to what the network takes."""

import binascii
import io
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image, ImageOps

from models.errors import NetworkRejected
from models.signature import Encoded, Result, Signature
from workers.engine import DTYPES, Engine
from workers.tasks import inspection
from workers.tasks.base import Item, ItemFault, Task
from workers.tasks.scores import Scores

MAX_PIXELS = 1 << 26  # more is a decompression bomb
MAX_SCANNED = 16 * MAX_PIXELS  # pixels of an image times its scans, each of which goes over all of them
_SCAN = b"\xff\xda"
_FORMATS = ("PNG", "JPEG", "WEBP")
_DATATYPES = ("FP32", "FP16", "UINT8")
_WANTED = ("an image network takes one FP32, FP16 or UINT8 tensor [n, channels, height, width], "
           "[n, height, width, channels] or [n, pixels], with 1 or 3 channels, and gives one [n, k] score "
           "tensor")


class _Frame:
    """How an image becomes the network's array: channels, size, layout and scaling."""

    def __init__(self, manifest: Mapping[str, Any], shape: Sequence[int]) -> None:
        options = manifest["image"]
        self.size = tuple(options["size"] or ())
        if len(shape) == 4:
            self.first = shape[1] in (1, 3)
            self.channels = shape[1] if self.first else shape[3]
            sides = shape[2:] if self.first else shape[1:3]
            if not self.size or any(0 < side != given for side, given in zip(sides, self.size, strict=True)):
                self.size = tuple(sides)
        else:
            self.first = False
            self.channels = shape[1] // prod(self.size) if self.size and shape[1] > 0 else 1
        self.mode = options["mode"] or ("L" if self.channels == 1 else "RGB")
        self.shape = ([self.channels, *self.size] if self.first else [*self.size, self.channels]) \
            if len(shape) == 4 else [self.channels * prod(self.size)]
        self.resample = Image.Resampling[options["resample"].upper()]
        self.scale = np.float32(options["scale"])
        self.mean = None if options["mean"] is None else np.array(options["mean"], np.float32)
        self.std = None if options["std"] is None else np.array(options["std"], np.float32)

    def array(self, image: Image.Image, dtype: np.dtype[Any]) -> np.ndarray:
        height, width = self.size
        image = _eight_bits(image).convert("RGB" if self.mode == "BGR" else self.mode)
        if image.size != (width, height):
            image = image.resize((width, height), self.resample)
        pixels = np.asarray(image).reshape(height, width, self.channels)
        if self.mode == "BGR":
            pixels = pixels[:, :, ::-1]
        if dtype != np.uint8:
            pixels = pixels.astype(np.float32) * self.scale
            if self.mean is not None:
                pixels = pixels - self.mean
            if self.std is not None:
                pixels = pixels / self.std
        if self.first:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels.reshape(self.shape), dtype)


class ImageTask(Scores):
    """An item's value is its array without the item axis; its work is the pixels of the image as sent."""

    padded = False

    def __init__(self, manifest: Mapping[str, Any], signature: Signature) -> None:
        super().__init__(manifest, signature)
        tensor = signature["inputs"][0]
        self._name = tensor["name"]
        self._dtype = np.dtype(DTYPES[tensor["datatype"]])
        self._batched = signature["item_axis"]
        self._frame = _Frame(manifest, tensor["shape"])
        self._body = msgspec.json.Decoder(Encoded).decode

    def decode(self, bodies: Sequence[bytes]) -> list[Item | ItemFault]:
        return [self._decode(body) for body in bodies]

    def _decode(self, body: bytes) -> Item | ItemFault:
        try:
            content = binascii.a2b_base64(self._body(body).base64, strict_mode=True)
            with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                warnings.simplefilter("ignore")  # our own limit is lower than the one that Pillow warns at
                pixels = image.width * image.height
                if pixels > MAX_PIXELS:
                    return ItemFault("input_invalid", f"the image has over {MAX_PIXELS} pixels")
                if image.format == "JPEG" and content.count(_SCAN) * pixels > MAX_SCANNED:
                    return ItemFault("input_invalid", "the image has too many scans: save it as baseline")
                upright = ImageOps.exif_transpose(image)
                return self._item(self._frame.array(upright, self._dtype), pixels)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            return ItemFault("input_invalid", f"the input must be {{base64}} of an image: {error}")
        except (OSError, SyntaxError, Image.DecompressionBombError, EOFError) as error:
            # SyntaxError is what Pillow raises for a broken PNG.
            return ItemFault("input_invalid", f"the image can't be decoded: {error}")

    def _item(self, array: np.ndarray, work: float) -> Item:
        return Item(array, float(work), None if self._batched else object())

    def stack(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        return {self._name: np.stack([item.value for item in items])}

    def sample(self, count: int, size: float) -> list[Item]:
        rng = np.random.default_rng(0)
        return [self._item((rng.random(self._frame.shape) * (255 if self._dtype == np.uint8 else 1))
                           .astype(self._dtype), max(1.0, size)) for _ in range(count)]


class ImageKind:
    name = "image-classification"

    def inspect(self, manifest: Mapping[str, Any], engine: Engine, folder: Path) -> Signature:
        inputs = engine.inputs
        if len(inputs) != 1 or inputs[0].datatype not in _DATATYPES or len(inputs[0].shape) not in (2, 4):
            raise inspection.rejected(self.name, engine, _WANTED)
        self._check_frame(manifest, engine)
        scores = inspection.output(manifest, engine, inspection.is_scores, _WANTED)
        signature = inspection.signature(
            manifest, engine, labels=inspection.labels(manifest, folder, scores.shape[1]),
            result=Result(kind="scores", output=scores.name, label=None))
        return inspection.rehearse(signature, engine, lambda sig: self.make(manifest, sig, folder))

    def _check_frame(self, manifest: Mapping[str, Any], engine: Engine) -> None:
        shape, options = engine.inputs[0].shape, manifest["image"]
        if len(shape) == 2 and not options["size"]:
            raise NetworkRejected("it takes flat pixels: give `image: {size: [height, width]}`")
        if len(shape) == 4 and shape[1] not in (1, 3) and shape[3] not in (1, 3):
            raise inspection.rejected(self.name, engine, _WANTED)
        frame = _Frame(manifest, shape)
        if len(frame.size) != 2 or any(side < 1 for side in frame.size):
            raise NetworkRejected("the file leaves the size open: give `image: {size: [height, width]}`")
        if options["size"] and tuple(options["size"]) != frame.size:
            raise NetworkRejected(f"image.size {options['size']} is not the network's {list(frame.size)}")
        if frame.channels not in (1, 3) or (len(shape) == 2 and 0 < shape[1] != frame.shape[0]):
            raise NetworkRejected(f"{shape[1]} values are not {options['size']} pixels of 1 or 3 channels")
        if (frame.mode == "L") != (frame.channels == 1):
            raise NetworkRejected(f"image.mode {frame.mode} does not fit {frame.channels} channels")
        for name in ("mean", "std"):
            if options[name] is not None and len(options[name]) not in (1, frame.channels):
                raise NetworkRejected(f"image.{name} needs one number, or {frame.channels}: one a channel")

    def make(self, manifest: Mapping[str, Any], signature: Mapping[str, Any], folder: Path) -> Task:  # noqa: ARG002
        return ImageTask(manifest, signature)  # type: ignore[arg-type]


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8 bits: Pillow's own conversion would clip everything above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
