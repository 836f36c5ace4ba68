"""Fit AMD's products and experts to the tuned tables that AMD ships in AITER, and print the errors.

AITER (github.com/ROCm/aiter, MIT) keeps the time of the kernel that its tuner chose for each shape
beside the choice. Rows of MI300X (304 compute units) and of MI355X (256) are fitted together, as
shares of each one's own roofline; only coefficients are shipped. Rows are split as those of
fit_efficiency. Run: python -m benchmarks.fit_aiter AITER/aiter/configs [--write FOLDER]
"""

import argparse
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from benchmarks.fit_efficiency import fit, write_amd
from splitpoint.inputs import facts
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype
from splitpoint.timing.efficiency import Surface, efficiency, peak
from splitpoint.timing.kernel_tables import STORED, Samples, columns, part
from splitpoint.timing.operators import Operator, Stored, grouped, matmul, touched

# Compute units by which AITER names a GPU; MI308X (80) is not in facts/gpus.
UNITS = {304: "MI300X", 256: "MI355X"}
PRODUCTS: dict[Dtype, str] = {
    "fp8": "*a8w8_blockscale_tuned_gemm*.csv",
    "bf16": "*bf16_tuned_gemm*.csv",
}
# Results in fp32, a router's, come from other kernels where so few rows are split along the depth.
MANY_ROWS = 1024
# Weights of AITER's names, and of which dtypes here they speak: its fp4 is MX on both sides (a4w4),
# what a server makes of mxfp4 and of nvfp4 checkpoints alike.
WEIGHTS: dict[str, tuple[Dtype, ...]] = {
    "torch.float8": ("fp8",),
    "torch.float4_e2m1fn_x2": ("nvfp4", "mxfp4"),
}
# What a layer of experts launches besides the products that the tuner times. Published: sorting
# pairs by expert, 13.5 us for 1 to 256 tokens of 9 of 257 experts on MI350X under a graph
# (ROCm/FlyDSL pull request 540, CK and OPUS, 2026-05-18); quantising the inputs, about 4 us
# (sgl-project/sglang pull request 36559, 2026-08-26).
SORTING = 13.5e-6
QUANTISING = 4e-6
# The tuner times kernels alone. Assumed: seconds until the next one of a graph begins, which the
# tables of other GPUs contain; of experts the inputs' kernel and two stages.
GAP = 1e-6
EXPERTS = 3
# SGLang's block-scaled products on MI325X in its image of 0.5.9: rows, columns, depth and seconds
# (profile of DeepSeek-R1 at 64 users, SemiAnalysisAI/InferenceX issue 863, 2026-03-05). From sglang
# pull request 13617 (in 0.5.6) on they were AITER's Triton kernel, which had no configuration for
# these shapes on CDNA3 until the image of 0.5.10 (InferenceX pull request 811; aiter pull requests
# 1930 and 2024).
UNCONFIGURED = (
    (64, 2112, 7168, 123e-6),
    (64, 3072, 1536, 30e-6),
    (64, 7168, 2048, 34e-6),
    (64, 4608, 7168, 122e-6),
    (64, 7168, 2304, 39e-6),
)
UNCONFIGURED_IN = ((0, 5, 6), (0, 5, 10))
SHAPE = ["cu_num", "token", "model_dim", "inter_dim", "expert", "topk"]


class Timed(NamedTuple):
    """Rows of one kind and dtype, as fractions of the first GPU's roofline, and the architectures
    that they were timed on."""

    samples: Samples
    architectures: tuple[str, ...]

    def later(self, seconds: float) -> "Timed":
        """The same rows, all taking so much longer."""
        return Timed(
            self.samples._replace(seconds=self.samples.seconds + seconds), self.architectures
        )


def products(folder: Path) -> Iterator[Timed]:
    """Products in block-scaled fp8 and in bf16, of each shape the fastest row."""
    for dtype, files in PRODUCTS.items():
        written = ["outdtype"] if dtype == "bf16" else []
        rows = _rows(folder, files, ["cu_num", "M", "N", "K", *written, "us"])
        if written:
            rows = rows[(rows.outdtype == "torch.bfloat16") | (rows.M >= MANY_ROWS)]
        rows = rows.groupby(["cu_num", "M", "N", "K"], as_index=False).us.min()
        m, n, k = columns(rows, "M", "N", "K")
        operator = matmul("gemm", m, k, n, Stored(dtype=dtype, bytes=STORED[dtype]))
        yield _timed(rows, operator, ["N", "K"]).later(GAP)


def experts(folder: Path) -> Iterator[Timed]:
    """Fused experts by the dtype of their weights. The tuner's scores are random, so tokens choose
    evenly; a time that stands for several numbers of tokens was measured at the largest."""
    every = _rows(folder, "*fmoe*.csv", [*SHAPE, "q_dtype_w", "us"])
    layer = [name for name in SHAPE if name != "token"]
    for weights, dtypes in WEIGHTS.items():
        rows = every[every.q_dtype_w.str.startswith(weights)]
        rows = rows.groupby(SHAPE, as_index=False).us.min().sort_values(SHAPE)
        rows = rows.drop_duplicates([*layer, "us"], keep="last")
        new, hidden, inter, count, topk = columns(
            rows, "token", "model_dim", "inter_dim", "expert", "topk"
        )
        pairs = new * topk
        reached = np.array(
            [touched(c, int(k), np.asarray(t)) for c, k, t in zip(count, topk, new, strict=True)]
        )
        for dtype in dtypes:
            by = Stored(dtype=dtype, bytes=STORED[dtype])
            operator = grouped(new, pairs, pairs, reached, count, hidden, inter, 2, by)
            beside = SORTING + QUANTISING + EXPERTS * GAP
            yield _timed(rows, operator, layer).later(beside)


def _rows(folder: Path, files: str, names: list[str]) -> pd.DataFrame:
    """Rows of all files that have these columns, timed on a known GPU."""
    found = []
    for path in sorted(folder.rglob(files)):
        rows = pd.read_csv(path)
        if set(names) <= set(rows) and "untuned" not in path.name:
            # Older files name no architecture, and knew only these two.
            known = rows.gfx.isin(["gfx942", "gfx950"]) if "gfx" in rows else True
            found.append(rows[known & rows.cu_num.isin(list(UNITS)) & (rows.us > 0)][names])
    return pd.concat(found, ignore_index=True)


def _timed(rows: pd.DataFrame, operator: Operator, layer: list[str]) -> Timed:
    gpus = [facts.gpu(UNITS[units]) for units in rows.cu_num]
    base = _base(operator.dtype)
    flops = np.array([peak(base, operator.dtype) / peak(gpu, operator.dtype) for gpu in gpus])
    bandwidth = np.array([base.bandwidth / gpu.bandwidth for gpu in gpus])
    scaled = msgspec.structs.replace(
        operator,
        flops=operator.flops * flops,
        bytes=operator.bytes * bandwidth,
        buffers=operator.buffers * bandwidth,
    )
    names = [name for name in rows if name != "us"]
    cells = rows[names].itertuples(index=False)
    odd = np.array([zlib.crc32(repr(tuple(row)).encode()) % 2 == 1 for row in cells])
    layers = rows.groupby(sorted({"cu_num", *layer})).ngroup().to_numpy()
    shapes, seconds = rows[names].to_numpy(float), rows.us.to_numpy(float) * 1e-6
    every = Samples(scaled, seconds, odd, layers, shapes)
    # Brings every field to the length of the rows.
    whole = part(every, np.ones(len(rows), dtype=np.bool_))
    return Timed(whole, tuple(sorted({gpu.architecture for gpu in gpus})))


def _base(dtype: Dtype) -> Gpu:
    return facts.gpu("MI355X" if dtype in ("nvfp4", "mxfp4") else "MI300X")


def fitted(folder: Path) -> list[Surface]:
    """All surfaces, each printed as it is found."""
    result = []
    for samples, architectures in (*products(folder), *experts(folder)):
        dtype = samples.operator.dtype
        source = (
            f"fitted: tuned tables of AITER (AMD, MIT), {len(samples.seconds)} rows of "
            f"{' and '.join(architectures)}, and what they leave out (benchmarks/fit_aiter.py)"
        )
        surface = fit(samples, _base(dtype), "sglang", source)
        result.append(msgspec.structs.replace(surface, engine=None))
        print(
            f"{surface.kind:8} {dtype:6} {surface.samples:4} {surface.error_median:6.3f}"
            f" {surface.error_p90:6.3f}  compute {surface.compute:.3f} memory {surface.memory:.3f}"
            f" launch {surface.launch * 1e6:.1f} serial {surface.serial:.1e}",
            flush=True,
        )
    return result


def unconfigured(tuned: Surface) -> Surface:
    """SGLang's products on CDNA3 while AITER had no configuration for them: as long as their depth
    tells, whatever their columns; FLOP/s and bandwidth reach what the tuned kernels' do."""
    _, _, depth, seconds = np.array(UNCONFIGURED).T
    # Least squares of the relative error.
    system = np.stack([1.0 / seconds, depth / seconds], axis=1)
    found = np.linalg.lstsq(system, np.ones(len(depth)), rcond=None)[0]
    launch, serial = (float(f"{value:.4g}") for value in found)
    since, before = UNCONFIGURED_IN
    return Surface(
        kind="gemm",
        dtype="fp8",
        engine="sglang",
        since=since,
        before=before,
        compute=tuned.compute,
        memory=tuned.memory,
        launch=launch,
        serial=serial,
        samples=len(depth),
        error_median=round(float(np.median(abs(system @ (launch, serial) - 1.0))), 3),
        origin="measured: SGLang 0.5.9 on MI325X, 64 rows (SemiAnalysisAI/InferenceX issue 863, "
        "2026-03-05), AITER's Triton kernel without a configuration",
    )


def main() -> int:
    """Fit, print, and write the files of both architectures if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, help="AITER's aiter/configs, or a folder of its rows")
    parser.add_argument("--write", type=Path, help="folder of the TOML files")
    options = parser.parse_args()
    found = fitted(options.tables)
    if options.write is None:
        return 0
    for name in UNITS.values():
        gpu = facts.gpu(name)
        # CDNA3 has no units for fp4.
        own = [s for s in found if gpu.flops.fp4 or s.dtype not in ("nvfp4", "mxfp4")]
        if gpu.architecture == "cdna3":
            own += [unconfigured(s) for s in found if (s.kind, s.dtype) == ("gemm", "fp8")]
        lent = [surface for surface in efficiency(gpu).surfaces if not surface.samples]
        write_amd(options.write, name, own, lent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
