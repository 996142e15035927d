"""Theorems 10 and 11 again: at 60 digits, straight from the paper, sharing no code with `dirdp`."""

from functools import lru_cache
from math import comb

from mpmath import exp, log, loggamma, mp, mpf, psi

mp.dps = 60


def mechanism_rdp(order, *, r, alpha):
    """Lemma 9."""
    return mpf(order) * mpf(r) ** 2 * psi(1, mpf(alpha) - (mpf(order) - 1) * mpf(r))


def divergence(order, s, t, *, r, alpha):
    """Rényi divergence of Dir(r·s + α) from Dir(r·t + α), from the normalising constants of both."""
    order, r, alpha = mpf(order), mpf(r), mpf(alpha)
    total = mpf(0)
    for s_i, t_i in zip(s, t, strict=True):
        a, b = r * mpf(s_i) + alpha, r * mpf(t_i) + alpha
        total += loggamma(order * a - (order - 1) * b) - order * loggamma(a) + (order - 1) * loggamma(b)
    return total / (order - 1)


def exact_rdp(order, *, r, alpha):
    """The divergence of two corners of the simplex."""
    return divergence(order, (1, 0), (0, 1), r=r, alpha=alpha)


_DRAWS = {"lemma9": mechanism_rdp, "exact": exact_rdp}


@lru_cache(maxsize=10000)
def _growth(order, r, alpha, bound):
    return exp((order - 1) * _DRAWS[bound](order, r=r, alpha=alpha))


@lru_cache(maxsize=10000)
def _log_moment(n, r, alpha, q, bound):
    q = mpf(q)
    mp.dps = 60 - 2 * int(mp.log10(q))  # the sum is 1 + O(q²)
    total = (1 - q) ** (n - 1) * (n * q - q + 1)
    total += comb(n, 2) * q**2 * (1 - q) ** (n - 2) * _growth(2, r, alpha, bound)
    total += 3 * sum(comb(n, j) * (1 - q) ** (n - j) * q**j * _growth(j, r, alpha, bound) for j in range(3, n + 1))
    return log(total)


def rdp(order, *, r, alpha, q, steps, bound="lemma9"):
    """First term of Theorem 10, not rearranged."""
    return mpf(steps) / (order - 1) * _log_moment(order, r, alpha, q, bound)


def epsilon_at(order, *, r, alpha, delta, q, steps, bound="lemma9"):
    """Theorem 10 at one order."""
    n = mpf(order)
    conversion = log(n - 1) - (log(mpf(delta)) + n * log(n)) / (n - 1)
    return rdp(order, r=r, alpha=alpha, q=q, steps=steps, bound=bound) + conversion


def orders(*, r, alpha, top=1001, least_gap=0):
    """Integers λ with 2 ≤ λ < 1 + α/r, up to `top`; with a `least_gap`, only those with α − (λ−1)r ≥ that much of α."""
    gaps = {n: mpf(alpha) - (n - 1) * mpf(r) for n in range(2, top + 1)}
    return [n for n, gap in gaps.items() if gap > 0 and gap >= mpf(least_gap) * mpf(alpha)]


def epsilon(*, r, alpha, delta, q, steps, bound="lemma9"):
    """h(r) of eq. (1): (ε, order); infinite where no order is left."""
    setting = {"r": r, "alpha": alpha, "delta": delta, "q": q, "steps": steps, "bound": bound}
    admissible = orders(r=r, alpha=alpha, least_gap=0 if bound == "lemma9" else 1e-9)
    return min(((epsilon_at(n, **setting), n) for n in admissible), default=(mpf("inf"), 0))


@lru_cache
def scaling(*, budget, alpha, delta, q, steps, digits=14, bound="lemma9"):
    """r* of eq. (1) by bisection in r/α over [1/1000, 1)."""
    low, high = mpf("0.001"), mpf(1)
    while high - low > mpf(10) ** -digits * low:
        middle = (low + high) / 2
        spent, _ = epsilon(r=middle * mpf(alpha), alpha=alpha, delta=delta, q=q, steps=steps, bound=bound)
        low, high = (middle, high) if spent <= budget else (low, middle)
    return low * mpf(alpha)


def gaussian_rdp(order, *, noise_multiplier, q, steps):
    """Mironov, Talwar and Zhang 2019, Section 3.3, at an integer order: the binomial sum, not rearranged."""
    q, variance = mpf(q), mpf(noise_multiplier) ** 2
    total = sum(
        comb(order, k) * (1 - q) ** (order - k) * q**k * exp((k * k - k) / (2 * variance)) for k in range(order + 1)
    )
    return mpf(steps) / (order - 1) * log(total)


def gaussian_rdp_by_integration(order, *, noise_multiplier, q):
    """The Rényi divergences of (1 − q)·N(0, σ²) + q·N(1, σ²) from N(0, σ²) and back, as integrals: the greater."""
    q, variance = mpf(q), mpf(noise_multiplier) ** 2

    def density(x):
        return exp(-(x**2) / (2 * variance)) / mp.sqrt(2 * mp.pi * variance)

    def ratio(x):
        return 1 - q + q * exp((2 * x - 1) / (2 * variance))

    reach = 12 * mp.sqrt(variance) + order
    points = [-reach, -reach / 2, 0, 1, mpf(order) / 2, order, reach]
    with mp.workdps(20):
        moments = [mp.quad(lambda x, p=power: density(x) * ratio(x) ** p, points) for power in (order, 1 - order)]
    return max(log(moment) / (order - 1) for moment in moments)


def attenuation(*, s_y, r, alpha):
    """κ of eq. (3)."""
    return mpf(r) * mpf(s_y) * psi(1, mpf(r) * mpf(s_y) + mpf(alpha))
