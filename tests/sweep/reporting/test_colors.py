"""One colour an α, the same in every picture."""

import math

from matplotlib.colors import to_rgb

from sweep.reporting.colors import ALPHA_MAP, alpha_colors

PAPER = [0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10]


def lightness(color):
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), to_rgb(color), strict=True))


def test_colours_are_distinct_and_grow_lighter_with_alpha():
    colors = alpha_colors(reversed(PAPER))
    assert list(colors) == PAPER
    assert len(set(colors.values())) == len(PAPER)
    steps = [lightness(color) for color in colors.values()]
    assert steps == sorted(steps)
    assert steps[-1] < 0.75  # still to be seen on white paper


def test_the_scale_is_logarithmic():
    low, middle, high = alpha_colors([0.1, 1, 10]).values()
    expected = [ALPHA_MAP(place)[:3] for place in (0.0, 0.5, 1.0)]
    assert all(
        math.dist(to_rgb(color), there) < 0.01 for color, there in zip([low, middle, high], expected, strict=True)
    )


def test_no_offset_or_one():
    assert alpha_colors([math.nan]) == {}
    assert list(alpha_colors([3, 3, math.nan])) == [3.0]
