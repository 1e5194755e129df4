"""Small images for tests."""

import io

import numpy as np
from PIL import Image


def png(value):
    file = io.BytesIO()
    Image.new("L", (8, 8), value).save(file, "PNG")
    return file.getvalue()


def jpeg(value, size=112):
    file = io.BytesIO()
    Image.new("RGB", (size, size), (value, 40, 200 - value)).save(file, "JPEG")
    return file.getvalue()


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def ramp(mode: str, size=(20, 12)) -> Image.Image:
    values = np.linspace(0, 255, size[0] * size[1]).reshape(size[1], size[0]).astype(np.uint8)
    image = Image.fromarray(values)
    return Image.merge("RGB", [image, image.rotate(180), image]) if mode == "RGB" else image
