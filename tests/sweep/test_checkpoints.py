"""Checkpoints: the newest good one is found, whatever happened to the newest."""

import pytest
import torch

from sweep.checkpoints import Checkpoints
from sweep.storage import Folder


@pytest.fixture
def kept(tmp_path):
    checkpoints = Checkpoints(Folder(tmp_path))
    for step in (5, 50, 500):
        checkpoints.save(step, {"step": step, "weights": torch.full((100,), float(step)), "reports": [{"step": step}]})
    return checkpoints


def steps(checkpoints):
    return [saved["step"] for saved in checkpoints.newest_first()]


def test_the_newest_comes_first_and_old_ones_go(kept, tmp_path):
    assert steps(kept) == [500, 50]
    assert len(list(tmp_path.iterdir())) == 2


def test_contents_come_back_as_they_were(kept):
    saved = next(kept.newest_first())
    assert torch.equal(saved["weights"], torch.full((100,), 500.0)) and saved["reports"] == [{"step": 500}]


def test_none_at_first(tmp_path):
    assert steps(Checkpoints(Folder(tmp_path / "none"))) == []


@pytest.mark.parametrize("keep", [0, 10, 32, 100, -1])
def test_a_torn_file_gives_way_to_the_one_before(kept, tmp_path, keep):
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:keep])
    assert steps(kept) == [50]


def test_a_flipped_bit_is_noticed(kept, tmp_path):
    newest = max(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    assert steps(kept) == [50]


def test_what_a_killed_process_left_of_a_write_is_let_be(kept, tmp_path):
    (tmp_path / ".000000005000.pt.0a1b").write_bytes(b"half")
    assert steps(kept) == [500, 50]


def test_nothing_but_data_is_loaded(kept, tmp_path):
    """A checkpoint comes from a shared place: it may not bring code."""

    class Evil:
        def __reduce__(self):
            return print, ("run",)

    kept.save(5000, {"step": Evil()})
    with pytest.raises(Exception, match="weights_only"):
        next(kept.newest_first())
