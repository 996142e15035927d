"""What the tests of the platform share: a prepared MLflow store, and a folder of their own to work in."""

import contextlib
import sqlite3

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """An initialised SQLite file: to make one takes seconds, to copy it nothing."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in an empty folder, with none of the user's own settings."""
    for name in ("MLFLOW_TRACKING_URI", "SWEEP_STORAGE", "SWEEP_DEBUG", "DIRDP_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
