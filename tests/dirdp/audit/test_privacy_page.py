"""The counter-example of docs/privacy.md, as it is printed there."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"


@pytest.fixture(scope="module")
def code():
    text = PAGE.read_text(encoding="utf-8")
    return text.split("```python\n")[1].split("```")[0]


def test_the_example_is_short(code):
    assert len(code.splitlines()) < 40


@pytest.mark.slow
def test_weights_of_a_coordinate_move_if_and_only_if_its_record_is_used(code):
    printed = []
    exec(code, {"print": lambda *values: printed.append(values)})
    ((without, used),) = printed
    assert without == 0.0
    assert used > 1e-3
