"""What the tests of the writer share: a prepared store, and a writer that neither waits nor leaves traces."""

import shutil

import pytest

from sweep.tracking import writer


@pytest.fixture
def storage(tmp_path, empty_store):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """Flush often, pause briefly, and leave the environment as it was."""
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0.1)
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.1)
    for variable in ("MLFLOW_RUN_ID", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(variable, "")  # so that the original is put back
        monkeypatch.delenv(variable)
