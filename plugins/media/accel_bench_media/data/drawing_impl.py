"""Drawing of texts in random fonts, sizes and positions."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

LARGEST, SMALLEST = 0.8, 0.4
"""Font height as a fraction of the image; a long word is drawn smaller to fit."""

MARGIN = 0.1
"""Maximum offset of a text from the centre, as a fraction of the image."""


class Drawing:
    """Drawer of white texts on black square images of one size, with given fonts."""

    def __init__(self, image_size: int, fonts: list[str]) -> None:
        """Keep `fonts`, paths of TrueType files, for images of `image_size` pixels squared.

        An empty path is Pillow's own font.
        """
        self._size = image_size
        self._fonts = fonts

    def draw(self, text: str, generator: np.random.Generator) -> npt.NDArray[np.uint8]:
        """Return a gray image of a text in random font, size and position, shape (size, size)."""
        size = self._size
        font = self._all[generator.integers(len(self._all))]
        share = generator.uniform(SMALLEST, LARGEST)
        width = font.getlength(text) / font.size
        height = min(share * size, (1 - 2 * MARGIN) * size / max(width, 0.1))
        middle = size / 2 + generator.uniform(-MARGIN, MARGIN, 2) * size
        image = Image.new("L", (size, size))
        ImageDraw.Draw(image).text(
            (float(middle[0]), float(middle[1])),
            text,
            fill=255,
            font=font.font_variant(size=max(4.0, float(height))),
            anchor="mm",
        )
        return np.asarray(image)

    @cached_property
    def _all(self) -> list[ImageFont.FreeTypeFont]:
        return [_load(path, self._size) for path in self._fonts]


def _load(path: str, size: int) -> ImageFont.FreeTypeFont:
    if path:
        return ImageFont.truetype(path, size)
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise OSError("this Pillow was built without FreeType, so that it draws in one size alone")
    return font
