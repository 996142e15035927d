"""What the tests of the platform share: a prepared MLflow store, and a folder of their own to work in."""

import contextlib
import sqlite3
import uuid

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


@pytest.fixture(scope="session")
def s3():
    """Make a new bucket; the function returns its URI as a user would write it."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    import boto3

    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret"}

    def bucket():
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint).create_bucket(Bucket=name)
        return f"s3://{name}/deep/folder?region=us-east-1&endpoint_override={endpoint}"

    with pytest.MonkeyPatch.context() as patch:
        for name, value in keys.items():
            patch.setenv(name, value)
        yield bucket
    server.stop()
