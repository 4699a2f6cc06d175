"""Random crops and mirror images equal cropping, resizing and flipping image by image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from everypair.experiments.data import augment


def some_images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def one_by_one(images, numbers):
    """Crop, resize and flip image by image with torch's own functions."""
    height, width = images.shape[-2:]
    tall, wide = round(height * 30 / 32), round(width * 30 / 32)
    results = []
    for image, (down, across, mirror) in zip(images, numbers.T.tolist(), strict=True):
        top, left = int(down * (height - tall + 1)), int(across * (width - wide + 1))
        crop = augment.prepare(image)[None, :, top : top + tall, left : left + wide]
        resized = F.interpolate(crop, (height, width), mode="bilinear", align_corners=False)[0]
        results.append(resized.flip(-1) if mirror < 0.5 else resized)
    return torch.stack(results)


@pytest.mark.parametrize("size", [(32, 32), (50, 50), (96, 96), (8, 8), (32, 48)])
def test_equals_cropping_resizing_and_flipping_each_image(size):
    images = some_images(12, 3, *size)
    numbers = augment.draw(12, torch.Generator().manual_seed(1))
    torch.testing.assert_close(augment.prepare(images, numbers), one_by_one(images, numbers))


def test_the_extreme_random_numbers_are_valid():
    images = some_images(2, 3, 32, 32)
    ends = torch.tensor([[0.0, 1.0 - 2**-24]]).expand(3, 2)
    torch.testing.assert_close(augment.prepare(images, ends), one_by_one(images, ends))


def test_every_crop_and_both_mirrors_occur():
    ramp = torch.arange(32, dtype=torch.uint8).expand(1, 1, 32, 32).expand(400, 1, 32, 32)
    shown = augment.prepare(ramp, augment.draw(400, torch.Generator().manual_seed(0)))
    assert len(torch.unique(shown[:, 0, 0], dim=0)) == 3 * 2


def test_images_are_centred_and_features_unchanged():
    assert augment.prepare(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-2.0, 2.0]
    features = torch.tensor([[3.0, -1.0]])
    assert augment.prepare(features) is features


def test_the_numbers_follow_from_the_generator_alone():
    before = torch.random.get_rng_state()
    first, second = (augment.draw(5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (3, 5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_matrices_cached_in_inference_mode_work_in_training():
    images, numbers = some_images(2, 1, 24, 24), torch.full((3, 2), 0.2)
    with torch.inference_mode():
        augment.prepare(images, numbers)
    weight = torch.ones(24, requires_grad=True)
    (augment.prepare(images, numbers) * weight).sum().backward()
    assert weight.grad.isfinite().all()
