"""Fit the speeds of facts/efficiency/links.toml to measured collectives, and print their errors.

The tables are those of the `aic` extra's package (aiconfigurator-core, NVIDIA, Apache-2.0); only
fitted coefficients are shipped. Links that no table covers keep the assumed entries below.
Run: python -m benchmarks.fit_links [--write FOLDER]
"""

import argparse
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from splitpoint.inputs import facts
from splitpoint.inputs.engine import EngineName
from splitpoint.timing.collectives import LinkSpeed, Pattern, message_seconds
from splitpoint.timing.kernel_tables import GPUS
from splitpoint.timing.operators import Array

PATTERNS: dict[str, Pattern] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "trtllm")
# The GPU whose tables speak for its architecture's inside link.
SPEAKERS = ("A100 SXM 80GB", "H200", "L40S", "RTX PRO 6000 Server", "B200", "GB300")
# So many neighbours have an entry of their own: in a domain of 72 the four of a tray sum by kernels
# that end with it (16 kB take SGLang 4 us over 4 ranks, 30 over 8), vLLM's eight by others (14 us,
# 50 over 16).
WITHIN: dict[tuple[str, EngineName], tuple[int, ...]] = {
    ("GB300", "vllm"): (4, 8),
    ("GB300", "sglang"): (4,),
}
# Messages of a step: from one token's hidden states to a full token budget's.
SIZES = (4096, 512 * 1024**2)
# NCCL between two RTX PRO 6000 of a server before its ACS and IOMMU were switched off, replayed
# from CUDA graphs, 12 sizes of 10 kB to 21 MB (LLMServingSim, MIT). Ranks beyond two are assumed.
_HOST = (
    "measured by a user: LLMServingSim profiler/perf/RTXPRO6000/hardware.yaml of 2026-09-08, "
    "within 3% (median); assumed: hop as pcie's, crowding as L40S's host shows"
)
_XGMI = (
    "measured by users: sums of AMD's own kernels: 6.4 us for 24 kB over eight MI355X, 7.5 for "
    "384 kB and 12.9 for 1.5 MB (vllm-project/vllm#39080, 2026-04-06), 7.2 us for 2 to 16 kB "
    "over four MI300X, 22.9 for 1 MB and 118 for 8 MB (sgl-project/sglang#6619, 2025); each "
    "pair of GPUs has a link of its own, so that two ranks have a seventh of the bandwidth and "
    "four three sevenths, and reach 68 to 78% of that; gathers taken to be alike"
)
ASSUMED = (
    LinkSpeed(
        kind="pcie_host",
        pattern="all_reduce",
        base=11.3e-6,
        hop=3.4e-6,
        share=0.267,
        crowding=1.1,
        origin=_HOST,
    ),
    LinkSpeed(
        kind="pcie_host",
        pattern="all_gather",
        base=11.3e-6,
        hop=1.9e-6,
        share=0.252,
        crowding=1.3,
        origin=_HOST,
    ),
    LinkSpeed(
        kind="pcie_host",
        pattern="reduce_scatter",
        base=10.7e-6,
        hop=1.8e-6,
        share=0.236,
        crowding=1.1,
        origin=_HOST,
    ),
    LinkSpeed(
        kind="pcie_host",
        pattern="all_to_all",
        base=11.3e-6,
        hop=2.1e-6,
        share=0.236,
        crowding=1.2,
        origin="assumed: as the other patterns of pcie_host",
    ),
    LinkSpeed(
        kind="nvlink",
        base=8e-6,
        hop=1e-6,
        share=0.6,
        origin="assumed: as nvswitch of the same generation, without a switch",
    ),
    LinkSpeed(
        kind="xgmi",
        base=6.8e-6,
        hop=0.0,
        share=0.105,
        crowding=-1.4,
        samples=13,
        origin=_XGMI,
    ),
    LinkSpeed(
        kind="ib",
        base=20e-6,
        hop=2e-6,
        share=0.8,
        origin="assumed: NCCL over RDMA with one port a GPU",
    ),
    LinkSpeed(
        kind="roce",
        base=20e-6,
        hop=2e-6,
        share=0.75,
        origin="assumed: as ib, with congestion",
    ),
    LinkSpeed(
        kind="ethernet",
        base=50e-6,
        hop=5e-6,
        share=0.6,
        origin="assumed: NCCL over TCP",
    ),
)


def measured(folder: Path) -> pd.DataFrame:
    """Rows (pattern, ranks, bytes, seconds) of NCCL's newest version."""
    nccl = pd.read_parquet(_newest(folder.glob("nccl/*/nccl_perf.parquet")))
    nccl = nccl[nccl.nccl_dtype == "half"].rename(columns={"op_name": "pattern"})
    return _counted(nccl.assign(pattern=nccl.pattern.map(PATTERNS)))


def reduced(folder: Path, engine: EngineName, nccl: pd.DataFrame) -> pd.DataFrame:
    """All-reduces of one engine as its graphs replay them: the faster of NCCL and of its own
    kernel, which is what engines switch between by size."""
    own = pd.read_parquet(_newest(folder.glob(f"{engine}/*/custom_allreduce_perf.parquet")))
    own = _counted(own[~own.kernel_source.str.contains("eager")].assign(pattern="all_reduce"))
    rows = pd.concat([nccl[nccl.pattern == "all_reduce"], own])
    return rows.groupby(["pattern", "num_gpus", "bytes"], as_index=False).seconds.min()


def _counted(rows: pd.DataFrame) -> pd.DataFrame:
    # Sizes count elements of two bytes.
    rows = rows.assign(bytes=rows.message_size * 2.0, seconds=rows.latency / 1e3)
    rows = rows[rows.bytes.between(*SIZES)]
    return rows.groupby(["pattern", "num_gpus", "bytes"], as_index=False).seconds.min()


def fit(
    rows: pd.DataFrame,
    pattern: Pattern,
    name: str,
    engine: EngineName | None = None,
    within: int | None = None,
) -> LinkSpeed:
    """The entry that fits the even rows best in log error, and its error on the odd ones."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    gpu = facts.gpu(name)
    rows = rows if within is None else rows[rows.num_gpus <= within]
    size, ranks, seconds = (rows[c].to_numpy(float) for c in ("bytes", "num_gpus", "seconds"))
    odd = np.array(
        [
            zlib.crc32(f"{pattern}|{r:.0f}|{b:.0f}".encode()) % 2
            for r, b in zip(ranks, size, strict=True)
        ]
    ).astype(bool)
    shared = gpu.inside.kind == "pcie"

    def speed(logs: Array) -> LinkSpeed:
        base, hop, share, crowding = np.exp(logs).tolist()
        return LinkSpeed(
            kind=gpu.inside.kind,
            architecture=gpu.architecture,
            pattern=pattern,
            engine=engine,
            within=within,
            base=float(f"{base:.3g}"),
            hop=float(f"{hop:.3g}"),
            share=float(f"{share:.3g}"),
            crowding=float(f"{crowding:.3g}") if shared else 0.0,
            origin="fitted",
        )

    def residuals(logs: Array) -> Array:
        guess = message_seconds(speed(logs), pattern, size, ranks, gpu.inside.bandwidth)
        return np.asarray(np.log(guess / seconds))

    best = least_squares(
        lambda logs: residuals(logs)[~odd],
        np.log([8e-6, 1e-6, 0.6, 0.5]),
        bounds=(np.log([1e-6, 1e-9, 0.05, 1e-3]), np.log([1e-4, 1e-4, 1.0, 3.0])),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=1e-2,
    )
    error = np.abs(np.expm1(residuals(best.x)[odd]))
    return msgspec.structs.replace(
        speed(best.x),
        samples=int((~odd).sum()),
        error_median=round(float(np.median(error)), 3),
        error_p90=round(float(np.quantile(error, 0.9)), 3),
        origin=f"fitted: collectives on {name}, aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)",
    )


def main() -> int:
    """Fit every link that has tables; print the errors, and write the file if asked."""
    import aiconfigurator_core

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="folder of links.toml")
    options = parser.parse_args()
    data = Path(aiconfigurator_core.__file__).parent / "systems" / "data"
    speeds = []
    for name in SPEAKERS:
        folder = data / GPUS[name] / "comm"
        rows = measured(folder)
        fits = [fit(group, pattern, name) for pattern, group in rows.groupby("pattern")]
        for engine in ENGINES:
            sums = reduced(folder, engine, rows)
            limits = (None, *WITHIN.get((name, engine), ()))
            fits += [fit(sums, "all_reduce", name, engine, within) for within in limits]
        for found in fits:
            print(f"{name:20}", found)
        speeds += fits
    lines = ["# Written by benchmarks/fit_links.py; a later entry never replaces a nearer one."]
    for entry in (*speeds, *ASSUMED):
        lines.append("\n[[links]]")
        fields = msgspec.to_builtins(entry)
        lines += [
            f"{k} = {v!r}" if not isinstance(v, str) else f'{k} = "{v}"'
            for k, v in fields.items()
            if v is not None
        ]
    if options.write is not None:
        (options.write / "links.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _newest(files: Iterable[Path]) -> Path:
    return max(files, key=lambda f: [int(d) for d in f.parent.name.split(".") if d.isdigit()])


if __name__ == "__main__":
    sys.exit(main())
