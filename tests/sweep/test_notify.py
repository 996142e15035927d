"""The webhook: what it is sent when a sweep ends, fails or stalls, and that it never costs the sweep."""

import contextlib
import json
import logging
import time

import pytest

from sweep import notify
from sweep.campaign import Campaign
from sweep.notify import Notifier, check_url
from sweep.planning import plan
from sweep.storage import Folder
from sweep.store import Store

from .spaces import a_sweep, simulate
from .web import answering

SWEEP = a_sweep({"lr": [0.1, 1]})


@contextlib.contextmanager
def webhook(**how):
    """Takes what is posted, as `answering` says."""
    with answering(**how) as (address, requests):
        yield f"{address}/hook/secret", requests


def told(requests):
    assert {headers["Content-Type"] for headers, _ in requests} == {"application/json"}
    return [json.loads(body) for _, body in requests]


def watched(folder, url, *, stall_seconds=60.0):
    listeners = []
    campaign = Campaign(plan(SWEEP), Store(Folder(folder)), listeners=listeners)
    notifier = Notifier(url, campaign, sweep="tiny", trials=2, stall_seconds=stall_seconds)
    listeners.append(notifier)
    return campaign, notifier


def test_the_end_is_one_message_with_the_counts(tmp_path):
    with webhook() as (url, requests):
        campaign, notifier = watched(tmp_path, url)
        with notifier:
            simulate(campaign, lambda trial, step: 0.5)
    (body,) = told(requests)
    assert (body["event"], body["sweep"], body["complete"], body["trials"]) == ("ended", "tiny", True, 2)
    assert body["ends"] == {"completed": 2}
    assert body["text"] == "sweep tiny ended: 2 completed of 2 trials"


def test_a_failure_is_told_with_its_reason_and_goes_on(tmp_path):
    with webhook() as (url, requests):
        _, notifier = watched(tmp_path, url)
        with pytest.raises(OSError, match="disk full"), notifier:
            raise OSError("disk full")
    (body,) = told(requests)
    assert body["event"] == "failed" and body["message"] == "OSError: disk full" and body["complete"] is False


def test_each_silence_is_told_once(tmp_path):
    with webhook() as (url, requests):
        campaign, notifier = watched(tmp_path, url, stall_seconds=0.1)
        with notifier:
            wait_for(lambda: len(requests) == 1)
            time.sleep(0.3)
            assert len(requests) == 1
            simulate(campaign, lambda trial, step: 0.5)
            wait_for(lambda: len(requests) == 2)
    assert [body["event"] for body in told(requests)] == ["stalled", "stalled", "ended"]
    assert "nothing heard for 0 s: no trial yet of 2 trials" in told(requests)[0]["text"]


def wait_for(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("fault", ["refuses", "slow", "away"])
def test_a_webhook_that_does_not_take_it_costs_one_warning(tmp_path, monkeypatch, caplog, fault):
    monkeypatch.setattr(notify, "TIMEOUT_SECONDS", 0.2)
    with webhook(status=500, seconds=5 if fault == "slow" else 0) as (url, _):
        address = "http://127.0.0.1:9/hook/secret" if fault == "away" else url
        _, notifier = watched(tmp_path, address)
        started = time.monotonic()
        with caplog.at_level(logging.WARNING, logger="sweep"), notifier:
            pass
        assert time.monotonic() - started < 3
    (record,) = caplog.records
    assert record.getMessage().startswith("not notified that tiny ended: 127.0.0.1: ")
    assert "secret" not in record.getMessage()


def test_without_a_webhook_nothing_happens(tmp_path):
    _, notifier = watched(tmp_path, None)
    with notifier:
        assert not notifier._watch.is_alive()


@pytest.mark.parametrize("url", ["hooks.example.org/x", "file:///etc/passwd", "http://", "mailto:me@example.org"])
def test_what_is_no_webhook_is_refused(url):
    with pytest.raises(ValueError, match=r"--notify .*: expected http"):
        check_url(url)
