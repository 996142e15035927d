"""The MLflow UI on a sweep: the tag it reads, the links, and one look at the real thing."""

import itertools
import json
import math
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_hex

from sweep.reporting.colors import alpha_colors
from sweep.tracking import Tracker, TrackingError, default_uri
from sweep.tracking.view import experiment_tags, figure2_view, ui_url
from sweep.ui import serve

ALPHAS = (0.1, 0.3, 1, 3, 10)
CHROMIUM = Path("/usr/bin/chromium")
ROOT = Path(__file__).parents[3]


def test_the_view_shows_all_trials_against_both_rates():
    view = json.loads(figure2_view())
    state = json.loads(view["state"])
    assert view.keys() == {"name", "createdAt", "state"}
    assert state["runsHiddenMode"] == "SHOW_ALL"
    assert state["searchFilter"] == "tags.`sweep.kind` = 'trial'"
    assert state["orderByKey"] != "attributes.start_time"  # the UI then nests trials below their parent, unseen
    assert [card["type"] for card in state["compareRunCharts"]] == ["SCATTER", "SCATTER"]
    assert [card["xaxis"]["key"] for card in state["compareRunCharts"]] == [
        "log10_effective_learning_rate",
        "log10_learning_rate",
    ]
    assert {card["yaxis"]["key"] for card in state["compareRunCharts"]} == {"final_accuracy"}
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {card["metricSectionId"] for card in state["compareRunCharts"]} == sections


def test_the_view_is_the_same_every_time_and_fits_into_a_tag():
    assert figure2_view() == figure2_view()
    assert max(map(len, experiment_tags().values())) < 5000  # characters; older servers take no more


def test_the_link_names_the_tag():
    page = urlsplit(urlsplit(ui_url("http://host:5000/", "7")).fragment)
    assert page.path == "/experiments/7/runs"
    (key,) = parse_qs(page.query)["viewStateShareKey"]
    assert f"mlflow.sharedViewState.{key}" in experiment_tags()


def test_a_busy_port_is_one_clear_error(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TrackingError, match=f"port {port} cannot be used"):
            serve(tmp_path, port=port, tracking_uri=None)


def test_an_impossible_port_is_one_clear_error(tmp_path):
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(TrackingError, match="port 70000 cannot be used"):
        serve(tmp_path, port=70000, tracking_uri=None)


def test_a_folder_without_a_store_is_one_clear_error(tmp_path):
    with pytest.raises(TrackingError, match="no sweep has been tracked"):
        serve(tmp_path, port=0, tracking_uri=None)


@pytest.mark.slow
def test_the_ui_opens_on_the_figure(tmp_path):
    """All trials are drawn in the colours of their alphas: counted in a screenshot of the real UI."""
    track_a_collapse(tmp_path)
    port = free_port()
    code = "import sys; from pathlib import Path; from sweep.ui import serve; "
    code += "serve(Path(sys.argv[1]), port=int(sys.argv[2]), tracking_uri=None)"
    command = [sys.executable, "-c", code, str(tmp_path), str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        name, link = server.stdout.readline().strip().split(": ", 1)
        assert (name, link) == ("figure2", ui_url(f"http://127.0.0.1:{port}", "1"))
        if CHROMIUM.exists():
            look_at(link, tmp_path)
    finally:
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=30)[0]
    assert server.returncode == 0
    assert rest.endswith("ended\n")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0  # the server is gone too


def look_at(link, folder):
    picture = folder / "ui.png"
    for _ in range(3):  # headless Chromium sometimes takes its picture before the charts are there
        screenshot(link, picture, folder / "profile")
        found = colours(picture)
        if set(alpha_colors(ALPHAS).values()) <= found.keys():
            break
    dot = math.pi * 4**2  # pixels in a dot's own colour; in the right-hand chart no dots overlap
    assert all(found[color] > 0.8 * 8 * dot for color in alpha_colors(ALPHAS).values())


def screenshot(link, picture, profile):
    shutil.rmtree(profile, ignore_errors=True)
    quiet = "--disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-component-update", *quiet.split()),
        *(f"--user-data-dir={profile}", "--window-size=1500,950", "--hide-scrollbars"),
        *("--virtual-time-budget=60000", "--run-all-compositor-stages-before-draw"),
        *(f"--screenshot={picture}", link),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def colours(picture):
    """How many pixels of each colour there are."""
    pixels = (matplotlib.image.imread(picture)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    values, counts = np.unique(pixels, axis=0, return_counts=True)
    return {to_hex(value / 255): int(count) for value, count in zip(values, counts, strict=True)}


def track_a_collapse(storage):
    """Forty trials whose accuracy depends on the effective rate alone."""
    colors = alpha_colors(ALPHAS)
    tracker = Tracker(uri=default_uri(storage), experiment="figure2", storage=storage, name="figure2", tags={})
    for number, (rank, exponent) in enumerate(itertools.product(range(5), np.linspace(-2.5, 1, 8))):
        trial, alpha, accuracy = f"{number:03d}", ALPHAS[rank], 0.95 - 0.2 * (exponent + 1) ** 2
        tags = {"mlflow.runColor": colors[alpha]}
        tracker.trial_started(trial, name=f"α={alpha:g}", params={"alpha": alpha}, tags=tags)
        for step in range(3):
            tracker.trial_reported(trial, step=step, metrics={"test_accuracy": accuracy})
        final = {
            "final_accuracy": accuracy,
            "log10_effective_learning_rate": exponent,
            "log10_learning_rate": exponent + 0.2 + rank / 4,
        }
        tracker.trial_ended(trial, end_reason="completed", metrics=final)
    tracker.close(timeout=60)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
