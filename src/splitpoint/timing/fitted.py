"""Step times corrected by measurement: a curve file, and what it makes of a predicted StepCurve.

A file holds four numbers fitted to measured results (how much longer the parts of a step take than
predicted, and a constant per request), where they were measured, how well they fit and up to which
batches and lengths. Its hash covers all of it, so a number changed by hand is noticed.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from splitpoint.errors import OutsideError, PlanError
from splitpoint.inputs import files
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.record import Record
from splitpoint.timing.curve import Picos, StepCurve

VERSION = 1
# A fit beyond this has explained something else than a step's speed (assumed).
MOST_FACTOR = 100.0
MOST_FRONT_S = 60.0

Factor = Annotated[float, Meta(ge=1 / MOST_FACTOR, le=MOST_FACTOR)]


class Factors(Record, frozen=True, kw_only=True):
    """How the measured parts of a step relate to the predicted ones: `decode` the constant part of
    a decode step, `context` its part per token of context, `prefill` everything of a step with
    prefill; and `front_s`, seconds of a request outside of steps (None: as predicted)."""

    decode: Factor = 1.0
    context: Factor = 1.0
    prefill: Factor = 1.0
    front_s: Annotated[float, Meta(ge=0, le=MOST_FRONT_S)] | None = None


class FactorErrors(Record, frozen=True, kw_only=True):
    """Standard errors, relative (of `front_s` in seconds); None where the results say nothing of
    a factor, so that it was left as predicted."""

    decode: float | None = None
    context: float | None = None
    prefill: float | None = None
    front_s: float | None = None


class Conditions(Record, frozen=True, kw_only=True):
    """What was measured: the model, the GPU, the engine, and the instances with their drafts."""

    model: str
    gpu: str
    engine: str
    engine_version: str
    instances: tuple[str, ...]


class Range(Record, frozen=True, kw_only=True):
    """The least and the most of something that was seen."""

    low: float
    high: float


class Residual(Record, frozen=True, kw_only=True):
    """One measured number, as predicted before the fit and after it."""

    load: str
    metric: str
    measured: float
    predicted: float
    fitted: float


class Source(Record, frozen=True, kw_only=True):
    """A file that was fitted to, and its SHA-256."""

    file: str
    sha256: str


class FittedCurve(Record, frozen=True, kw_only=True):
    """A curve file. `batch`: sequences that decoded together on a rank on average, `tokens`: input
    and output of a request, `isl`: its input (None where a log of steps does not tell it); the
    least and the most over the results. `rms`: root mean square of the residuals' logarithms,
    `rms_before` that of the prediction as it was."""

    version: int
    origin: Literal["measured"]
    conditions: Conditions
    factors: Factors
    errors: FactorErrors
    batch: Range
    tokens: Range
    isl: Range | None
    rms_before: float
    rms: float
    residuals: tuple[Residual, ...]
    sources: tuple[Source, ...]
    hash: str = ""

    @property
    def name(self) -> str:
        """The first digits of the hash, by which the curve is told from others."""
        return self.hash[:12]


def source_of(path: Path) -> Source:
    """A file (or a folder's files, in order of name) with its SHA-256."""
    digest = hashlib.sha256()
    try:
        for part in sorted(path.iterdir()) if path.is_dir() else [path]:
            with part.open("rb") as file:
                while chunk := file.read(files.CHUNK):
                    digest.update(chunk)
    except OSError as error:
        raise OutsideError(f"{path}: cannot be read: {error.strerror or error}") from None
    return Source(file=path.name, sha256=digest.hexdigest())


def sealed(curve: FittedCurve) -> FittedCurve:
    """The curve with the hash of its content."""
    return replace(curve, hash=_hash(curve))


def write(curve: FittedCurve, path: Path) -> None:
    """Write a curve file, whole or not at all."""
    files.write_atomic(path, files.to_json(sealed(curve)))


def read(path: Path) -> FittedCurve:
    """The curve of a file that `write` made and nobody changed since."""
    found = files.read(path, FittedCurve)
    if found.version != VERSION:
        raise PlanError(str(path), f"version is {found.version}", f"this reads version {VERSION}")
    if found.hash != _hash(found):
        raise PlanError(f"{path}: hash", "does not fit the content", "fit it again; was it edited?")
    return found


def applied(
    fitted: FittedCurve, predicted: StepCurve, engine: Engine, *, model: str, gpu: str, where: str
) -> StepCurve:
    """The predicted step times with the factors of a curve file, for the model, GPU and engine
    that it was measured on."""
    was = fitted.conditions
    for name, asked, measured in (
        ("model", model, was.model),
        ("gpu", gpu, was.gpu),
        ("engine.name", engine.name, was.engine),
    ):
        if asked != measured:
            raise PlanError(
                f"engine.curve {where}", f"was fitted on {name} {measured}, not {asked}"
            )
    return scaled(predicted, fitted.factors, f"measured: curve {fitted.name} on {predicted.origin}")


def scaled(curve: StepCurve, factors: Factors, origin: str) -> StepCurve:
    """The step times with each part multiplied by its factor."""
    return replace(
        curve,
        decode=_times(curve.decode, factors.decode),
        decode_context=_times(curve.decode_context, factors.context),
        mixed=_times(curve.mixed, factors.prefill),
        mixed_decode=None
        if curve.mixed_decode is None
        else _times(curve.mixed_decode, factors.decode),
        together=curve.together and curve.together.times(factors.prefill),
        prefill_pair=round(curve.prefill_pair * factors.prefill),
        prefill_prefix=round(curve.prefill_prefix * factors.prefill),
        origin=origin,
        later=tuple(scaled(stage, factors, origin) for stage in curve.later),
    )


def instance_name(topology: Topology, engine: Engine) -> str:
    """An instance as a curve file names it."""
    return f"{topology}" + (f" drafts={engine.drafts}" if engine.drafts else "")


def _times(table: Picos, factor: float) -> Picos:
    scaled_table: Picos = np.rint(table * factor).astype(np.int64)
    return scaled_table


def _hash(curve: FittedCurve) -> str:
    # Through JSON once, so that a number is written as it will be read back: 1 as 1.0.
    content = msgspec.json.encode(replace(curve, hash=""))
    settled = msgspec.json.encode(msgspec.json.decode(content, type=FittedCurve))
    return hashlib.sha256(settled).hexdigest()
