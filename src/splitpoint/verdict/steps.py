"""What takes the time of the steps that a deployment ran: kernels by kind, messages, the host.

It is the step as the run had it on average; the simulated steps differ from it in their batches.
"""

from collections.abc import Sequence

from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.timing.bake import step_parts
from splitpoint.timing.operators import Batch
from splitpoint.verdict.answer import StepPart, StepTime
from splitpoint.verdict.assumptions import Step


def step_times(named: Sequence[tuple[str, Step]], model: Model, gpu: Gpu) -> tuple[StepTime, ...]:
    """Each of these steps in seconds by what takes them, under the name of its deployment."""
    return tuple(
        StepTime(
            name=step.name,
            deployment=name,
            words=_words(step.batch),
            parts=_parts(step, model, gpu),
        )
        for name, step in named
    )


def _parts(step: Step, model: Model, gpu: Gpu) -> tuple[StepPart, ...]:
    ready = step.instance
    taken = step_parts(model, gpu, ready.topology, ready.engine, step.batch)
    longest = sorted(taken.items(), key=lambda item: -item[1])
    return tuple(StepPart(name=name, seconds=seconds) for name, seconds in longest if seconds > 0)


def _words(batch: Batch) -> str:
    sequences, new = float(batch.decode.sum()), float(batch.prefill.sum())
    if new:
        attended = float(batch.pairs.sum()) / new
        return f"{new:,.0f} new tokens, each attending {attended:,.0f} on average"
    return f"{sequences:,.1f} sequences of {float(batch.context.sum()) / sequences:,.0f} tokens"
