"""Counts the images that are decoded."""

from unibct.data import image_set as encoded_images


class DecodeCounter:
    """Counts the encoded images that sets decode; ``taken`` returns the count and starts again.

    Other modules that call ``decode`` may be counted too.
    """

    def __init__(self, monkeypatch, *others):
        self.count, real = 0, encoded_images.decode

        def counted(data):
            self.count += 1
            return real(data)

        for module in (encoded_images, *others):
            monkeypatch.setattr(module, "decode", counted)

    def taken(self):
        count, self.count = self.count, 0
        return count
