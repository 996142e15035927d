"""crop_flip against a slow twin that treats one image at a time, and the law of what it draws."""

import numpy as np
import pytest
import torch
from scipy import stats

from dirdp.datasets.augmentation import AUGMENTATIONS, crop_flip
from dirdp.randomness import EntropyStream, SeededStream

DRAWS = 20_000
FALSE_ALARM = 1e-6


def twin(images, stream):
    """Image by image, pixel by pixel: where does each pixel come from?"""
    count, _, height, width = images.shape
    down = stream.integers(9, (count, 1)).flatten().tolist()
    right = stream.integers(9, (count, 1)).flatten().tolist()
    flip = (stream.uniform((count, 1)).flatten() < 0.5).tolist()
    result = torch.zeros_like(images)
    for i in range(count):
        for row in range(height):
            for column in range(width):
                source_row = row + down[i] - 4
                source_column = (width - 1 - column if flip[i] else column) + right[i] - 4
                if 0 <= source_row < height and 0 <= source_column < width:
                    result[i, :, row, column] = images[i, :, source_row, source_column]
    return result


def random_images(shape):
    return torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.mark.parametrize("shape", [(20, 1, 8, 8), (12, 3, 10, 10), (9, 3, 6, 11), (1, 1, 3, 3)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_flip_equals_its_slow_twin(shape, dtype):
    images = random_images(shape).to(dtype)
    original = images.clone()
    found = crop_flip(images, stream=SeededStream(0, "augmentation"))
    assert torch.equal(found, twin(images, SeededStream(0, "augmentation")))
    assert found.shape == shape and found.dtype == dtype
    assert torch.equal(images, original)


@pytest.mark.parametrize("source", [SeededStream(0, "augmentation"), EntropyStream()], ids=["seeded", "entropy"])
def test_an_empty_batch_stays_empty(source):
    assert crop_flip(random_images((0, 3, 8, 8)), stream=source).shape == (0, 3, 8, 8)


def test_each_image_is_treated_by_itself_and_each_call_anew():
    images = random_images((1, 1, 8, 8)).expand(50, -1, -1, -1)
    stream = SeededStream(0, "augmentation")
    first, second = crop_flip(images, stream=stream), crop_flip(images, stream=stream)
    assert len({tuple(image.flatten().tolist()) for image in first}) > 20
    assert not torch.equal(first, second)
    assert torch.equal(first, crop_flip(images, stream=SeededStream(0, "augmentation")))


def test_it_draws_from_its_stream_alone():
    before = torch.get_rng_state()
    crop_flip(random_images((5, 1, 8, 8)), stream=SeededStream(0, "augmentation"))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_shift_and_both_sides_come_equally_often():
    """One bright pixel pair in the middle shows shift and side; the 162 cases have to be uniform."""
    image = torch.zeros(1, 1, 17, 17, dtype=torch.uint8)
    image[..., 8, 8], image[..., 8, 9] = 1, 2
    found = crop_flip(image.expand(DRAWS, -1, -1, -1), stream=SeededStream(0, "augmentation"))
    assert (found.flatten(1).sum(1) == 3).all()
    place = (found == 1).flatten(1).int().argmax(1)
    rows, columns = place // 17, place % 17
    right_of_it = found[torch.arange(DRAWS), 0, rows, (columns + 1).clamp(max=16)] == 2
    cases = (rows * 17 + columns) * 2 + right_of_it
    _, counts = np.unique(cases.numpy(), return_counts=True)
    assert len(counts) == 9 * 9 * 2
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    lopsided = counts + 30 * np.array([1, -1] * 81)  # what this would notice: one side a quarter more often
    assert stats.chisquare(lopsided).pvalue < FALSE_ALARM


def test_names():
    assert dict(AUGMENTATIONS) == {"none": None, "crop-flip": crop_flip}
