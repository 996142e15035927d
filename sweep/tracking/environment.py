"""What MLflow finds around it: the environment variables it reads, and the loggers it writes to."""

from __future__ import annotations

import logging
import os

THREAD = "mlflow-writer"
"""The name of the thread that calls MLflow."""


def prepare_environment() -> None:
    """Set what MLflow reads from the environment, for this process and the workers that inherit it.

    By default a dead server blocks a call for minutes; the writer has its own pauses. Nor may MLflow send a call again
    by itself: one that arrived after all, such as the creation of a run, would then be there twice.
    """
    for variable in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        os.environ.pop(variable, None)  # with them, a new run silently becomes an old one
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines per trial
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    for name in ("mlflow.store.db.utils", "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_not_ours)


def _not_ours(record: logging.LogRecord) -> bool:
    """Drop the chatter that our own calls cause; the writer says what matters in one line."""
    return record.threadName != THREAD
