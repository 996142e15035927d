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

from sweep.spec import SpecError, load, shipped

if TYPE_CHECKING:
    from sweep.planning import Plan
    from sweep.results import Results
    from sweep.spec import Sweep
    from sweep.storage import Storage as Place

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Hyperparameter sweeps over private trainings: Ray Tune runs them, MLflow keeps them.",
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets: what there is, and fetching it before a sweep.")
app.add_typer(data_app, name="data")
cluster_app = typer.Typer(no_args_is_help=True, help="Clusters that `ray up` starts.")
app.add_typer(cluster_app, name="cluster")
# A pipe has no width; 80 columns would cut numbers.
console = Console() if sys.stdout.isatty() else Console(width=160)

Name = Annotated[str, typer.Argument(help="A shipped search space (see `sweep list`) or the path of a .yaml file.")]
SweepName = Annotated[str, typer.Argument(help="The name of a sweep that has been run.")]
Size = Annotated[str | None, typer.Option(help="A size of the search space, such as smoke.")]
Called = Annotated[str | None, typer.Option("--name", help="Keep the results of a variation under this name.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value, laid over the search space; may be repeated.")]


def _webhook(url: str | None) -> str | None:
    from sweep.notify import check_url

    return check_url(url)


Storage = Annotated[
    str,
    typer.Option(
        envvar="SWEEP_STORAGE",
        help="Folder of all results and, by default, of the MLflow store; or s3://BUCKET/FOLDER, gs://BUCKET/FOLDER.",
    ),
]
Data = Annotated[Path | None, typer.Option(envvar="DIRDP_DATA", help="Folder of the data sets.")]
Tracking = Annotated[str | None, typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow store, sqlite or a server.")]
Notify = Annotated[
    str | None,
    typer.Option(envvar="SWEEP_NOTIFY", help="A webhook, sent JSON when the sweep ends or stalls.", callback=_webhook),
]
StallMinutes = Annotated[float, typer.Option(min=0.01, help="Minutes without a report after which it has stalled.")]
STORAGE = "sweep-results"


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
def plan(name: Name, size: Size = None, set_: Set = None, data: Data = None) -> None:
    """Show every point with its calibration, and what the sweep will cost, without starting anything."""
    from sweep.plan_table import plan_table, plan_totals
    from sweep.planning import data_faults
    from sweep.planning import plan as plan_sweep

    laid_out = plan_sweep(load(name, size=size, overrides=set_ or ()))
    console.print(plan_table(laid_out))
    console.print(plan_totals(laid_out), soft_wrap=True, markup=False)
    for fault in data_faults(laid_out, data) if data and laid_out.sweep.training else ():
        console.print(f"[yellow]not ready:[/] {escape(fault)}", soft_wrap=True)


@app.command()
def run(
    name: Name,
    size: Size = None,
    set_: Set = None,
    called: Called = None,
    storage: Storage = STORAGE,
    data: Data = None,
    tracking_uri: Tracking = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at once, at most.")] = None,
    address: Annotated[str | None, typer.Option(help="A running Ray cluster: auto, or host:port.")] = None,
    wait_for_resources: Annotated[float, typer.Option(min=0, help="Seconds to wait for a fitting node.")] = 0.0,
    local: Annotated[bool, typer.Option("--local", help="One trial after another, in this process.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, beside the earlier results.")] = False,
    force_unlock: Annotated[
        bool, typer.Option("--force-unlock", help="Run although another process seems to be running this sweep.")
    ] = False,
    notify: Notify = None,
    stall_minutes: StallMinutes = 30.0,
) -> None:
    """Run a sweep; run again, only what is missing runs."""
    from sweep.planning import plan as plan_sweep
    from sweep.random_count import with_drawn_count
    from sweep.results import unused_name
    from sweep.running import RunOptions
    from sweep.running import run as run_sweep
    from sweep.storage import open_storage
    from sweep.tracking import default_uri

    place = open_storage(storage)
    sweep = load(name, size=size, overrides=set_ or (), called=called)
    if fresh:
        sweep = sweep.model_copy(update={"name": unused_name(place, sweep.name)})
    laid_out = plan_sweep(with_drawn_count(sweep, place))
    if not laid_out.sweep.training:
        _compute(laid_out, place)
        return
    for point in laid_out.points:
        if point.reason:
            console.print(f"[yellow]infeasible:[/] {escape(point.reason)}", soft_wrap=True)
    options = RunOptions(
        storage=place,
        data_root=data.absolute() if data else None,
        tracking_uri=tracking_uri,
        local=local,
        address=address,
        max_concurrent=max_concurrent,
        wait_for_resources=wait_for_resources,
        force_unlock=force_unlock,
        notify=notify,
        stall_minutes=stall_minutes,
    )
    outcome = run_sweep(laid_out, options, console=console)
    _show(outcome.results, paths=outcome.files)
    store = tracking_uri or default_uri(place.local)
    console.print(f"MLflow  {store}  (open it with: sweep ui)", soft_wrap=True, markup=False)
    if not outcome.complete:
        console.print("not complete: the same command again runs what is missing")
        raise typer.Exit(1)


@app.command()
def submit(
    name: Name,
    address: Annotated[str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The dashboard: http://HEAD:8265.")],
    size: Size = None,
    set_: Set = None,
    storage: Annotated[str | None, typer.Option(help="Folder that all nodes share; else their SWEEP_STORAGE.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of the data sets there; else DIRDP_DATA there.")] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow as the head sees it; else its own setting.")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at once, at most.")] = None,
    wait_for_resources: Annotated[float, typer.Option(min=0, help="Seconds to wait for a fitting node.")] = 900.0,
    notify: Notify = None,
    stall_minutes: StallMinutes = 30.0,
    include: Annotated[list[Path] | None, typer.Option(help="A file or folder that the trials import.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Print what the job prints, until it ends.")] = False,
) -> None:
    """Run a sweep as a job of a Ray cluster, with the code that is here; submitting again runs what is missing."""
    from sweep.cluster.submit import follow, package, size_line
    from sweep.cluster.submit import submit as submit_job
    from sweep.planning import plan as plan_sweep

    plan_sweep(load(name, size=size, overrides=set_ or ()))  # faults of the search space are found here
    files = package(name, include=include or ())
    console.print(size_line(files), soft_wrap=True, markup=False)
    options = {"--size": size, "--data": data, "--tracking-uri": tracking_uri, "--max-concurrent": max_concurrent}
    words = [word for key, value in options.items() if value is not None for word in (key, str(value))]
    words += [word for override in set_ or () for word in ("--set", override)]
    words += ["--wait-for-resources", f"{wait_for_resources:g}"]
    words += ["--notify", notify, "--stall-minutes", f"{stall_minutes:g}"] if notify else []
    job = submit_job(name, address=address, options=words, storage=storage, files=files)
    console.print(f"job {job}: ray job logs --follow --address {address} {job}", soft_wrap=True, markup=False)
    if wait and follow(job, address=address, say=lambda lines: typer.echo(lines, nl=False)) != "SUCCEEDED":
        raise typer.Exit(1)


@app.command()
def audit(
    name: SweepName,
    size: Size = None,
    storage: Storage = STORAGE,
    data: Data = None,
    tracking_uri: Tracking = None,
    canaries: Annotated[int, typer.Option(min=1, help="Records that make way for canaries.")] = 500,
    canary: Annotated[str, typer.Option(help="noise, mislabelled or unique_coordinate.")] = "noise",
    seeds: Annotated[int, typer.Option(min=1, help="Audited trainings of each.")] = 1,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Trials at once, at most.")] = None,
    address: Annotated[str | None, typer.Option(help="A running Ray cluster: auto, or host:port.")] = None,
    local: Annotated[bool, typer.Option("--local", help="One trial after another, in this process.")] = False,
) -> None:
    """Measure what the winner of a sweep really tells, beside no mechanism and DP-SGD, as a sweep NAME-audit-CANARY."""
    from sweep.auditing import audit_sweep
    from sweep.planning import plan as plan_sweep
    from sweep.reporting import audit as report
    from sweep.reporting import trials_frame
    from sweep.reporting.terminal import rich_table
    from sweep.running import RunOptions
    from sweep.running import run as run_sweep
    from sweep.storage import open_storage

    laid_out = plan_sweep(audit_sweep(_results(storage, name, size), canaries=canaries, canary=canary, seeds=seeds))
    options = RunOptions(
        storage=open_storage(storage),
        data_root=data.absolute() if data else None,
        tracking_uri=tracking_uri,
        local=local,
        address=address,
        max_concurrent=max_concurrent,
    )
    outcome = run_sweep(laid_out, options, console=console)
    trials = trials_frame(outcome.results.records, rung=None)
    console.print(rich_table(report.view(trials, trials, title=laid_out.sweep.title, rung=None).tables["audit"]))
    _print_paths(outcome.files)
    if not outcome.complete:
        console.print("not complete: the same command again runs what is missing")
        raise typer.Exit(1)
    for line in report.controls(report.findings(trials)):
        console.print(line, soft_wrap=True, markup=False)


@app.command()
def status(name: SweepName, size: Size = None, storage: Storage = STORAGE) -> None:
    """Show how the trials of a sweep stand, and its best points."""
    _show(_results(storage, name, size), paths=[])


@app.command()
def report(name: SweepName, size: Size = None, storage: Storage = STORAGE, tracking_uri: Tracking = None) -> None:
    """Write the tables and figures of a sweep anew, here and to MLflow; table6 and table7 need no run before."""
    from sweep.planning import plan as plan_sweep
    from sweep.storage import open_storage
    from sweep.tracking import attach, default_uri

    place = open_storage(storage)

    if sweep := _calibration(place, _full_name(name, size)):
        _compute(plan_sweep(sweep), place)
        return
    results = _results(storage, name, size)
    paths = results.write_report()
    _show(results, paths=paths)
    attach([results.write_spec(), *paths], uri=tracking_uri or default_uri(place.local), name=results.sweep.name)


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
    from sweep.storage import open_storage

    statement = privacy_statement(name, storage=open_storage(storage), size=size, overrides=set_ or (), trial=trial)
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
    from sweep.storage import open_storage
    from sweep.ui import serve

    serve(open_storage(storage).local, port=port, tracking_uri=tracking_uri)


@app.command()
def calibrate(
    epsilon: Annotated[list[float], typer.Option(help="Budget, nominal ε (Theorem 10) of dirichlet; inf for none.")],
    sampling_rate: Annotated[list[str], typer.Option(help="Poisson rate q, such as 0.005 or 250/60000.")],
    steps: Annotated[list[int], typer.Option(help="Number of steps T.")],
    delta: Annotated[list[float], typer.Option(help="δ.")] = [1e-5],  # noqa: B006
    alpha: Annotated[list[float], typer.Option(help="Offset α.")] = [3.0],  # noqa: B006
    method: Annotated[list[str], typer.Option(help="dirichlet, or one of its rivals, such as dpsgd.")] = ["dirichlet"],  # noqa: B006
    bound: Annotated[list[str], typer.Option(help="Bound of one draw: lemma9, or exact (tighter).")] = ["lemma9"],  # noqa: B006
    classes: Annotated[int | None, typer.Option(min=2, help="Number of classes d, for E[L] and Var[L].")] = None,
    s_y: Annotated[float, typer.Option(min=0, max=1, help="Softmax output of the true class, for κ and L.")] = 0.9,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print r* or σ, achieved ε, order, κ and floor; several values of an option make a table."""
    from sweep.plan_table import calibration_row, calibration_table
    from sweep.spec import number

    rows = [
        calibration_row(
            epsilon=e,
            delta=d,
            alpha=a,
            sampling_rate=number(q),
            steps=t,
            method=m,
            bound=b,
            classes=classes,
            s_y=s_y,
        )
        for m, e, d, a, q, t, b in itertools.product(method, epsilon, delta, alpha, sampling_rate, steps, bound)
    ]
    if json_:
        # JSON has no infinity; null would read as "unknown".
        typer.echo(json.dumps([{key: str(v) if v == math.inf else v for key, v in row.items()} for row in rows]))
    else:
        console.print(calibration_table(rows))
    if any(row["achieved"] is None for row in rows):
        Console(stderr=True).print("none: ε is below the floor, the least usable budget at that α, q, T and δ")
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


@cluster_app.command("check")
def cluster_check(
    file: Annotated[Path, typer.Argument(help="The cluster's file.")] = Path("cluster.yaml"),
    space: Annotated[str | None, typer.Option(help="A search space whose trials the cluster shall run.")] = None,
    size: Size = None,
    set_: Set = None,
    file_only: Annotated[
        bool, typer.Option("--file-only", help="Do not look for what `ray up` needs on this machine, as in CI.")
    ] = False,
) -> None:
    """Check a file for `ray up` before it costs anything: offline, without credentials, one line a fault."""
    from sweep.cluster.check import TOOLS, check, missing_tools

    faults = check(file, sweep=load(space, size=size, overrides=set_ or ()) if space else None)
    for fault in faults:
        typer.echo(f"{file}: {fault}")
    if not faults:
        typer.echo(f"{file}: no fault found")
    missing = [] if file_only else missing_tools()
    for tool in missing:
        typer.echo(f"{tool} not found on this machine, and `ray up` calls it: install the package {TOOLS[tool]}")
    if faults or missing:
        raise typer.Exit(2)


def _results(storage: str, name: str, size: str | None) -> Results:
    from sweep.results import Results
    from sweep.storage import open_storage

    return Results.read(open_storage(storage), _full_name(name, size))


def _full_name(name: str, size: str | None) -> str:
    return f"{name}-{size}" if size else name


def _calibration(place: Place, name: str) -> Sweep | None:
    """The sweep of a name if it trains nothing: as it was last run here, or else as it ships."""
    from sweep.results import Results

    try:
        sweep = Results.read_sweep(place, name)
    except SpecError:
        if name not in shipped():
            raise
        sweep = load(name)
    return None if sweep.training else sweep


def _compute(laid_out: Plan, place: Place) -> None:
    """Write and show the tables of a sweep that trains nothing."""
    from sweep.reporting import write_computed
    from sweep.reporting.terminal import rich_table
    from sweep.results import Results

    sweep = laid_out.sweep
    of_sweep = place.below(sweep.name)
    artifacts, paths = write_computed(
        of_sweep.local,
        item=str(sweep.reproduces),
        title=sweep.title,
        plans=[point.trials[0].plan.model_dump() for point in laid_out.points],
        r_stars=[point.method.calibrated.get("r") if point.method else None for point in laid_out.points],
    )
    Results.save_sweep(of_sweep, sweep)
    for table in artifacts.tables.values():
        console.print(rich_table(table))
    _print_paths(paths)


def _show(results: Results, *, paths: list[Path]) -> None:
    from sweep.plan_table import sweep_lines
    from sweep.planning import plan as plan_sweep
    from sweep.reporting import no_figure, points_frame, trials_frame
    from sweep.reporting.terminal import summary_table

    trials = trials_frame(results.records, rung=results.rung)
    console.print(summary_table(trials, points_frame(trials, seeds=results.sweep.seeds)))
    for line in sweep_lines(plan_sweep(results.sweep), results.ledger, removed=results.removed):
        console.print(line, soft_wrap=True, markup=False)
    for record in results.records:
        if record.message:
            console.print(f"{record.end_reason} {record.trial_id}: {record.message}", soft_wrap=True, markup=False)
    _print_paths(paths)
    if paths and (reason := no_figure(results.sweep.reproduces, paths)):
        console.print(reason)


def _print_paths(paths: list[Path]) -> None:
    for path in paths:
        console.print(str(path), soft_wrap=True, markup=False)
