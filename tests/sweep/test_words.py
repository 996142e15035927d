"""Numbers as reports write them: no privacy rounded away."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.words import digits, point_header, round_up


@given(st.floats(min_value=0, max_value=1e6))
def test_epsilon_is_never_rounded_down(value):
    assert value <= float(round_up(value)) <= value + 1.01e-4


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.99991, "1"), (0.1, "0.1"), (0.12341, "0.1235"), (1e-9, "0.0001"), (0.0, "0"), (100.0, "100")],
)
def test_rounding_up_by_hand(value, text):
    assert round_up(value) == text


def test_what_is_no_number_has_a_sign():
    assert (round_up(math.inf), round_up(math.nan)) == ("∞", "–")


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (0.5, "0.5"), (1e-5, "1e-5"), (7.42, "7.42"), (math.inf, "∞")])
def test_all_digits(value, text):
    assert digits(value) == text


@pytest.mark.parametrize(
    ("methods", "name"),
    [
        (["dirichlet", "nonprivate"], "nominal ε"),
        (["gaussian_features"], "nominal ε"),
        (["dpsgd", "tempered_sigmoid", "nonprivate"], "ε"),
        (["dirichlet", "dpsgd"], "ε (some nominal)"),
        ([], "nominal ε"),
    ],
)
def test_the_epsilon_of_points_is_called_what_it_is(methods, name):
    assert point_header(pd.DataFrame({"method": methods}))[-1] == name
