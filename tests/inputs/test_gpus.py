"""The GPU catalogue: every number has a source, and physics holds between the numbers."""

from importlib import import_module
from pathlib import Path

import pytest
import yaml

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.checks import require
from splitpoint.inputs.gpu import GIB, Gpu

GPUS = [facts.gpu(name) for name in facts.gpu_names()]
ORIGINS = ("published: ", "measured: ", "assumed: ")


def gpu_id(gpu: Gpu) -> str:
    return gpu.name


each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=gpu_id)


@each_gpu
def test_every_number_has_its_source(gpu: Gpu) -> None:
    words = ("name", "architecture", "cpu")
    numbers = {name for name in gpu.__struct_fields__ if name not in words}
    assert set(gpu.sources) == numbers - {"sources"}
    assert all(source.startswith(ORIGINS) for source in gpu.sources.values())


@each_gpu
def test_the_driver_reports_no_more_than_is_marketed_and_most_of_it(gpu: Gpu) -> None:
    require(gpu.name, gpu)
    assert 0.90 * gpu.marketed_gb <= gpu.hbm_gib * GIB / 1e9 / 1.0737 <= gpu.marketed_gb
    assert gpu.hbm == int(gpu.hbm_gib * GIB)


@each_gpu
def test_a_narrower_dtype_is_never_slower(gpu: Gpu) -> None:
    flops = gpu.flops
    assert flops.fp8 is None or flops.fp8 == pytest.approx(2 * flops.bf16, rel=0.015)
    assert flops.fp4 is None or flops.fp8 is not None
    assert flops.fp4 is None or flops.fp8 is None or 1.99 <= flops.fp4 / flops.fp8 <= 4
    assert (flops.fp4 is not None) == (gpu.architecture in ("blackwell", "blackwell-rtx", "cdna4"))
    assert (flops.fp8 is None) == (gpu.architecture == "ampere")


@each_gpu
def test_memory_is_faster_than_the_links_and_the_inner_link_than_the_outer(gpu: Gpu) -> None:
    assert gpu.bandwidth > gpu.inside.bandwidth >= gpu.outside.bandwidth
    assert gpu.inside.latency <= gpu.outside.latency
    assert gpu.domain >= gpu.gpus_per_node or gpu.inside.kind == "nvlink"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100 SXM"),
        ("H100", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("AMD Instinct MI300X", "MI300X"),
        ("rtx-5090", "RTX 5090"),
    ],
)
def test_a_gpu_is_found_by_the_name_that_people_and_drivers_use(spelling: str, name: str) -> None:
    assert facts.gpu(spelling).name == name


def test_every_name_and_alias_means_one_gpu() -> None:
    meanings = {
        (facts._key(spelling), entry.gpu.name)
        for entry in map(facts._facts, facts._heads())
        for spelling in (entry.gpu.name, *entry.aliases)
    }
    assert len(meanings) == len({spelling for spelling, _ in meanings})


def test_a_file_begins_with_all_names_of_its_gpu() -> None:
    for file, head in facts._heads().items():
        entry = facts._facts(file)
        assert (head.gpu.name, head.aliases) == (entry.gpu.name, entry.aliases)


@pytest.mark.parametrize(("name", "hint"), [("H101", "H100"), ("gb3000", "GB300")])
def test_an_unknown_gpu_is_answered_with_a_near_one(name: str, hint: str) -> None:
    with pytest.raises(PlanError, match=f"did you mean '{hint}"):
        facts.gpu(name)


def test_a_gpu_like_no_other_is_answered_with_the_whole_list() -> None:
    with pytest.raises(PlanError, match=r"known: A100 PCIe 40GB, .*MI355X"):
        facts.gpu("abacus")


# What engines printed on real servers: vLLM's own ladder in its blog of 2026-09-21 (GB300), vLLM
# start-up logs and PyTorch messages of users (the others). GiB.
@pytest.mark.parametrize(
    ("name", "printed"), [("GB300", 276.62), ("H100", 79.18), ("H200", 139.8), ("RTX 3090", 23.58)]
)
def test_hbm_is_what_the_engine_printed(name: str, printed: float) -> None:
    assert facts.gpu(name).hbm_gib == pytest.approx(printed, abs=0.01)


# nvidia-smi's figure is the whole memory; CUDA sees 0.4% to 1.2% less (the driver keeps it).
@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("H100", 81559),
        ("H200", 143771),
        ("H20", 97871),
        ("B200", 183359),
        ("B300", 275040),
        ("GB200", 189471),
        ("GB300", 284208),
        ("RTX PRO 6000", 97887),
        ("A100 80GB", 81920),
        ("RTX 5090", 32607),
    ],
)
def test_cuda_sees_a_little_less_than_nvidia_smi(name: str, mib: int) -> None:
    kept = 1 - facts.gpu(name).hbm_gib / (mib / 1024)
    assert 0.003 < kept < 0.016


# Differences that we know of: AIConfigurator takes 800 Gb/s NICs for B200 and GB200 where NVIDIA's
# own racks have 400 Gb/s, PCIe without line coding, and workstation memory for the Server Edition.
SECOND_OPINION = {
    "a100_sxm": "A100 SXM 80GB",
    "a100_pcie": "A100 PCIe 80GB",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100_pcie": "H100 PCIe",
    "h100_sxm": "H100 SXM",
    "h200_sxm": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX PRO 6000 Server",
}


@pytest.mark.parametrize("system", SECOND_OPINION)
def test_aiconfigurators_figures_agree(system: str) -> None:
    pytest.importorskip("aiconfigurator_core")
    folder = import_module("aiconfigurator_core").__path__[0]
    theirs = yaml.safe_load((Path(folder) / "systems" / f"{system}.yaml").read_text())
    gpu, ours = theirs["gpu"], facts.gpu(SECOND_OPINION[system])
    if system != "rtx_pro_6000_server":
        assert ours.bandwidth == pytest.approx(gpu["mem_bw"], rel=0.001)
    assert ours.flops.bf16 == pytest.approx(gpu["bfloat16_tc_flops"], rel=0.002)
    assert ours.flops.int8 == pytest.approx(gpu["int8_tc_flops"], rel=0.005)
    if ours.flops.fp8 is not None:
        assert ours.flops.fp8 == pytest.approx(gpu["fp8_tc_flops"], rel=0.005)
    if ours.flops.fp4 is not None:
        assert ours.flops.fp4 == pytest.approx(gpu["fp4_tc_flops"], rel=0.04)
    assert ours.inside.bandwidth == pytest.approx(theirs["node"]["intra_node_bw"], rel=0.02)
    assert ours.gpus_per_node == theirs["node"]["num_gpus_per_node"]
