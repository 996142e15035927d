"""Ray-distributed hyperparameter sweeps over trainings of `dirdp`, tracked in MLflow."""

import os

# Ray and MLflow read these while they are imported. Usage statistics stay off unless the user wants them, and Tune
# writes no files beside our store; what the user has set stays.
for _name, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)
