"""What the driver costs for each trial: many trials that do next to nothing, with Ray, the storage and MLflow.

    python benchmarks/driver.py [TRIALS]

Prints the wall time a trial and the driver's memory while the sweep goes on. A trial here is one step of a small
network on digits: what is measured beside it is the hand-out by Tune, the records and checkpoints on the storage, and
MLflow's SQLite file, in WAL mode.

Measured on 2 cores of an AMD EPYC, 1,000 trials: 94 ms a trial, its training included; the driver's memory goes from
894 MiB after 100 trials to 913 after 1,000, 21 kB a trial: plans, records, and what Tune keeps of each.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console

from sweep.planning import plan
from sweep.running import RunOptions, run
from sweep.spec import Sweep
from sweep.storage import open_storage
from sweep.store import Store


def main(trials: int) -> None:
    """Run the sweep, watch, print."""
    sweep = Sweep.model_validate(
        {
            "name": "noop",
            "title": "Trials that do next to nothing",
            "trial": {
                "dataset": "digits",
                "model": "mlp",
                "sampling_rate": 16 / 1437,
                "steps": 1,
                "reports": 1,
                "epsilon": 8,
            },
            "space": [{"lr": [0.1 + 1e-4 * i for i in range(trials)]}],
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(folder)
        watch = Watch(Path(folder) / "noop" / "trials", trials)
        laid_out = plan(sweep)
        started = time.perf_counter()
        watch.start()
        run(laid_out, RunOptions(storage=storage), console=Console(quiet=True))
        whole = time.perf_counter() - started
        watch.join()
        records = Store(storage.below("noop")).read()
        assert len(records) == trials and {record.end_reason for record in records.values()} == {"completed"}
    first, last = min(watch.seen), max(watch.seen)
    each = (watch.seen[last][0] - watch.seen[first][0]) / (last - first)
    print(f"{trials} trials: {whole:.1f} s in all, start and report included")
    print(f"driver: {1e3 * each:.0f} ms a trial, from trial {first} to {last}")
    for count, (_, memory) in sorted(watch.seen.items()):
        print(f"memory after {count:5d} trials: {memory / 2**20:.0f} MiB")


class Watch(threading.Thread):
    """Notes time and memory of this process at each tenth of the trials."""

    def __init__(self, folder: Path, trials: int):
        super().__init__(daemon=True)
        self._folder, self._marks = folder, [max(1, trials * tenth // 10) for tenth in range(1, 11)]
        self.seen: dict[int, tuple[float, int]] = {}

    def run(self) -> None:
        """Look until the last trial has begun."""
        while self._marks:
            done = len(list(self._folder.glob("*.jsonl"))) if self._folder.is_dir() else 0
            if done >= self._marks[0]:
                self.seen[done] = (time.perf_counter(), resident())
                self._marks = [mark for mark in self._marks if mark > done]
            time.sleep(0.1)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
