"""The command line. Heavy imports wait for the command that needs them."""

import os
import shlex
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim import __version__
from fedsim.cli_data import data_app
from fedsim.cli_evaluate import evaluate_app
from fedsim.errors import FedsimError, unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from fedsim.audit.findings import Finding
    from fedsim.reporter import Failure

app = typer.Typer(
    help="Federated learning on images that belong to users.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(evaluate_app, name="evaluate")
File = Annotated[Path, typer.Argument(help="A YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="dotted.key=value, wins over the file.")
]

audit_app = typer.Typer(help="Check a mechanism or a strategy by experiment.", no_args_is_help=True)
app.add_typer(audit_app, name="audit")


def main() -> None:
    """Run the command line; a fault that the user can mend gives its sentence and exit code."""
    # Imports take seconds, and one that is broken off halfway ends in pages of traceback.
    signal.signal(signal.SIGINT, _stop_at_once)
    try:
        app()
    except Exception as error:
        told = error if isinstance(error, FedsimError) else unwritable(error, "the disk")
        if told is not None:
            print(f"fedsim: {told}", file=sys.stderr)
            sys.exit(told.exit_code)
        traceback.print_exc()
        print("fedsim: this is a bug, please report it with the lines above", file=sys.stderr)
        sys.exit(1)


def _stop_at_once(signum: int, frame: FrameType | None) -> None:
    print("fedsim: stopped", file=sys.stderr)
    os._exit(130)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def run(
    file: File,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with runs that failed, too.")
    ] = False,
) -> None:
    """Train every run that FILE describes, score it each round, and compare them on test.

    Run it again to go on: finished runs are skipped, broken-off ones go on from their checkpoints.

    Example: fedsim run experiments/quickstart.yaml federated.num_rounds=10 --out trial
    """
    from rich.console import Console

    from fedsim.config_file import load_runs

    runs = load_runs(file, overrides or [])

    from fedsim.display import result_tables
    from fedsim.experiment import processes_for, run_jobs
    from fedsim.jobs import jobs_of
    from fedsim.progress import shown_progress
    from fedsim.reporter import Failure

    console = Console()
    jobs = jobs_of(runs)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with shown_progress(console, processes_for(jobs)[0]) as reporter:
            command = shlex.join(["fedsim", *sys.argv[1:]])
            outcomes = run_jobs(jobs, out, reporter, command=command, repeat_failed=resume)
    except KeyboardInterrupt:  # here, since typer would end without a word
        print("fedsim: stopped; run it again to go on from the last checkpoints", file=sys.stderr)
        raise typer.Exit(130) from None
    finished = {k: v for k, v in outcomes.items() if not isinstance(v, Failure)}
    if finished:
        folder = out / next(iter(runs.values())).name
        wide = _for_tables(console)
        for table in result_tables(list(finished.values()), [folder / k for k in finished]):
            wide.print()
            wide.print(table)
        wide.print(f"Records: {folder}; see fedsim report {folder}", markup=False, highlight=False)
    _exit_for({k: v for k, v in outcomes.items() if isinstance(v, Failure)})


@app.command()
def plan(
    file: File,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one entry a run.")] = False,
    time: Annotated[
        bool, typer.Option("--time", help="Time a few steps here: what all runs will take.")
    ] = False,
) -> None:
    """Tell what the runs of FILE will spend and how large they are, without training.

    Example: fedsim plan experiments/quickstart.yaml federated.num_rounds=500 --time
    """
    import json
    import math

    from rich.console import Console

    from fedsim.config_file import load_runs

    runs = load_runs(file, overrides or [])

    from fedsim.display import plan_table
    from fedsim.plan import plan_runs

    with Console(stderr=True).status("") as status:
        entries = plan_runs(runs, lambda run_id: status.update(f"calibrating {run_id}"))
    wide = _for_tables(Console())
    if not as_json:
        wide.print(plan_table(entries))
        for text in dict.fromkeys(text for entry in entries for text in entry["assumptions"]):
            wide.print(f"- {text}", markup=False, highlight=False)
    if time:
        from fedsim.estimate import estimate_costs
        from fedsim.experiment import processes_for
        from fedsim.jobs import jobs_of
        from fedsim.progress import costs_in_words

        jobs = jobs_of(runs)
        with Console(stderr=True).status("timing a few steps"):
            costs = estimate_costs(jobs)
        if not as_json:
            wide.print(costs_in_words(costs, 0, *processes_for(jobs)), highlight=False)
        for entry in entries:
            cost = costs[entry["run_id"]]
            seconds = None if math.isnan(cost.seconds) else cost.seconds
            entry |= {"core_seconds": seconds, "disk_mb": cost.disk_mb}
            if seconds is None:
                entry["core_seconds_reason"] = "its steps could not be timed here"
    if as_json:
        print(json.dumps(entries, indent=1))


@app.command()
def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs; runs/ by default.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep runs with column=value, a setting's dotted key or a column's name."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every column as CSV.")] = False,
) -> None:
    """List recorded runs, the best first.

    Example: fedsim runs runs --where status=finished --where federated.cohort_size=20
    """
    from rich.console import Console

    from fedsim.display import runs_table
    from fedsim.loading import kept, load_runs

    frame = kept(load_runs(*(folders or [Path("runs")])), where or [])
    if as_csv:
        print(frame.to_csv(index=False), end="")
    else:
        _for_tables(Console()).print(runs_table(frame.to_dict("records")))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; report/ in the first one by default.")
    ] = None,
) -> None:
    """Compare finished runs: one page without network, its figures, and the numbers as CSV.

    Example: fedsim report runs/dp_noise_levels
    """
    from rich.console import Console

    from fedsim.report.answer import plain_answer
    from fedsim.report.gather import gather
    from fedsim.report.report import write_report

    destination = out or folders[0] / "report"
    with Console(stderr=True).status("comparing runs"):
        gathered = gather(folders)
        heading = ", ".join(dict.fromkeys(folder.resolve().name for folder in folders))
        page = write_report(gathered, destination, heading=heading)
    console = _for_tables(Console())
    for group in gathered.groups:
        for line in plain_answer(group):
            console.print(line, "\n", markup=False, highlight=False)
    for skipped in gathered.skipped:
        console.print(f"left out: {skipped.folder}, {skipped.reason}", markup=False)
    print(f"Page, figures and tables: {page}")


@app.command()
def strategies(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names, package.module:Class or ./file.py:Class; all by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one entry each.")] = False,
) -> None:
    """List the strategies that are installed: parameters, what they take, where they come from.

    Example: fedsim strategies fedavg ./mine.py:Mine
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from fedsim.strategy_list import list_strategies, strategies_table

    found = list_strategies(names)
    if as_json:
        print(json.dumps([asdict(listed) for listed in found], indent=1, default=str))
    else:
        _for_tables(Console()).print(strategies_table(found))


@app.command()
def schema() -> None:
    """Print the JSON schema of a YAML file, for editors.

    Example: fedsim schema > fedsim.schema.json
    """
    import json

    from fedsim.config_file import json_schema

    print(json.dumps(json_schema(), indent=1))


@audit_app.command()
def mechanism(
    file: File,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: findings by run.")] = False,
) -> None:
    """Measure what FILE's runs under central DP claim: noise, clipping, cohorts, epsilon.

    Nothing is trained. Exits with 4 if a check fails.

    Example: fedsim audit mechanism experiments/quickstart.yaml
    """
    from rich.console import Console

    from fedsim.config_file import load_runs

    runs = load_runs(file, overrides or [])

    from fedsim.audit.build import audit_runs, require_passed

    with Console(stderr=True).status("") as status:
        audited = audit_runs(runs, lambda run_id: status.update(f"auditing {run_id}"))
    _show_findings(audited, as_json)
    require_passed([finding for findings in audited.values() for finding in findings])


@audit_app.command()
def strategy(
    name: Annotated[str, typer.Argument(help="A name, package.module:Class or ./file.py:Class.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(help="parameter=value of the strategy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: its findings.")] = False,
) -> None:
    """Try a strategy on made-up replies, and under central DP where it takes it.

    Exits with 4 if a check fails.

    Example: fedsim audit strategy fedavg weighting=uniform
    """
    from fedsim.audit.build import audit_strategy, parameters_of, require_passed

    findings = audit_strategy(name, parameters_of(parameters or []))
    _show_findings({name: findings}, as_json)
    require_passed(findings)


def _exit_for(failures: "dict[str, Failure]") -> None:
    """Tell what failed and end with its exit code, the first one's if there are several."""
    for failure in failures.values():
        print(f"{failure.traceback}fedsim: {failure.message}", file=sys.stderr)
        if failure.exit_code == 1:
            print("fedsim: this is a bug, please report it with the lines above", file=sys.stderr)
    for failure in failures.values():
        raise typer.Exit(failure.exit_code)


def _for_tables(console: "Console") -> "Console":
    """Return the terminal, or a console whose width does not depend on where the output goes."""
    from rich.console import Console

    return console if console.is_terminal else Console(width=160)


def _show_findings(audited: "dict[str, list[Finding]]", as_json: bool) -> None:
    """Print a table for each run or strategy, or JSON: lists of findings under their names."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from fedsim.audit.table import findings_table

    if as_json:
        entries = {name: [asdict(row) for row in rows] for name, rows in audited.items()}
        print(json.dumps(entries, indent=1))
        return
    wide = _for_tables(Console())
    for name, findings in audited.items():
        if findings:
            wide.print(findings_table(name, findings))
        else:
            text = f"{name}: no privacy.central, so there is nothing to audit"
            wide.print(text, markup=False, highlight=False)


if __name__ == "__main__":
    main()
