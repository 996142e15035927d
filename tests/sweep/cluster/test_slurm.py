"""The Slurm script, with stand-ins for Slurm's commands that run everything on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweep.storage import Folder
from sweep.store import Store

from ..spaces import TEXT
from .heads import free_port, wait_for

SCRIPT = Path(__file__).parents[3] / "deploy" / "sweep.sbatch"
SRUN = """#!/bin/bash
echo "$@" >> "$CALLS"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


@pytest.fixture
def slurm(tmp_path):
    """The environment of a job on two nodes, both of them this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho node1\necho node2\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_PER_TASK": "1",
        "RAY_PORT": str(free_port()),
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
        "SWEEP_STORAGE": str(tmp_path / "results"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}",
    }


def test_the_script_needs_a_folder_that_all_nodes_see(slurm):
    del slurm["SWEEP_STORAGE"]
    done = subprocess.run(["bash", SCRIPT, "quickstart"], env=slurm, capture_output=True, text=True)
    assert done.returncode and "export SWEEP_STORAGE" in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("end", ["by itself", "by the signal"])
def test_a_sweep_runs_on_the_nodes_of_a_job(slurm, tmp_path, empty_store, end):
    (tmp_path / "results").mkdir()
    shutil.copy(empty_store, tmp_path / "results" / "mlflow.db")
    endless = {"steps: 40": "steps: 200000", "reports: 4": "reports: 400", "epsilon: 1": "epsilon: .inf"}
    text = TEXT
    for old, new in endless.items() if end == "by the signal" else ():
        text = text.replace(old, new)
    (tmp_path / "tiny.yaml").write_text(text)
    with (tmp_path / "output").open("w") as output:
        job = subprocess.Popen(
            ["bash", SCRIPT, "tiny.yaml"],
            env=slurm,
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if end == "by the signal":  # 300 s before the job's time is over, Slurm sends it to the script alone
                wait_for(lambda: reports(tmp_path), seconds=300)
                job.send_signal(signal.SIGINT)
            status = job.wait(300)
        finally:
            if job.poll() is None:
                job.kill()
    said = (tmp_path / "output").read_text()
    records = Store(Folder(tmp_path / "results" / "tiny")).read().values()
    ends = {record.end_reason for record in records}
    if end == "by itself":
        assert (status, ends, len(records)) == (0, {"completed"}, 4), said
    else:
        assert status == 1 and ends == {"interrupted"} and "not complete" in said, said
    starts = [line for line in (tmp_path / "calls").read_text().splitlines() if "ray start" in line]
    assert ["--head" in line for line in starts] == [True, False]
    assert not (tmp_path / "token").exists()
    wait_for(lambda: not ours(slurm["RAY_PORT"]), seconds=30)


def reports(folder):
    return any(record.reports for record in Store(Folder(folder / "results" / "tiny")).read().values())


def ours(port):
    """Processes of the job's Ray that are still there, by the port that is on their command line."""
    time.sleep(0.5)
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if f":{port}" in line or f"port={port}" in line]
