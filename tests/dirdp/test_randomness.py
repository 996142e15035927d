"""Streams: laws (Kolmogorov–Smirnov, chi-square), independence, resumption, the operating system's entropy.

Seeded tests repeat exactly. Tests of the entropy stream cannot: each fails by chance once in 1e9 runs.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from dirdp.randomness import EntropyStream, SeededStream, Stream, stream

DRAWS = 100_000
FALSE_ALARM = 1e-9
SOURCES = pytest.mark.parametrize(
    "source", [SeededStream(7, "noise"), EntropyStream()], ids=lambda source: type(source).__name__
)
LAWS = {"uniform": stats.uniform(), "normal": stats.norm(), "exponential": stats.expon()}


def p_value(draws, law):
    return stats.kstest(draws.numpy(), law.cdf).pvalue


@SOURCES
@pytest.mark.parametrize("kind", LAWS)
def test_draws_follow_their_law_and_no_other(source, kind):
    draws, law = getattr(source, kind)((DRAWS,)), LAWS[kind]
    assert p_value(draws, law) > FALSE_ALARM
    assert p_value(draws * 1.05, law) < FALSE_ALARM
    assert p_value(draws - 0.1, law) < FALSE_ALARM


@SOURCES
def test_integers_are_uniform(source):
    draws = source.integers(6, (DRAWS,))
    assert draws.dtype == torch.int64
    counts = np.bincount(draws, minlength=6)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    assert stats.chisquare(counts + 1000 * np.array([1, -1, 1, -1, 1, -1])).pvalue < FALSE_ALARM


@SOURCES
@pytest.mark.parametrize("shape", [(0,), (0, 10), (3,), (2, 3, 4)])
@pytest.mark.parametrize("kind", LAWS)
def test_draws_have_the_shape_and_type_asked_for(source, kind, shape):
    draws = getattr(source, kind)(shape)
    assert draws.shape == shape
    assert draws.dtype == source.dtype == torch.float64
    assert source.integers(3, shape).shape == shape


@SOURCES
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_uniform_is_never_one_and_uses_every_bit(source, dtype, monkeypatch):
    monkeypatch.setattr(source, "dtype", dtype)
    draws = source.uniform((1_000_000,))
    assert draws.dtype == dtype
    assert draws.min() >= 0
    assert draws.max() < 1
    steps = draws / (torch.finfo(dtype).eps / 2)
    assert (steps == steps.round()).all()
    assert (steps % 2 == 1).double().mean() == pytest.approx(0.5, abs=0.01)


def test_extreme_words_stay_inside_the_interval(monkeypatch):
    monkeypatch.setattr("os.urandom", lambda size: b"\xff" * size)
    source = EntropyStream()
    assert source.uniform((1,)).item() == 1 - 2**-53
    assert source.exponential((1,)).item() < 36.8
    assert abs(source.normal((1,)).item()) < 8.6
    source.dtype = torch.float32
    assert source.uniform((1,)).item() == 1 - 2**-24


def test_same_seed_and_name_give_the_same_numbers():
    one, other = (stream("noise", seed=3) for _ in range(2))
    for kind in LAWS:
        assert torch.equal(getattr(one, kind)((50,)), getattr(other, kind)((50,)))
    assert torch.equal(one.integers(10, (50,)), other.integers(10, (50,)))


@pytest.mark.parametrize("other", [(3, "sampling"), (4, "noise"), (3, "noise "), (30, "oise")])
def test_another_seed_or_name_gives_independent_numbers(other):
    one, two = SeededStream(3, "noise").uniform((DRAWS,)), SeededStream(*other).uniform((DRAWS,))
    assert not (one == two).any()
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / DRAWS**0.5


def test_thousands_of_streams_all_differ():
    keys = [(seed, name) for seed in range(1000) for name in ("noise", "sampling")]
    assert len({SeededStream(*key).uniform((1,)).item() for key in keys}) == len(keys)


def test_a_stream_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    SeededStream(0, "noise").normal((100,))
    EntropyStream().normal((100,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_resumed_stream_goes_on_bit_for_bit(size, tmp_path):
    source, resumed = SeededStream(3, "noise"), SeededStream(0, "something else")
    source.normal((size,))
    torch.save(source.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for kind in LAWS:
        assert torch.equal(getattr(source, kind)((size,)), getattr(resumed, kind)((size,)))
    assert torch.equal(source.integers(9, (size,)), resumed.integers(9, (size,)))


def test_saved_state_does_not_move_with_the_stream():
    source = SeededStream(3, "noise")
    state = source.state_dict()
    drawn = source.uniform((5,))
    source.load_state_dict(state)
    assert torch.equal(source.uniform((5,)), drawn)


def test_entropy_is_never_repeated_nor_recorded():
    source = stream("noise", seed=None)
    assert isinstance(source, EntropyStream)
    first = source.uniform((100,))
    assert source.state_dict() == {}
    source.load_state_dict({})
    torch.manual_seed(0)
    np.random.seed(0)
    again = [source.uniform((100,)), EntropyStream().uniform((100,))]
    assert len({tuple(draw.tolist()) for draw in [first, *again]}) == 3


def test_states_of_the_other_kind_are_refused():
    with pytest.raises(ValueError, match=r"entropy stream's, \{\}, got keys \['generator'\]"):
        EntropyStream().load_state_dict(SeededStream(0, "noise").state_dict())
    with pytest.raises(ValueError, match=r"seeded stream's.*got keys \[\]"):
        SeededStream(0, "noise").load_state_dict(EntropyStream().state_dict())


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0"])
def test_impossible_seed_is_named(seed):
    with pytest.raises(ValueError, match=f"seed must be an integer .*got {seed!r}"):
        stream("noise", seed=seed)


def test_empty_name_is_named():
    with pytest.raises(ValueError, match="name must not be empty, got ''"):
        stream("", seed=0)


@SOURCES
def test_impossible_range_is_named(source):
    with pytest.raises(ValueError, match=r"high must be an integer .*got 0"):
        source.integers(0, (3,))


def test_mps_gets_float32():
    assert EntropyStream("mps").dtype == torch.float32


def test_stream_is_an_interface():
    with pytest.raises(TypeError):
        Stream()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("kind", LAWS)
def test_draws_on_a_gpu_follow_their_law(seed, kind):
    draws = getattr(stream("noise", seed=seed, device="cuda"), kind)((DRAWS,))
    assert draws.device.type == "cuda"
    assert p_value(draws.cpu(), LAWS[kind]) > FALSE_ALARM
