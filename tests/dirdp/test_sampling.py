"""PoissonSample (Definition 5): how many are sampled and who, and the wrong laws these tests would catch.

Seeds are fixed. Were they not, a right sampler would fail a given check once in two million runs (|z| > 5).
"""

import numpy as np
import pytest
import torch
from scipy import stats

from dirdp.randomness import EntropyStream, SeededStream
from dirdp.sampling import PoissonSampler

SIZE, RATE, STEPS = 500, 0.05, 20_000
LIMIT = 5
FALSE_ALARM = 2 * stats.norm.sf(LIMIT)


def masks_of(draw, size=SIZE, steps=STEPS):
    masks = np.zeros((steps, size), dtype=bool)
    for mask in masks:
        mask[draw()] = True
    return masks


def sampler(seed=0, *, size=SIZE, rate=RATE):
    return PoissonSampler(size=size, sampling_rate=rate, stream=SeededStream(seed, "sampling"))


def fixed_size(rng):
    """A wrong law: batches of exactly nq records."""
    return lambda: rng.choice(SIZE, round(SIZE * RATE), replace=False)


def shuffled_epochs(rng):
    """A wrong law: cut a random permutation into batches, one epoch after the other."""
    batches = (batch for _ in iter(int, 1) for batch in rng.permutation(SIZE).reshape(-1, round(SIZE * RATE)))
    return lambda: next(batches)


def z_of_mean(masks, rate=RATE):
    sizes = masks.sum(1)
    return (sizes.mean() - SIZE * rate) / np.sqrt(SIZE * rate * (1 - rate) / len(sizes))


def z_of_variance(masks, rate=RATE):
    law = stats.binom(SIZE, rate)
    excess = law.stats("k")
    return (masks.sum(1).var() / law.var() - 1) / np.sqrt((excess + 2) / len(masks))


def p_of_inclusion(masks, rate=RATE):
    """Two-sided chi-square of how often each index came: too uneven or too even."""
    count, variance = len(masks) * rate, len(masks) * rate * (1 - rate)
    law = stats.chi2(masks.shape[1])
    statistic = ((masks.sum(0) - count) ** 2 / variance).sum()
    return 2 * min(law.sf(statistic), law.cdf(statistic))


@pytest.fixture(scope="module")
def masks():
    return masks_of(sampler().draw)


def test_batch_size_is_binomial(masks):
    assert abs(z_of_mean(masks)) < LIMIT
    assert abs(z_of_variance(masks)) < LIMIT
    assert abs(z_of_mean(masks, rate=RATE * 1.02)) > LIMIT


def test_every_index_comes_equally_often(masks):
    assert p_of_inclusion(masks) > FALSE_ALARM
    assert p_of_inclusion(masks, rate=RATE * 1.02) < FALSE_ALARM


def test_coins_are_independent_across_indices_and_steps(masks):
    coins = (masks - RATE) / np.sqrt(RATE * (1 - RATE))
    for one, other in [
        (coins[:, 1:], coins[:, :-1]),
        (coins[:, ::2], coins[:, 1::2]),
        (coins[1:], coins[:-1]),
    ]:
        products = one * other
        assert abs(products.sum() / np.sqrt(products.size)) < LIMIT


@pytest.mark.parametrize("wrong_law", [fixed_size, shuffled_epochs])
def test_wrong_laws_are_rejected(wrong_law):
    masks = masks_of(wrong_law(np.random.default_rng(0)), steps=2000)
    assert abs(z_of_variance(masks)) > LIMIT
    if wrong_law is shuffled_epochs:
        assert p_of_inclusion(masks) < FALSE_ALARM


def test_empty_batches_come_as_often_as_they_should_and_are_kept():
    draws = sampler(size=20, rate=0.01).draw
    empty = sum(len(draws()) == 0 for _ in range(5000))
    assert stats.binomtest(empty, 5000, 0.99**20).pvalue > FALSE_ALARM  # one that draws again has empty = 0


def test_rate_one_takes_everything():
    assert torch.equal(sampler(rate=1).draw(), torch.arange(SIZE))


def test_rate_below_any_coin_takes_nothing():
    assert len(sampler(rate=1e-300).draw()) == 0


def test_indices_are_increasing_int64():
    index = sampler(rate=0.5).draw()
    assert index.dtype == torch.int64
    assert (index.diff() > 0).all()


def test_same_stream_same_batches_and_resumable():
    stream = SeededStream(1, "sampling")
    one = PoissonSampler(size=SIZE, sampling_rate=RATE, stream=stream)
    one.draw()
    state = stream.state_dict()
    drawn = [one.draw() for _ in range(3)]
    stream.load_state_dict(state)
    assert all(torch.equal(old, one.draw()) for old in drawn)


def test_entropy_batches_differ():
    drawn = PoissonSampler(size=SIZE, sampling_rate=0.5, stream=EntropyStream())
    assert not torch.equal(drawn.draw(), drawn.draw())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size must be an integer .*got 0"),
        ({"size": 2.5}, "size must be an integer .*got 2.5"),
        ({"sampling_rate": 0}, r"sampling_rate must be a number in \(0, 1\], got 0"),
        ({"sampling_rate": 1.001}, r"sampling_rate must be a number in \(0, 1\], got 1.001"),
        ({"sampling_rate": float("nan")}, r"sampling_rate must be a number in \(0, 1\], got nan"),
        ({"stream": EntropyStream("mps")}, "stream must give float64 numbers, got torch.float32 on mps"),
    ],
)
def test_impossible_argument_is_named(wrong, message):
    right = {"size": 10, "sampling_rate": 0.1, "stream": EntropyStream()}
    with pytest.raises(ValueError, match=message):
        PoissonSampler(**right | wrong)
