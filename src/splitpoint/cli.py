"""The command line: options in, one record out as text or as one JSON object. No logic.

`--json` puts one object on stdout and nothing else; progress and notes go to stderr. Bad input
ends with one readable line and exit code 2, a failure outside (disk, network, engine) with 1.
Every room is imported inside the command that needs it, so that `--help` answers at once.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitpoint.errors import OutsideError, PlanError

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console

UsageError = typer.BadParameter.__bases__[0]  # click's own, wherever typer keeps it

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Should prefill and decode run on different GPUs? How many, in which topology, "
    "and what breaks first?",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value of the file.")
]


def main() -> None:
    """Entry point of the `splitpoint` command."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except PlanError as error:
        _fail(str(error), 2)
    except OutsideError as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; nothing was written", 130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our pipe has left; there is nobody to tell
        sys.exit(1)
    except UsageError as error:
        _fail(error.format_message(), 2)  # type: ignore[attr-defined]


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


def _later(command: str) -> None:
    _fail(f"{command}: comes with a later release, which will start and measure real engines", 1)


@app.command()
def price(
    model: Annotated[str, typer.Argument(help="Catalogue name, config.json, folder or hub id.")],
    gpu: Annotated[str | None, typer.Option(help="GPU name, e.g. H200.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel degree.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Attention data parallel degree.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallel degree: 1 or tp x dp.")] = 1,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    engine_version: Annotated[str | None, typer.Option(help="The engine's version.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto, bf16, fp8, int8, nvfp4.")] = "auto",
    state_dtype: Annotated[str, typer.Option(help="Dtype of linear states.")] = "auto",
    drafts: Annotated[int, typer.Option(min=0, help="Speculative tokens per step.")] = 0,
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
    )
    if compare is None:
        priced = asked.price()
        _emit(priced, as_json, lambda console: terminal.render_price(priced, console))
    else:
        table = asked.compare(compare.replace(",", " ").split())
        _emit(table, as_json, lambda console: terminal.render_comparison(table, console))


if __name__ == "__main__":
    main()
