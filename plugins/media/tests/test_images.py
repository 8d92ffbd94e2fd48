"""Images: seeded, of classes that differ, and drawn once."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from accel_bench_media.data.images import GLYPHS, ImageOptions, Images
from accel_bench_media.data.images_impl import drawn, load, make_up
from media_works import built_run
from pydantic import ValidationError

from accel_bench.errors import ScenarioError
from accel_bench.testing import make_run


def test_images_of_a_class_are_alike_and_those_of_others_are_not() -> None:
    options = ImageOptions(classes=3, samples=12, image_size=16)
    labels = np.arange(12, dtype=np.int64) % 3
    images = make_up(options, labels, seed=0).astype(float).reshape(12, -1)
    distances = np.linalg.norm(images[:, None] - images[None], axis=-1)
    same = labels[:, None] == labels
    assert distances[same].max() < distances[~same].min()


def test_the_seed_decides_what_is_made_up(tmp_path: Path) -> None:
    options = ImageOptions(classes=2, samples=4, image_size=8)
    runs = [make_run(tmp_path, {"data": {"seed": seed}}) for seed in (0, 0, 1)]
    first, again, other = (load(run, options).fingerprint for run in runs)
    assert first == again != other


@pytest.mark.parametrize("source", ["glyphs", "words"])
def test_texts_are_drawn_inside_of_the_image_and_once(source: str, tmp_path: Path) -> None:
    options = ImageOptions(source=source, classes=20, samples=40, image_size=48)
    run = make_run(tmp_path)
    folder = drawn(run, options)
    pixels = load(run, options).pixels
    assert pixels.shape == (40, 1, 48, 48)
    assert (pixels.reshape(40, -1).max(1) > 128).all()
    assert pixels[..., 0, :].max() == pixels[..., -1, :].max() == 0
    changed = (folder / "pixels.npy").stat().st_mtime_ns
    drawn(run, options)
    assert (folder / "pixels.npy").stat().st_mtime_ns == changed


def test_two_images_of_a_character_differ_in_size_and_place(tmp_path: Path) -> None:
    options = ImageOptions(source="glyphs", classes=2, samples=8, image_size=32)
    pixels = load(make_run(tmp_path), options).pixels
    assert len({image.tobytes() for image in pixels[::2]}) == 4


def test_fonts_of_matplotlib_are_drawn_with_too(tmp_path: Path) -> None:
    plain = ImageOptions(source="glyphs", samples=8, image_size=32)
    both = plain.model_copy(update={"fonts": ("pillow", "matplotlib")})
    assert len(both.font_paths()) > 5
    run = make_run(tmp_path)
    assert load(run, plain).fingerprint != load(run, both).fingerprint


def test_a_font_that_is_no_file_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"data\.fonts: 'nowhere\.ttf' is no file"):
        ImageOptions(source="glyphs", fonts=("nowhere.ttf",)).font_paths()


def test_more_classes_than_characters_are_refused() -> None:
    with pytest.raises(ValidationError, match=f"glyphs gives {len(GLYPHS)} classes at most"):
        ImageOptions(source="glyphs", classes=95)


def test_drawing_without_pillow_is_refused_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bench_media.data.images.find_spec", lambda name: None)
    run = make_run(tmp_path)
    drawing, made_up = (Images(ImageOptions(source=one)) for one in ("glyphs", "synthetic"))
    (reason,) = drawing.check_scenario(run.experiment)
    assert "accel-bench[vision]" in reason
    assert not list(made_up.check_scenario(run.experiment))


def test_an_epoch_brings_each_image_once_in_values_from_minus_one_to_one(tmp_path: Path) -> None:
    batches = list(islice(built_run(tmp_path, "vit").batches, 8))
    labels = Counter(label for batch in batches for label in batch.inputs["labels"].tolist())
    assert labels == Counter(index % 10 for index in range(32))
    pixels = batches[0].inputs["pixel_values"]
    assert pixels.shape == (4, 3, 32, 32)
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert batches[0].tokens.processed == batches[0].sequences == 4


def test_too_few_images_for_a_step_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"holds 2 samples.*raise data\.samples"):
        built_run(tmp_path, "resnet", samples=2)
