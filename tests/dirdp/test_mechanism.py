"""Mechanism 8 and its loss against closed forms, with the wrong laws that these tests would catch.

Seeds are fixed. Were they not, a right sampler would fail a given check once in two million runs (|z| > 5, or
a Kolmogorov–Smirnov p below the same rate); the file makes some 150 such checks.
"""

import numpy as np
import pytest
import torch
from scipy import special, stats

from dirdp.mechanism import dirichlet_nll, sample_log_dirichlet, sample_log_gamma
from dirdp.randomness import EntropyStream, SeededStream

LIMIT = 5
FALSE_ALARM = 2 * stats.norm.sf(LIMIT)
CONCENTRATIONS = [1e-4, 1e-3, 1e-2, 0.1, 0.999, 1, 10, 1e4, 1e6]
# r* of CIFAR10 at ε = 1 (PAPER, section "Values to test against").
CALIBRATED = {0.1: 0.008667, 1: 0.086394, 3: 0.234894, 10: 0.534702}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")],
    ),
]


class Float32Stream(SeededStream):
    """What a stream on MPS supplies, on the CPU."""

    def __init__(self, seed, name):
        super().__init__(seed, name)
        self.dtype = torch.float32


def noise(seed=0, device="cpu"):
    return SeededStream(seed, "noise", device=device)


def z_of_mean(draws, mean):
    return (draws.mean(0) - mean) / (draws.std(0) / len(draws) ** 0.5)


def z_of_variance(draws, variance):
    squares = (draws - draws.mean(0)) ** 2
    return (squares.mean(0) - variance) / (squares.std(0) / len(draws) ** 0.5)


# --- Gamma -------------------------------------------------------------------------------------------------


def log_gamma_draws(concentration, count=200_000, *, stream=None, device="cpu"):
    """Draws (count,) and their derivatives in the concentration, as numpy arrays."""
    a = torch.full((count,), float(concentration), dtype=torch.float64, device=device, requires_grad=True)
    log_gamma = sample_log_gamma(a, stream=stream or noise(device=device))
    (slope,) = torch.autograd.grad(log_gamma.sum(), a)
    return log_gamma.detach().double().cpu().numpy(), slope.double().cpu().numpy()


def gamma_cdf(log_gamma, a):
    """F(g), also where g itself underflows: F → gᵃ/Γ(a + 1) as g → 0."""
    tiny = np.exp(a * np.minimum(log_gamma, -40) - special.gammaln(a + 1))
    return np.where(log_gamma < -40, tiny, special.gammainc(a, np.exp(log_gamma)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a", CONCENTRATIONS)
def test_gamma_moments(a, device):
    log_gamma, slope = log_gamma_draws(a, device=device)
    trigamma = special.polygamma(1, a)
    assert abs(z_of_mean(log_gamma, special.psi(a))) < LIMIT
    assert abs(z_of_variance(log_gamma, trigamma)) < LIMIT
    assert abs(z_of_mean(slope, trigamma)) < LIMIT
    sum_law = stats.gamma(a * len(log_gamma))
    assert FALSE_ALARM / 2 < sum_law.cdf(np.exp(log_gamma).sum()) < 1 - FALSE_ALARM / 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("a", CONCENTRATIONS)
def test_gamma_law(a, device):
    log_gamma, _ = log_gamma_draws(a, 100_000, device=device)
    assert stats.kstest(gamma_cdf(log_gamma, a), "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(gamma_cdf(log_gamma, 1.1 * a), "uniform").pvalue < FALSE_ALARM
    if a <= 10:  # a sampler without the boost, or with one too many
        assert stats.kstest(gamma_cdf(log_gamma, a + 1), "uniform").pvalue < FALSE_ALARM


@pytest.mark.parametrize("a", CONCENTRATIONS)
def test_gamma_moments_in_float32(a):
    log_gamma, slope = log_gamma_draws(a, 100_000, stream=Float32Stream(1, "noise"))
    assert abs(z_of_mean(log_gamma, special.psi(a))) < LIMIT
    assert abs(z_of_variance(log_gamma, special.polygamma(1, a))) < LIMIT
    assert np.isfinite(slope).all()


def test_mixed_concentrations_keep_their_places():
    a = torch.tensor(CONCENTRATIONS, dtype=torch.float64)
    draws = sample_log_gamma(a.expand(100_000, -1), stream=noise()).numpy()
    assert (abs(z_of_mean(draws, special.psi(a.numpy()))) < LIMIT).all()
    assert (abs(np.corrcoef(draws.T) - np.eye(len(a))) < LIMIT / 100_000**0.5).all()


def inverse_cdf_slope(log_gamma, a):
    """∂ log g/∂a at fixed u = F(g; a), by central differences of scipy's inverse; from the nearer tail."""
    h = 1e-4 * a
    gamma = np.exp(log_gamma)
    slopes = []
    for cdf, inverse in ((special.gammainc, special.gammaincinv), (special.gammaincc, special.gammainccinv)):
        u = cdf(a, gamma)
        slopes.append((u, np.log(inverse(a + h, u) / inverse(a - h, u)) / (2 * h)))
    (below, from_below), (above, from_above) = slopes
    return np.where(below < above, from_below, from_above)


@pytest.mark.parametrize("a", [1, 1.5, 2.5, 4, 7.9, 8.1, 15, 100, 1e4, 1e6])
def test_slope_is_the_derivative_of_the_inverse_cdf(a):
    log_gamma, slope = log_gamma_draws(a, 20_000)
    error = abs(slope / inverse_cdf_slope(log_gamma, a) - 1)
    assert error.max() < 2.2e-3
    assert np.quantile(error, 0.98) < 4e-4
    assert abs(slope.mean() / inverse_cdf_slope(log_gamma, a).mean() - 1) < 1e-4


@pytest.mark.parametrize("a", [1e-4, 1e-2, 0.3, 0.9])
def test_slope_below_one_adds_the_derivative_of_the_boost(a):
    log_gamma, slope = log_gamma_draws(a, 20_000)
    without_boost, _ = log_gamma_draws(a + 1, 20_000)  # the same normals and exponentials
    boost = log_gamma - without_boost
    assert stats.kstest(-a * boost, stats.expon.cdf).pvalue > FALSE_ALARM
    np.testing.assert_allclose(slope, inverse_cdf_slope(without_boost, a + 1) - boost / a, rtol=2.2e-3)


def test_gamma_of_no_law_is_nan_and_ends():
    a = torch.tensor([torch.nan, 0, -0.5, -1, -7, -torch.inf, 1], dtype=torch.float64).repeat(100, 1)
    log_gamma = sample_log_gamma(a, stream=noise())
    assert log_gamma[:, :-1].isnan().all()
    assert log_gamma[:, -1].isfinite().all()


def test_second_derivative_is_refused():
    a = torch.tensor([0.5, 2], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(sample_log_gamma(a, stream=noise()).sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        slope.sum().backward()


# --- Dirichlet ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_marginals_are_beta(scale):
    a = scale * np.array([0.3, 1, 1.7, 4])
    log_p = sample_log_dirichlet(torch.from_numpy(a).expand(50_000, -1), stream=noise())
    np.testing.assert_allclose(log_p.logsumexp(-1), 0, atol=1e-12)
    for k, marginal in enumerate(log_p.exp().T.numpy()):
        assert stats.kstest(marginal, stats.beta(a[k], a.sum() - a[k]).cdf).pvalue > FALSE_ALARM
        assert stats.kstest(marginal, stats.beta(1.2 * a[k], 1.2 * (a.sum() - a[k])).cdf).pvalue < FALSE_ALARM


def test_covariance_is_dirichlet():
    a = np.array([0.4, 1.5, 3])
    p = sample_log_dirichlet(torch.from_numpy(a).expand(200_000, -1), stream=noise()).exp().numpy()
    covariance = stats.dirichlet(a).cov()
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        products = (p[:, i] - p[:, i].mean()) * (p[:, j] - p[:, j].mean())
        assert abs(z_of_mean(products, covariance[i, j])) < LIMIT


def test_dim_only_turns_the_draws():
    a = torch.rand(5, 3, dtype=torch.float64) + 0.5
    rows = sample_log_dirichlet(a, stream=noise())
    columns = sample_log_dirichlet(a.T, dim=0, stream=noise())
    np.testing.assert_allclose(rows.logsumexp(-1), 0, atol=1e-12)
    np.testing.assert_allclose(columns.logsumexp(0), 0, atol=1e-12)
    assert columns.shape == (3, 5)


@pytest.mark.parametrize("wrong", [0.0, -1.0, torch.nan, torch.inf])
@pytest.mark.parametrize("whole_row", [True, False])
def test_row_of_no_law_is_nan_and_never_uniform(wrong, whole_row):
    a = torch.ones(3, 4)
    a[1, slice(None) if whole_row else 2] = wrong
    log_p = sample_log_dirichlet(a, stream=noise())
    assert log_p[1].isnan().all()
    assert log_p[[0, 2]].isfinite().all()


# --- The loss: Theorem 11 ----------------------------------------------------------------------------------

SOFTMAX = np.array([0.9, *(0.1 * np.arange(1, 10) / 45)])
ERROR = SOFTMAX - np.eye(10)[0]  # the gradient of plain cross-entropy, s − e_y


def loss_draws(*, r, alpha, count=120_000):
    """Losses (count,) and gradients in the logits (count, 10) of one row drawn again and again."""
    logits = torch.from_numpy(np.log(SOFTMAX)).repeat(count, 1).requires_grad_()
    losses = dirichlet_nll(logits, torch.zeros(count, dtype=torch.int64), r=r, alpha=alpha, stream=noise())
    losses.sum().backward()
    return losses.detach().numpy(), logits.grad.numpy()


def deviations(losses, gradients, *, r, alpha):
    """Standard errors away from eq. (4), eq. (5) and κ·(s − e_y), of which the largest."""
    own, total = r * SOFTMAX[0] + alpha, r + 10 * alpha
    kappa = r * SOFTMAX[0] * special.polygamma(1, own)
    variance = special.polygamma(1, own) - special.polygamma(1, total)
    return {
        "mean": abs(z_of_mean(losses, special.psi(total) - special.psi(own))),
        "variance": abs(z_of_variance(losses, variance)),
        "gradient": abs(z_of_mean(gradients, kappa * ERROR)).max(),
    }


@pytest.mark.parametrize(("alpha", "r"), CALIBRATED.items())
def test_loss_follows_theorem_11_and_no_other_law(alpha, r):
    right = {"r": r, "alpha": alpha}
    assert max(deviations(*loss_draws(**right), **right).values()) < LIMIT
    # The weakest contrast: at α = 10 the variance of a doubled r differs by 4.7 %, some 11 standard errors.
    doubled = deviations(*loss_draws(r=2 * r, alpha=alpha), **right)
    assert min(doubled.values()) > 2 * LIMIT
    # At α = 10 the mean cannot tell α from α + 1; the others can.
    shifted = deviations(*loss_draws(r=r, alpha=alpha + 1), **right)
    assert min(shifted["variance"], shifted["gradient"]) > 2 * LIMIT


@pytest.mark.parametrize(("alpha", "r"), CALIBRATED.items())
def test_gradient_of_plain_cross_entropy_is_rejected(alpha, r):
    losses, _ = loss_draws(r=r, alpha=alpha, count=1000)
    straight_through = ERROR + np.random.default_rng(0).normal(size=(120_000, 10))
    assert deviations(losses, straight_through, r=r, alpha=alpha)["gradient"] > 2 * LIMIT


def test_loss_is_minus_log_of_the_labelled_draw():
    logits, labels = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 4
    losses = dirichlet_nll(logits, labels, r=0.5, alpha=2, stream=noise())
    columns = 0.5 * logits.double().softmax(-1).T + 2
    log_p = sample_log_dirichlet(columns, dim=0, stream=noise())
    np.testing.assert_allclose(losses, -log_p.T[torch.arange(50), labels], rtol=1e-12)


def test_gradient_is_blind_to_a_shift_of_the_logits():
    _, gradient = loss_and_gradient(torch.randn(100, 3, generator=torch.Generator().manual_seed(0)).double())
    np.testing.assert_allclose(gradient.sum(-1), 0, atol=1e-9)


# --- The loss: types, extremes, errors ---------------------------------------------------------------------

LOGITS = [[0, 0, 0], [200, 0, 0], [0, 200, 0], [-200, 0, 200], [1e4, 0, -1e4], [-1e4, 1e4, 0], [1e4] * 3]


def loss_and_gradient(logits, *, alpha=3.0, stream=None):
    logits = logits.clone().requires_grad_()
    labels = torch.arange(len(logits), device=logits.device) % 3
    stream = stream or noise(device=logits.device)
    losses = dirichlet_nll(logits, labels, r=alpha / 2, alpha=alpha, stream=stream)
    losses.sum().backward()
    return losses.detach(), logits.grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-4, 1e-3, 1e-2, 0.1, 1, 3, 10, 1e3, 1e6])
def test_loss_and_gradient_are_finite(alpha, dtype, device):
    logits = torch.tensor(LOGITS, dtype=dtype, device=device).repeat(100, 1)
    losses, gradient = loss_and_gradient(logits, alpha=alpha)
    assert losses.dtype == torch.float64
    assert gradient.dtype == dtype
    assert losses.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("alpha", [1e-4, 1, 1e6])
def test_loss_and_gradient_are_finite_in_float32(alpha):
    stream = Float32Stream(0, "noise")
    logits = torch.tensor(LOGITS, dtype=torch.float32).repeat(100, 1)
    losses, gradient = loss_and_gradient(logits, alpha=alpha, stream=stream)
    assert losses.dtype == torch.float32
    assert losses.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stream_type", [SeededStream, Float32Stream])
def test_autocast_changes_nothing(device, stream_type):
    if device != "cpu" and stream_type is Float32Stream:
        pytest.skip("stands in for MPS on the CPU")
    logits = torch.tensor(LOGITS, device=device).to(torch.bfloat16)
    streams = [stream_type(0, "noise") if device == "cpu" else noise(device=device) for _ in range(2)]
    plain = loss_and_gradient(logits, stream=streams[0])
    with torch.autocast(device, dtype=torch.bfloat16):
        cast = loss_and_gradient(logits, stream=streams[1])
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


def test_gradient_of_a_beta_draw_just_above_65536():
    """https://github.com/pytorch/pytorch/issues/127387: infinite in PyTorch's own sampler in float32."""
    a = torch.tensor([65536.02, 1.5], requires_grad=True)
    sample_log_dirichlet(a.expand(16_384, -1), stream=noise()).exp()[:, 0].mean().backward()
    assert a.grad.isfinite().all()


def test_nan_logits_make_their_row_nan_and_no_other():
    logits = torch.zeros(4, 3)
    logits[1, 0], logits[2, 2] = torch.nan, torch.inf
    losses, gradient = loss_and_gradient(logits)
    assert losses.isnan().tolist() == [False, True, True, False]
    assert gradient.isnan().any(-1).tolist() == [False, True, True, False]


def test_minus_infinite_logit_is_a_class_of_probability_zero():
    losses, gradient = loss_and_gradient(torch.tensor([[-torch.inf, 0, 0]]))
    assert losses.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("stream", [noise(), EntropyStream()])
def test_empty_batch(stream):
    losses, gradient = loss_and_gradient(torch.empty(0, 3), stream=stream)
    assert losses.shape == (0,)
    assert gradient.shape == (0, 3)


def test_entropy_losses_differ_and_seeded_ones_repeat():
    logits = torch.zeros(5, 3)
    assert torch.equal(loss_and_gradient(logits)[0], loss_and_gradient(logits)[0])
    source = EntropyStream()
    one, other = (loss_and_gradient(logits, stream=source)[0] for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", ["r", "alpha"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_impossible_parameter_is_named(name, value):
    arguments = {"r": 1, "alpha": 3, "stream": noise()} | {name: value}
    with pytest.raises(ValueError, match=rf"{name} must be a number in \(0, inf\), got {value}"):
        dirichlet_nll(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), **arguments)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"got \(2, 3\) and \(2, 1\)"):
        dirichlet_nll(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64), r=1, alpha=3, stream=noise())
