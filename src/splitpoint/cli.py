"""The command line: options in, one record out as text or as one JSON object. No logic.

`--json` puts one object on stdout and nothing else; progress and notes go to stderr. Bad input
ends with one readable line and exit code 2, a failure outside (disk, network, engine) with 1.
Every room is imported inside the command that needs it, so that `--help` answers at once.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitpoint.errors import OutsideError, PlanError
from splitpoint.process import settle

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console

# click's own, wherever typer keeps it
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

INTERRUPTED = 130
STOPPED = "interrupted; nothing was written"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value of the file.")
]


Curve = Annotated[
    Path | None, typer.Option(help="Step times that `splitpoint fit` corrected by measurement.")
]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"splitpoint {version('splitpoint')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
]


@app.callback()
def _about(version: Version = False) -> None:
    """Should prefill and decode run on different GPUs? How many, in which topology, and what breaks
    first?"""


def main() -> None:
    """Entry point of the `splitpoint` command."""
    settle()
    # A batch system stops a job by SIGTERM: what is half made goes as it does at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()
    except PlanError as error:
        _fail(str(error), 2)
    except OutsideError as error:
        _fail(str(error), 1)
    except MemoryError as error:
        asked = str(error).partition(" for an array")[0]
        _fail(f"not enough memory: {asked}" if asked else "not enough memory", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail(STOPPED, INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our pipe has left; there is nobody to tell
        sys.exit(1)
    except OSError as error:  # of what is printed: no room on the disk, a terminal that is gone
        with suppress(OSError):
            sys.stdout.close()
        _fail(f"standard output: cannot be written: {error.strerror or error}", 1)
    except UsageError as error:
        _fail(getattr(error, "format_message", error.__str__)(), 2)
    else:
        if code == INTERRUPTED:  # typer turns Ctrl-C into this code without a word
            _fail(STOPPED, code)
        sys.exit(code)


def _fail(line: str, code: int) -> None:
    print("splitpoint: " + line, file=sys.stderr)
    sys.exit(code)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def _emit(record: "msgspec.Struct", as_json: bool, render: Callable[["Console"], None]) -> None:
    if as_json:
        from splitpoint.inputs.files import to_json

        sys.stdout.write(to_json(record).decode() + "\n")
    else:
        render(_console())


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, nothing in a pipe: `report(what, share done)`."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield lambda _what, _share: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _with_curve(sets: list[str] | None, curve: Path | None) -> list[str]:
    """The overrides with a curve file named from here, not from the plan's folder."""
    import json

    named = [] if curve is None else [f"engine.curve={json.dumps(str(curve.absolute()))}"]
    return [*(sets or []), *named]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@app.command()
def price(
    model: Annotated[str, typer.Argument(help="Catalogue name, config.json, folder or hub id.")],
    gpu: Annotated[str | None, typer.Option(help="GPU name, e.g. H200.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel degree.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Attention data parallel degree.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallel degree: 1 or tp x dp.")] = 1,
    dcp: Annotated[int, typer.Option(min=1, help="Decode context parallel degree.")] = 1,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    engine_version: Annotated[str | None, typer.Option(help="The engine's version.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto, bf16, fp8, int8, nvfp4.")] = "auto",
    state_dtype: Annotated[str, typer.Option(help="Dtype of linear states.")] = "auto",
    drafts: Annotated[int, typer.Option(min=0, help="Speculative tokens per step.")] = 0,
    draft_method: Annotated[
        str | None, typer.Option(help="mtp, eagle3, ngram, draft_model; else what the model has.")
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="EAGLE-3 head or smaller model: name or config.json.")
    ] = None,
    weights_index: Annotated[
        Path | None, typer.Option(help="model.safetensors.index.json: weights as published.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of one request.")] = None,
    utilization: Annotated[float | None, typer.Option(help="gpu_memory_utilization.")] = None,
    batched_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget.")] = None,
    max_seqs: Annotated[int | None, typer.Option(min=1, help="Running requests at most.")] = None,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Prefix caching.")
    ] = True,
    block_size: Annotated[int | None, typer.Option(min=1, help="Configured block size.")] = None,
    kv_bytes_available: Annotated[
        str | None, typer.Option(help='KV pool of one rank, e.g. "26.7 GiB": skips the ladder.')
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help='Layouts to compare, e.g. "tp8 tp4dp4 dp8ep8".')
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RUNG=GiB", help="Replace one rung of the ladder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What one request costs and what one GPU holds."""
    from splitpoint.pricing import price as pricing
    from splitpoint.report import terminal

    asked = pricing.Question.of(
        model=model,
        gpu=gpu,
        tp=tp,
        dp=dp,
        pp=pp,
        ep=ep,
        dcp=dcp,
        engine=engine,
        engine_version=engine_version,
        kv_dtype=kv_dtype,
        state_dtype=state_dtype,
        drafts=drafts,
        context=context,
        utilization=utilization,
        batched_tokens=batched_tokens,
        max_seqs=max_seqs,
        prefix_caching=prefix_caching,
        block_size=block_size,
        kv_bytes_available=kv_bytes_available,
        rungs=sets or [],
        draft_method=draft_method,
        draft_model=draft_model,
        weights_index=weights_index,
    )
    if compare is None:
        priced = asked.price()
        _emit(priced, as_json, lambda console: terminal.render_price(priced, console))
    else:
        table = asked.compare(compare.replace(",", " ").split())
        _emit(table, as_json, lambda console: terminal.render_comparison(table, console))


@app.command()
def trace(
    path: Annotated[Path | None, typer.Argument(help="A trace file; .gz too.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="agentic-coding, chat or long-context instead of a file.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Format of the file; else recognised.")] = None,
    sample: Annotated[
        float | None, typer.Option(help="Keep this share of the sessions, or this many if > 1.")
    ] = None,
    scale: Annotated[float | None, typer.Option(help="Multiply the request rate.")] = None,
    cut: Annotated[str | None, typer.Option(metavar="A:B", help="Seconds from A to B.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Only the first requests.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of presets and samples.")] = 0,
    to: Annotated[Path | None, typer.Option(help="Write the trace to this file.")] = None,
    to_format: Annotated[
        str, typer.Option(help="mooncake, azure, burstgpt or vidur.")
    ] = "mooncake",
    as_json: Json = False,
) -> None:
    """Describe a request trace; sample, scale, cut and convert it."""
    from splitpoint.inputs import trace as columns
    from splitpoint.inputs.traces import changes, export, read, synth
    from splitpoint.report import terminal

    if (path is None) == (preset is None):
        raise PlanError("trace", "needs a file or --preset", "one of the two")
    source = synth.preset(preset, seed=seed) if preset else read(path or Path(), format)
    changed = changes.apply(source, sample=sample, scale=scale, cut=cut, first=first, seed=seed)
    if to is not None:
        for lost in export.write(changed, to, to_format):
            print(f"{to}: {lost}", file=sys.stderr)
    summary = columns.describe(changed)
    _emit(summary, as_json, lambda console: terminal.render_trace(summary, console))


@app.command()
def plan(
    file: Annotated[Path | None, typer.Argument(help="The plan: TOML, YAML or JSON.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("splitpoint-plan"),
    curve: Curve = None,
    sets: Sets = None,
    schema: Annotated[bool, typer.Option("--schema", help="JSON schema of plan.json.")] = False,
    as_json: Json = False,
) -> None:
    """Split or mixed, how many on each side, in which topology, and what breaks first."""
    from splitpoint.inputs.files import to_json

    if schema:
        from splitpoint.verdict.answer import schema as answer_schema

        sys.stdout.write(to_json(answer_schema()).decode() + "\n")
        return
    if file is None:
        raise PlanError("plan", "needs a plan file", "see examples/")
    from splitpoint.inputs.plan import read_plan
    from splitpoint.recipes import bundle
    from splitpoint.report import folder, terminal
    from splitpoint.verdict.decide import decided

    asked = read_plan(file, _with_curve(sets, curve))
    with folder.staged(out) as staging, _progress() as progress:
        answered, runs = decided(asked, progress=progress)
        recipes = bundle.write(answered, staging / "recipes")
        answered = folder.fill(staging, answered, runs, recipes)
    _emit(answered, as_json, lambda console: terminal.render(answered, console))
    print(f"written to {out}: plan.json, report.html, runs/, recipes/", file=sys.stderr)


@app.command()
def phases(
    file: Annotated[Path, typer.Argument(help="A plan file: its model, GPU, engine and lengths.")],
    concurrency: Annotated[
        str | None,
        typer.Option(help="Users of the closed loops, e.g. 1,8,64,512; else the plan's list."),
    ] = None,
    topologies: Annotated[
        str | None, typer.Option(help='Layouts, e.g. "tp8 tp4dp4ep"; else all that are legal.')
    ] = None,
    drafts: Annotated[
        str | None, typer.Option(help="Speculative tokens, e.g. 0,3; else the plan's.")
    ] = None,
    context: Annotated[
        int,
        typer.Option(
            min=1,
            max=2**24,
            help="Input tokens whose KV is there when decode starts; 1 as published studies do.",
        ),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write the page, figures and numbers to this folder.")
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Prefill alone and decode alone, by topology, concurrency and drafts."""
    from splitpoint.inputs.engine import MAX_DRAFTS
    from splitpoint.inputs.plan import read_plan
    from splitpoint.pricing.price import parse_layout
    from splitpoint.report.phases import render_phases, write_phases
    from splitpoint.search import isolated

    asked = read_plan(file, sets or [])
    most = isolated.MAX_CONCURRENCY
    users = concurrency and isolated.parse_counts(concurrency, "--concurrency", least=1, most=most)
    tokens = drafts and isolated.parse_counts(drafts, "--drafts", least=0, most=MAX_DRAFTS)
    with _progress() as progress:
        found = isolated.isolated_phases(
            asked,
            topologies=[parse_layout(t) for t in (topologies or "").replace(",", " ").split()],
            concurrencies=users or (),
            drafts=tokens or None,
            context=context,
            tell=progress,
        )
    written = write_phases(found, out) if out is not None else None
    _emit(found, as_json, lambda console: render_phases(found, console))
    if written is not None:
        print("written: " + ", ".join(written.files), file=sys.stderr)


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(help="A plan or a deployment file.")],
    trace: Annotated[
        Path | None, typer.Option(help="Trace file; else the file's workload.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random choice.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the run here (.npz).")] = None,
    curve: Curve = None,
    warm_up: Annotated[float, typer.Option(help="First share of the requests without rate.")] = 1
    / 8,
    cool_down: Annotated[float, typer.Option(help="Last share of them without rate.")] = 1 / 8,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Replay a trace through one deployment."""
    from msgspec.structs import replace

    from splitpoint import run as runs
    from splitpoint.inputs.plan import read_plan_or_deployment
    from splitpoint.inputs.traces import read
    from splitpoint.metrics import Cuts
    from splitpoint.report import terminal
    from splitpoint.verdict.replay import replaced_load, replay, requests_of

    if out is not None:
        runs.check_name(out)
    asked = read_plan_or_deployment(file, _with_curve(sets, curve))
    requests = read(trace) if trace else requests_of(asked, where=str(file))
    cuts = Cuts(warm_up=warm_up, cool_down=cool_down)
    summary, run = replay(asked, requests, seed=seed, cuts=cuts, where=str(file))
    if out is not None:
        runs.write(run, out)
    if trace:
        summary = replace(summary, notes=(*summary.notes, *replaced_load(asked)))
    _emit(summary, as_json, lambda console: terminal.render_run(summary, console))


@app.command()
def recipe(
    folder: Annotated[Path, typer.Argument(help="A plan's folder, or its plan.json.")],
    point: Annotated[str | None, typer.Option(help="A point's name; else the chosen one.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("recipe"),
    as_json: Json = False,
) -> None:
    """Write the launch scripts of a plan's deployment."""
    from splitpoint.recipes import bundle, serving
    from splitpoint.report import folder as folders

    made = serving.of_point(folders.read_answer(folder), point)
    written = folders.Written(
        folder=str(out), files=tuple(str(path) for path in bundle.write(made, out))
    )
    _emit(written, as_json, lambda console: console.print("\n".join(written.files), markup=False))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A plan's folder.")],
    as_json: Json = False,
) -> None:
    """Show a plan again, and write its report.html anew."""
    from splitpoint.report import folder as folders
    from splitpoint.report import terminal

    answered = folders.read_answer(folder)
    page = folders.rewrite_page(folder, answered)
    _emit(answered, as_json, lambda console: terminal.render(answered, console))
    print(f"written: {page}", file=sys.stderr)


@app.command()
def audit(
    logs: Annotated[list[Path], typer.Argument(help="Start-up logs of vLLM or SGLang; .gz too.")],
    model: Annotated[
        str | None, typer.Option(help="The model's configuration, if the log's name is no help.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU name; else recognised by its memory.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set what engines printed at start-up beside what is predicted."""
    from splitpoint.pricing.audit import audit_files
    from splitpoint.report.audits import render_audit

    audited = audit_files(logs, model, gpu)
    _emit(audited, as_json, lambda console: render_audit(audited, console))


@app.command()
def up(
    folder: Annotated[Path, typer.Argument(help="A recipe, or the folder of a plan.")],
    flags: Annotated[
        list[str] | None, typer.Argument(help="After --: more flags of every instance.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds to start in; else START_TIMEOUT.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the tokens of all instances.")
    ] = True,
    node: Annotated[int, typer.Option(min=0, help="Which node of the recipe this is.")] = 0,
    down: Annotated[bool, typer.Option("--down", help="Stop what runs of it here.")] = False,
    as_json: Json = False,
) -> None:
    """Start a recipe on a real engine, or stop it."""
    from splitpoint.live import launch
    from splitpoint.pricing.audit import started_figures
    from splitpoint.report import launches

    recipe = launch.recipe_folder(folder)
    if down:
        stopped = launch.stop(recipe)
        _emit(stopped, as_json, lambda console: launches.render_down(stopped.stopped, console))
        return
    launched = launch.start(recipe, flags or [], node=node, timeout_s=timeout, tell=_tell)
    # Node 0 has the router; the others' part is checked through it.
    tokens = launch.check(recipe, _tell) if check and node == 0 else None
    answered = launches.Up(
        folder=str(folder),
        endpoint=launched.endpoint,
        instances=tuple(
            launches.Started(
                name=one.name,
                url=one.url,
                after_s=one.after_s,
                log=one.log,
                figures=started_figures(Path(one.log)),
            )
            for one in launched.instances
        ),
        tokens=None if tokens is None else tokens.found,
    )
    _emit(answered, as_json, lambda console: launches.render_up(answered, console))


@app.command()
def measure(
    folder: Annotated[Path, typer.Argument(help="A recipe that runs, or the folder of a plan.")],
    out: Annotated[Path, typer.Option(help="Write the run here (.npz).")],
    requests: Annotated[int | None, typer.Option(min=1, help="How many to send.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Users of a closed loop.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Trace file; else the recipe's load.")] = None,
    url: Annotated[str | None, typer.Option(help="Ask here, not where the recipe answers.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of random prompts; else a new one each time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a running recipe under the load of its prediction, and compare."""
    import secrets

    from splitpoint import run as runs
    from splitpoint.live import launch, load
    from splitpoint.measurement import of_run
    from splitpoint.report.checks import render_check
    from splitpoint.verdict.check import check as compared
    from splitpoint.verdict.replay import replay, requests_of

    runs.check_name(out)
    recipe = launch.recipe_folder(folder)
    asked = load.asked(
        recipe, trace=trace, requests=requests, concurrency=concurrency, rate=rate, url=url
    )
    sent = requests_of(asked, where=str(recipe))
    at = load.target(launch.settings(recipe), url, folder)
    _, foretold = replay(asked, sent)
    with _progress() as progress:
        # A seed of its own: a second measurement's prompts would be found in the prefix cache.
        drawn = secrets.randbelow(2**31) if seed is None else seed
        measured = load.measured(at, asked, sent, seed=drawn, name=out.name, progress=progress)
    runs.write(load.run_of(measured), out)
    predicted = of_run(foretold, name=foretold.name, source="simulated", gpus=foretold.gpus)
    found = compared(predicted, measured)
    _emit(found, as_json, lambda console: render_check(found, console))
    print(f"written: {out}", file=sys.stderr)


@app.command()
def fit(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Measured results of one deployment, best at several loads, or logs of its steps."
        ),
    ],
    deployment: Annotated[
        Path, typer.Option(help="The deployment file that says what was measured.")
    ],
    out: Annotated[Path, typer.Option(help="The curve file to write.")] = Path("curve.json"),
    rows: Annotated[
        str | None, typer.Option(help="Of a file of several results only these, e.g. 1,4,7.")
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Correct predicted step times by what was measured, for plan and simulate."""
    from splitpoint.inputs.plan import read_deployment
    from splitpoint.live.factors import fitted_factors, selected
    from splitpoint.live.steps import fitted_steps, selected_logs
    from splitpoint.report.fits import render_fit
    from splitpoint.search.bench import bench_of
    from splitpoint.timing import fitted

    asked = read_deployment(deployment, sets or [])
    logs = selected_logs(results, rows)
    measured = () if logs else selected(results, rows)
    bench = bench_of(asked, measured)
    sources = [fitted.source_of(path) for path in results]
    if logs:
        curve = fitted_steps(
            logs, bench.curve, bench.gap, conditions=bench.conditions, sources=sources
        )
    else:
        with _progress() as progress:
            curve = fitted_factors(
                measured,
                bench.replay,
                conditions=bench.conditions,
                sources=sources,
                front_s=bench.world.front_s,
                tell=progress,
            )
    curve = fitted.sealed(curve)
    fitted.write(curve, out)
    _emit(curve, as_json, lambda console: render_fit(curve, console))
    print(f"written: {out}", file=sys.stderr)


@app.command()
def check(
    predicted: Annotated[Path, typer.Argument(help="A Run (simulate --out), or a result.")],
    measured: Annotated[
        Path,
        typer.Argument(
            help="A Run, or a result of vllm bench, AIPerf, GuideLLM or InferenceX, or an engine's "
            "log of requests."
        ),
    ],
    predicted_row: Annotated[
        int | None, typer.Option(min=1, help="Which result of a PREDICTED file of several.")
    ] = None,
    row: Annotated[
        int | None, typer.Option(min=1, help="Which result of a MEASURED file of several.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set a prediction beside a measurement, metric by metric, against the noise of runs."""
    from splitpoint.live import imports
    from splitpoint.report.checks import render_check
    from splitpoint.verdict.check import check as compared

    found = compared(
        imports.pick(imports.read(predicted), predicted, predicted_row),
        imports.pick(imports.read(measured), measured, row),
    )
    _emit(found, as_json, lambda console: render_check(found, console))


if __name__ == "__main__":
    main()
