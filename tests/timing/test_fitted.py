"""Curve files: what they do to step times, and what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.fitted import (
    Conditions,
    FactorErrors,
    Factors,
    FittedCurve,
    Range,
    applied,
    instance_name,
    read,
    scaled,
    sealed,
    source_of,
    write,
)

CURVE = StepCurve(
    decode=np.array([0, 100, 200], np.int64),
    decode_context=np.array([0, 10, 11], np.int64),
    mixed=np.array([0, 50, 60, 70], np.int64),
    prefill_pair=8,
    origin="predicted",
)
FITTED = FittedCurve(
    version=1,
    origin="measured",
    conditions=Conditions(
        model="m", gpu="H20", engine="vllm", engine_version="0.32.0", instances=("TP2",)
    ),
    factors=Factors(decode=1.5, context=2.0, prefill=0.5, front_s=0.1),
    errors=FactorErrors(decode=0.1),
    batch=Range(low=1, high=20),
    tokens=Range(low=100, high=200),
    isl=Range(low=90, high=180),
    rms_before=0.3,
    rms=0.02,
    residuals=(),
    sources=(),
)


def test_each_part_of_a_step_takes_its_factor() -> None:
    found = scaled(CURVE, FITTED.factors, "measured")
    assert found.decode.tolist() == [0, 150, 300]
    assert found.decode_context.tolist() == [0, 20, 22]
    assert found.mixed.tolist() == [0, 25, 30, 35]
    assert found.prefill_pair == 4 and found.origin == "measured"
    assert scaled(CURVE, Factors(), CURVE.origin).decode.tolist() == CURVE.decode.tolist()


def test_a_file_comes_back_and_a_changed_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    write(FITTED, path)
    assert read(path) == sealed(FITTED)
    changed = json.loads(path.read_text())
    changed["factors"]["decode"] = 1.0
    path.write_text(json.dumps(changed))
    with pytest.raises(PlanError, match="hash: does not fit the content"):
        read(path)


def test_the_hash_is_of_the_content_alone() -> None:
    assert sealed(FITTED).hash == sealed(sealed(FITTED)).hash
    assert sealed(FITTED).hash != sealed(replace(FITTED, rms=0.03)).hash


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("version", 2, "version is 2"),
        ("rms", "low", "rms: found"),
        ("factors", {"decode": -1}, "decode"),
    ],
)
def test_a_broken_file_names_its_field(
    field: str, value: object, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "curve.json"
    write(FITTED, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(PlanError, match=told):
        read(path)


def test_factors_hold_for_the_model_gpu_and_engine_that_were_measured() -> None:
    found = applied(sealed(FITTED), CURVE, Engine(), model="m", gpu="H20", where="c.json")
    assert found.decode.tolist() == [0, 150, 300]
    assert found.origin.startswith("measured: curve ") and "predicted" in found.origin
    for model, gpu, engine in (
        ("n", "H20", Engine()),
        ("m", "H200", Engine()),
        ("m", "H20", Engine(name="sglang", version="0.5.0")),
    ):
        with pytest.raises(PlanError, match="was fitted on"):
            applied(FITTED, CURVE, engine, model=model, gpu=gpu, where="c.json")


def test_an_instance_has_its_drafts_in_its_name() -> None:
    assert instance_name(Topology(tp=2), Engine()) == "TP2"
    assert instance_name(Topology(tp=2), Engine(drafts=3)) == "TP2 drafts=3"


def test_a_source_is_known_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert source_of(tmp_path / "a").sha256.startswith("ba7816bf8f01cfea")
    assert source_of(tmp_path).sha256 == source_of(tmp_path / "a").sha256
