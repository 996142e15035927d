"""Write calibration.json from the mpmath oracle alone: `python -m tests.golden.regenerate` (minutes)."""

import json
from pathlib import Path

from ..dirdp import oracle

DELTA = 1e-5
CIFAR10 = {"q": 0.005, "steps": 20000}
MNIST = {"q": 250 / 60000, "steps": 9600}
DERMAMNIST = {"q": 70 / 7007, "steps": 6006}
SVHN = {"q": 250 / 73257, "steps": 11722}

# (source, setting, α, ε, the value printed there)
SCALINGS = [
    *(
        ("Table 6", CIFAR10, alpha, 1, printed)
        for alpha, printed in zip(
            [0.1, 0.3, 0.5, 1, 2, 3],
            ["0.0087", "0.0260", "0.0433", "0.0864", "0.1580", "0.2349"],
            strict=True,
        )
    ),
    *(
        ("Table 7", setting, 3, epsilon, printed)
        for setting, row in [
            (CIFAR10, {1: "0.235", 3: "0.559", 4: "0.679", 8: "0.903"}),  # 2 and 6 are rounded twice
            (MNIST, {0.5: "0.136", 1: "0.277", 2: "0.472", 4: "0.711"}),
            (DERMAMNIST, {1: "0.137", 4: "0.645", 7.42: "0.856"}),
            (SVHN, {1: "0.284", 2: "0.475", 3: "0.575", 4: "0.717", 6: "0.930", 8: "0.964"}),
        ]
        for epsilon, printed in row.items()
    ),
    *(
        ("checked", CIFAR10, alpha, 1, printed)
        for alpha, printed in zip(
            [0.1, 0.3, 0.5, 1, 2, 3, 10],
            ["0.008667", "0.025994", "0.043301", "0.086394", "0.158004", "0.234894", "0.534702"],
            strict=True,
        )
    ),
    *(
        ("checked", setting, 3, epsilon, printed)
        for setting, row in [
            (CIFAR10, {2: "0.4035", 3: "0.5588", 4: "0.6787", 6: "0.8245", 8: "0.9031"}),
            (MNIST, {0.5: "0.1357", 1: "0.2771", 2: "0.4722", 4: "0.7106"}),
        ]
        for epsilon, printed in row.items()
    ),
    *(
        ("Table 9", {"q": q, "steps": 20000}, 3, 4, printed)
        for q, printed in [(0.001, "0.7528"), (0.01, "0.5046"), (0.02, "0.2192")]
    ),
    *(
        ("Table 9, 100 epochs", {"q": q, "steps": steps}, 3, 4, printed)
        for q, steps, printed in [
            (0.001, 100000, "0.7407"),
            (0.01, 10000, "0.5688"),
            (0.02, 5000, "0.4734"),
            (0.04, 2500, "0.2858"),
        ]
    ),
]

# r* with the exact divergence of a draw in the place of Lemma 9
EXACT = [
    (CIFAR10, 3, 1, "0.2569"),
    (CIFAR10, 3, 4, "0.9386"),
    (CIFAR10, 3, 8, "1.4116"),
    (CIFAR10, 0.1, 1, "0.01000"),  # at the jump r = α/10
    (MNIST, 3, 0.5, "0.1500"),  # at the jump r = α/20
    (MNIST, 3, 4, "0.9999"),
]

# κ at s_y = 0.9 for CIFAR10 and ε = 1
ATTENUATIONS = [(0.1, "0.6823"), (1, "0.11475"), (3, "0.07712"), (10, "0.04817")]

# h(α/1000) at α = 3
FLOORS = [
    (0.04, 20000, "6.0820"),
    (0.04, 2500, "2.815"),
    (0.02, 20000, "2.985"),
    (0.02, 5000, "1.807"),
    (0.005, 20000, "0.6755"),
]

# ε of Theorem 10 at single orders, where it has two valleys in λ
ORDERS = [3, 4, 100, 1001, 3000, 5523, 5524, 5525, 5560]


def scaling(source, setting, alpha, epsilon, printed, bound="lemma9"):
    r = oracle.scaling(budget=epsilon, alpha=alpha, delta=DELTA, bound=bound, **setting)
    return {
        "source": source,
        **setting,
        "alpha": alpha,
        "epsilon": epsilon,
        "printed": printed,
        "r": float(r),
    }


def attenuation(alpha, printed):
    r = oracle.scaling(budget=1, alpha=alpha, delta=DELTA, **CIFAR10)
    kappa = oracle.attenuation(s_y=0.9, r=r, alpha=alpha)
    return {**CIFAR10, "alpha": alpha, "epsilon": 1, "printed": printed, "kappa": float(kappa)}


def floor(q, steps, printed):
    epsilon, order = oracle.epsilon(r=0.003, alpha=3, delta=DELTA, q=q, steps=steps)
    return {"q": q, "steps": steps, "alpha": 3, "printed": printed, "epsilon": float(epsilon), "order": order}


def valley(order):
    setting = {"r": 5.39e-4, "alpha": 3, "q": 0.04, "steps": 20000}
    return {**setting, "order": order, "epsilon": float(oracle.epsilon_at(order, delta=DELTA, **setting))}


def main():
    golden = {
        "delta": DELTA,
        "scalings": [scaling(*case) for case in SCALINGS],
        "exact_scalings": [scaling("exact", *case, bound="exact") for case in EXACT],
        "attenuations": [attenuation(*case) for case in ATTENUATIONS],
        "floors": [floor(*case) for case in FLOORS],
        "valleys": [valley(order) for order in ORDERS],
    }
    Path(__file__).with_name("calibration.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
