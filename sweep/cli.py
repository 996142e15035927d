"""The command line: one command per intention."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sweep.spec import load, shipped

if TYPE_CHECKING:
    from sweep.results import Results

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Hyperparameter sweeps over private trainings: Ray Tune runs them, MLflow keeps them.",
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets: what there is, and fetching it before a sweep.")
app.add_typer(data_app, name="data")
# A pipe has no width; 80 columns would cut numbers.
console = Console() if sys.stdout.isatty() else Console(width=160)

Name = Annotated[str, typer.Argument(help="A shipped search space (see `sweep list`) or the path of a .yaml file.")]
SweepName = Annotated[str, typer.Argument(help="The name of a sweep that has been run.")]
Size = Annotated[str | None, typer.Option(help="A size of the search space, such as smoke.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value, laid over the search space; may be repeated.")]


def _folder(path: Path) -> Path:
    if ":/" in str(path):  # what a Path leaves of s3://bucket
        raise ValueError(f"--storage {path}: expected a folder of this machine or of a shared file system")
    return path.absolute()


Storage = Annotated[
    Path,
    typer.Option(
        envvar="SWEEP_STORAGE", help="Folder of all results and, by default, of the MLflow store.", callback=_folder
    ),
]
Data = Annotated[Path | None, typer.Option(envvar="DIRDP_DATA", help="Folder of the data sets.")]
Tracking = Annotated[str | None, typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow store, sqlite or a server.")]
STORAGE = Path("sweep-results")


def main() -> None:
    """Run the command line; a fault of the input is one line on stderr and exit status 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("SWEEP_DEBUG"):
            raise
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(2) from None


@app.command("list")
def list_() -> None:
    """Show the shipped search spaces."""
    table = Table(box=None)
    for name in ("name", "what it is", "sizes"):
        table.add_column(name)
    for name in shipped():
        sweep = load(name)
        table.add_row(name, escape(sweep.title), ", ".join(["full", *sweep.sizes]))
    console.print(table)


@app.command()
def plan(name: Name, size: Size = None, set_: Set = None) -> None:
    """Show every point with its calibration, and what the sweep will cost, without starting anything."""
    from sweep.plan_table import plan_table, plan_totals
    from sweep.planning import plan as plan_sweep

    laid_out = plan_sweep(load(name, size=size, overrides=set_ or ()))
    console.print(plan_table(laid_out))
    console.print(plan_totals(laid_out), soft_wrap=True, markup=False)


@app.command()
def run(
    name: Name,
    size: Size = None,
    set_: Set = None,
    storage: Storage = STORAGE,
    data: Data = None,
    tracking_uri: Tracking = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at once, at most.")] = None,
    address: Annotated[str | None, typer.Option(help="A running Ray cluster: auto, or host:port.")] = None,
    wait_for_resources: Annotated[float, typer.Option(min=0, help="Seconds to wait for a fitting node.")] = 0.0,
    local: Annotated[bool, typer.Option("--local", help="One trial after another, in this process.")] = False,
) -> None:
    """Run a sweep; run again, only what is missing runs."""
    from sweep.planning import plan as plan_sweep
    from sweep.random_count import with_drawn_count
    from sweep.running import RunOptions
    from sweep.running import run as run_sweep
    from sweep.tracking import default_uri

    laid_out = plan_sweep(with_drawn_count(load(name, size=size, overrides=set_ or ()), storage))
    for point in laid_out.points:
        if point.reason:
            console.print(f"[yellow]infeasible:[/] {escape(point.reason)}", soft_wrap=True)
    options = RunOptions(
        storage=storage,
        data_root=data.absolute() if data else None,
        tracking_uri=tracking_uri,
        local=local,
        address=address,
        max_concurrent=max_concurrent,
        wait_for_resources=wait_for_resources,
    )
    outcome = run_sweep(laid_out, options, console=console)
    _show(outcome.results, paths=outcome.files)
    store = tracking_uri or default_uri(options.storage)
    console.print(f"MLflow  {store}  (open it with: sweep ui)", soft_wrap=True, markup=False)
    if not outcome.complete:
        console.print("not complete: the same command again runs what is missing")
        raise typer.Exit(1)


@app.command()
def status(name: SweepName, size: Size = None, storage: Storage = STORAGE) -> None:
    """Show how the trials of a sweep stand, and its best points."""
    _show(_results(storage, name, size), paths=[])


@app.command()
def report(name: SweepName, size: Size = None, storage: Storage = STORAGE) -> None:
    """Write the tables and figures of a sweep anew; table6 and table7 need no sweep and are computed."""
    from sweep.reporting import COMPUTED, write_computed
    from sweep.reporting.terminal import rich_table

    if name not in COMPUTED:
        results = _results(storage, name, size)
        _show(results, paths=results.write_report())
        return
    artifacts, paths = write_computed(storage / name, item=name)
    for table in artifacts.tables.values():
        console.print(rich_table(table))
    _print_paths(paths)


@app.command()
def privacy(
    name: Annotated[str, typer.Argument(help="A sweep that has been run, a search space or a .yaml file.")],
    size: Size = None,
    set_: Set = None,
    storage: Storage = STORAGE,
    trial: Annotated[str | None, typer.Option(help="The id of one trial, or its beginning.")] = None,
) -> None:
    """State what the ε of a sweep or a trial is, covers and does not cover, and what the sweep has spent."""
    from sweep.results import privacy_statement

    statement = privacy_statement(name, storage=storage, size=size, overrides=set_ or (), trial=trial)
    console.print(statement.text(), soft_wrap=True, markup=False, highlight=False, end="")


@app.command()
def compare(
    a: SweepName,
    b: SweepName,
    storage: Storage = STORAGE,
    format_: Annotated[str, typer.Option("--format", help="table, csv, markdown or latex.")] = "table",
) -> None:
    """Show the points of two sweeps side by side; a sweep of a size is called by both: figure2-smoke."""
    from sweep.reporting import compare as side_by_side
    from sweep.reporting.table import text
    from sweep.reporting.terminal import rich_table

    table = side_by_side(_results(storage, a, None), _results(storage, b, None))
    if format_ == "table":
        console.print(rich_table(table))
    else:
        typer.echo(text(table, format_, name="compare"), nl=False)


@app.command()
def results(
    name: SweepName,
    size: Size = None,
    storage: Storage = STORAGE,
    format_: Annotated[str, typer.Option("--format", help="csv or json.")] = "csv",
) -> None:
    """Print one row for each trial."""
    from sweep.reporting import results_rows

    found = _results(storage, name, size)
    typer.echo(results_rows(found.records, format_, rung=found.rung), nl=False)


@app.command()
def ui(
    storage: Storage = STORAGE,
    tracking_uri: Tracking = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Open the MLflow UI on the results."""
    from sweep.ui import serve

    serve(storage, port=port, tracking_uri=tracking_uri)


@app.command()
def calibrate(
    epsilon: Annotated[list[float], typer.Option(help="Nominal budget ε (Theorem 10); inf for none.")],
    sampling_rate: Annotated[list[str], typer.Option(help="Poisson rate q, such as 0.005 or 250/60000.")],
    steps: Annotated[list[int], typer.Option(help="Number of steps T.")],
    delta: Annotated[list[float], typer.Option(help="δ.")] = [1e-5],  # noqa: B006
    alpha: Annotated[list[float], typer.Option(help="Offset α.")] = [3.0],  # noqa: B006
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes d, for E[L] and Var[L].")] = None,
    s_y: Annotated[float, typer.Option(min=0, max=1, help="Softmax output of the true class, for κ and L.")] = 0.9,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print r*, achieved ε, order, κ and floor; several values of an option make a table."""
    from sweep.plan_table import calibration_row, calibration_table
    from sweep.spec import number

    rows = [
        calibration_row(epsilon=e, delta=d, alpha=a, sampling_rate=number(q), steps=t, classes=classes, s_y=s_y)
        for e, d, a, q, t in itertools.product(epsilon, delta, alpha, sampling_rate, steps)
    ]
    if json_:
        # JSON has no infinity; null would read as "unknown".
        typer.echo(json.dumps([{key: str(v) if v == math.inf else v for key, v in row.items()} for row in rows]))
    else:
        console.print(calibration_table(rows))
    if any(row["achieved"] is None for row in rows):
        Console(stderr=True).print("r* none: ε is below the floor, the least usable budget at that α, q, T and δ")
        raise typer.Exit(1)


@data_app.command("list")
def data_list(root: Data = None) -> None:
    """Show the data sets, and which of them are ready in the data folder."""
    from dirdp import datasets
    from sweep.data import names

    table, faults = Table(box=None), []
    for column in ("name", "train", "validation", "test", "classes", "shape", "state"):
        table.add_column(column)
    for name in names():
        info = datasets.info(name)
        try:
            datasets.check(name, root=root)
            state = "ready"
        except datasets.MissingFileError:
            state = "missing"
        except datasets.DataError as error:
            state = "see below" if root else "no folder given"
            faults += [str(error)] if root else []
        sizes = [info.train_size, info.validation_size or "–", info.test_size, info.classes]
        table.add_row(name, *map(str, sizes), f"{info.channels}×{info.image_size}×{info.image_size}", state)
    console.print(table)
    for fault in faults:
        console.print(fault, soft_wrap=True, markup=False)
    console.print("`sweep data prepare NAME` fetches what is missing. Your own: npz:PATH, folder:PATH", soft_wrap=True)


@data_app.command("prepare")
def data_prepare(
    names: Annotated[list[str], typer.Argument(help="Data sets (see `sweep data list`).")],
    root: Data = None,
    offline: Annotated[bool, typer.Option("--offline", help="Check only: any use of the network is an error.")] = False,
) -> None:
    """Fetch data sets into the data folder and check them; safe to run many times and at once."""
    from sweep.data import prepare

    if root is None:
        raise ValueError("give --root DIR or set DIRDP_DATA: where should the data lie?")
    for name in names:
        fetched = prepare(name, root=root, offline=offline, say=lambda line: console.print(line, soft_wrap=True))
        console.print(f"{name}: ready, {len(fetched)} files fetched", soft_wrap=True)


def _results(storage: Path, name: str, size: str | None) -> Results:
    from sweep.results import Results

    return Results.read(storage, f"{name}-{size}" if size else name)


def _show(results: Results, *, paths: list[Path]) -> None:
    from sweep.plan_table import sweep_lines
    from sweep.planning import plan as plan_sweep
    from sweep.reporting import points_frame, trials_frame
    from sweep.reporting.terminal import summary_table

    trials = trials_frame(results.records, rung=results.rung)
    console.print(summary_table(trials, points_frame(trials, seeds=results.sweep.seeds)))
    for line in sweep_lines(plan_sweep(results.sweep), results.ledger, removed=results.removed):
        console.print(line, soft_wrap=True, markup=False)
    for record in results.records:
        if record.message:
            console.print(f"{record.end_reason} {record.trial_id}: {record.message}", soft_wrap=True, markup=False)
    _print_paths(paths)


def _print_paths(paths: list[Path]) -> None:
    for path in paths:
        console.print(str(path), soft_wrap=True, markup=False)
