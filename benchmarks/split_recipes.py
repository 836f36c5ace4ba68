"""Decode batches of TensorRT-LLM's split deployments, as their recipes set them.

InferenceX's list of runs (.github/configs/nvidia-master.yaml, early 2026) names a recipe of
srt-slurm (NVIDIA, Apache-2.0) for each, and its name says the most sequences a decode rank holds
and the drafts; where the file says otherwise than its name, the file counts. Kimi-K2.5's are
recipes/kimi2.5/trtllm_dynamo/disagg/gb200Nvfp4/*/STP of the same. Read 2026-11-30.
"""

import re
from functools import cache
from typing import NamedTuple


class Served(NamedTuple):
    """What tells a run from others: model, GPU, precision, lengths, whether it drafts, workers on
    both sides, GPUs of a decode worker, whether each of them is a rank of its own, and users."""

    model: str
    gpu: str
    precision: str
    isl: int
    osl: int
    drafting: bool
    prefills: int
    decodes: int
    decode_gpus: int
    wide: bool
    users: int


class Recipe(NamedTuple):
    """The most sequences of a decode rank, and the drafts of a step."""

    batch: int
    drafts: int


# Model; GPU, precision and lengths; then runs: prefill workers > decode workers, t (tensor-parallel
# attention) or d (attention of data-parallel ranks) with the GPUs of a decode worker, b with the
# batch, m with the drafts if there are any, and the numbers of users.
RUNS = """
DeepSeek-R1
B200 fp4 1k1k
1>2d8b64m2:1214 1>5d8b16m3:875 1>5t8b1m3:6 1>5t8b32m3:10,15,25,45,90,180 3>4d8b128m1:4968
3>5d4b512m1:10860
1>1d8b512:4096 1>2d8b128:2192 1>5d8b32:1365 1>5t8b1:6 1>5t8b32:10,15,25,45,90,180 1>6t8b64:450
B200 fp4 8k1k
1>1d8b8m3:90 1>3t8b16m3:66 1>5t8b1m3:6 1>5t8b8m3:10,15,30,60 3>1d8b64m3:548
5>1d8b192m1:1096,1691 5>2d8b32m3:658
1>5t8b1:6 1>5t8b8:10,15,25,50,100 2>5t8b64:370 4>1d8b192:1606 4>3d8b32:837 7>2d8b128:2222
B200 fp8 1k1k
1>8t8b1m3:8 1>8t8b4m3:32 1>8t8b8m3:64 1>8t8b32m3:256 1>7d8b128m3:896 1>4d8b256m3:1024
1>3d8b384m3:1184 1>2d8b768m2:1600
1>3t8b1:4 1>3t8b12:32 1>3t8b1024:128 1>5d8b48:1920 1>1d8b512:4096 2>5d8b128:5152
B200 fp8 8k1k
1>6t8b8m3:8,48 1>2t8b4m3:8 1>4t8b16m3:64 2>3d8b8m3:224 2>1d8b32m3:288 4>1d8b128m2:1088
1>1t8b1:1 1>4t8b8:32 1>4t8b32:128 1>6t8b16:96 1>1d8b128:128 1>2d8b64:128 1>1d8b256:256
2>1d8b640:640
B300 fp4 1k1k
1>1d8b64m3:654 1>2d8b16m3:271 1>5t8b1m3:11 1>5t8b32m3:10,20,25,60,120,200 2>1d8b256m1:2342
5>2d8b512m1:8609 5>2d8b768m1:12926
1>2d8b64:1176 1>4t8b1:6 1>5t4b4:5,10,15,25 1>5t8b64:60,110,195,395 2>1d8b512:4405
3>1d8b1024:8192 3>2d8b256:4611
B300 fp4 8k1k
10>1d8b256m1:2198 1>4t4b8m3:52 1>4t8b1m3:8 1>4t8b4m3:32 3>1d8b16m3:181 9>1d8b128m1:1197
1>3t4b32:105 1>3t8b16:63 1>3t8b1:4 1>4t4b2:12 5>2d8b32:589 6>1d8b128:1093 8>1d8b256:2048
B300 fp8 1k1k
1>8t8b1m3:10 1>8t8b16m3:160 1>1d8b256m1:3072 1>2d8b128m1:2560 1>5d8b16m2:720 3>2d8b512m1:11264
1>1d8b256:2112 1>2d8b128:3072 1>3d8b48:1280 1>8t8b1:10,12 1>8t8b64:128,384 2>1d8b1024:16384
B300 fp8 8k1k
1>2t8b16m3:40 1>4t8b1m3:5,8 1>4t8b4m3:20 1>1d8b8m3:72 2>1d8b16m3:144 4>1d8b64m2:512
7>1d8b256m1:2048
1>4t8b16:64 1>8t8b1:10,16 2>1d8b32:256 3>1d8b64:512 3>5t8b64:256 5>1d8b128:1075 7>1d8b384:3072
H100 fp8 1k1k
1>3t16b1m3:6 1>3t16b2m3:9 1>3t16b8m3:30 1>3t16b16m3:60 1>3t16b32m3:117 1>3d16b4m3:231
1>3t16b128m3:462 1>1d16b32m2:615 1>1d16b64m1:1229
1>3t16b1:6 1>3t16b2:9 1>3t16b8:30 1>3t16b16:60 1>3d16b4:231 1>3d16b8:462 1>3d16b16:924
1>3d16b32:1845 2>1d16b256:4916
H100 fp8 8k1k
1>3t16b1m3:6 1>3t16b2m3:9 1>3t16b8m3:30 1>1d16b4m3:77 2>1d16b8m3:154
1>3t16b1:6 1>3t16b2:9 1>3t16b8:30 1>2t16b64:154 2>1d16b16:308
H200 fp8 1k1k
1>11t8b1m3:1 1>11t8b128m3:4,8,32 1>9t8b128m3:16 1>8d8b128m3:64 1>7d8b128m3:128 1>4d8b128m3:256
1>2d8b256m1:512
1>9t8b1:1 1>9t8b256:4,8,16,32,64,36,72,144,288,576 1>9d8b512:128 1>6d8b512:256
2>7d8b512:512,3584
H200 fp8 8k1k
1>7t8b1m3:1 1>7t8b32m3:4 1>6t8b32m3:8 1>3t8b32m2:16 3>5t8b32m3:32 1>1d8b32m2:64 2>1d8b32m2:128
3>1d8b32m2:256 3>1d8b64m1:512
1>7t8b1:1 1>7t8b32:4,28 1>6t8b16:8 1>3t8b32:16,48 2>5t8b128:32 2>3d8b128:64 1>1d8b256:128
5>3d8b256:256,768 3>1d8b512:512
GB200 fp4 1k1k
1>1d32b4m3:180 1>4t8b8m3:4,8,12,24,48 2>1d16b256m1:4301 3>1d32b64m1:2253 3>5d4b768m1:16130
1>1d8b512:4301 1>1d32b16:666 1>2d4b768:6144 1>4t8b32:12,24,48,96,192 1>4t8b1:5 2>1d16b256:4301
2>1d32b64:2253
GB200 fp4 1k8k
1>7t8b4m3:4,8,12,24,48 1>7t8b1m3:7 1>1d32b4m3:128 1>1d32b16m3:512 1>3d16b64m3:3072
1>3d16b128m1:6144 1>1d32b256m1:8192
1>7t8b1:5,7 1>15t4b4:60 1>15t4b8:135 1>1d32b16:563 1>1d32b64:2048 1>1d32b128:4096
1>1d32b256:8192
GB200 fp4 8k1k
1>4t8b8m3:4,8,12,24,48 3>1d32b4m3:180 7>1d16b64m1:1229 8>1d32b16m3:666 11>1d16b256m1:4301
1>4t8b16:12,44,76 1>4t8b1:5 2>1d32b8:333 7>1d32b32:1229 8>1d16b128:2253 10>1d16b256:4096
GB200 fp8 1k1k
1>1d8b512m1:4301 1>1d8b256m1:2151 1>1d16b64m1:1229 1>1d32b16m3:615 1>3t8b8m3:36 1>3t8b4m3:18
1>3t8b2m3:9
1>1d8b768:6144 1>1d8b512:4301 1>1d16b128:2151 1>1d32b32:1127 1>1d32b8:256 1>3t8b8:27 1>3t8b1:3
GB200 fp8 1k8k
1>2d16b256m1:8192 1>2d16b64m1:2152 1>1d32b16m3:564 1>1d32b2m3:72 1>4t8b2m3:4,8
1>2d16b256:8192 1>1d32b64:2048 1>1d32b16:564 1>4t8b8:36 1>4t8b1:4
GB200 fp8 8k1k
3>1d8b64m3:666 5>1d16b32m3:666 3>1d16b16m3:333 4>1d32b8m3:333 2>1d32b2m3:90 1>3t8b4m3:15
1>3t8b2m3:6
5>1d16b64:1229 4>1d32b16:666 3>1d16b32:615 2>1d32b8:333 1>3t8b16:63 1>3t8b4:18 1>3t8b1:6
GB300 fp4 1k1k
1>1d4b768m1:3226 1>1d32b8m3:333 1>4t8b1m3:5 1>4t8b8m3:8,12,24,48 3>1d16b128m1:2253
3>1d32b32m3:1229
1>4t8b1:5 1>4t8b32:12,48,96,192 2>1d8b1024:8192 2>1d32b32:1229 3>1d16b256:4301 3>1d32b64:2253
GB300 fp4 1k8k
1>7t8b1m3:7 1>7t8b8m3:63 1>1d32b16m3:563 1>1d32b64m3:2088 1>2d16b256m1:8192 1>4d8b512m1:16384
1>7t8b1:7 1>15t4b4:60 1>7t8b32:245 1>1d32b32:1024 1>1d32b128:4096 1>1d32b256:8192
GB300 fp4 8k1k
1>3t8b8m3:33 1>4t8b1m3:5 1>4t8b4m3:12,24 4>1d32b4m3:180 8>1d32b8m3:308 10>1d8b256m1:2253
10>1d16b32m3:666 13>1d16b64m3:1127
1>3t8b16:72 1>4t8b1:5 1>4t8b2:12 1>5t4b4:5,15,30 7>1d32b16:666 9>1d16b64:1229 11>3d4b256:3228
14>1d16b128:2253
GB300 fp8 1k1k
1>4t8b1m3:8 1>4t8b4m3:24 1>1d32b4m3:180 2>1d32b16m3:564 1>1d16b32m3:666 2>1d16b128m1:2253
3>2d8b512m1:8192
1>4t8b1:4 1>4t8b4:24 1>4t8b16:84 2>1d32b32:1229 2>1d16b128:2253 3>2d8b512:8602 3>2d8b768:12288
GB300 fp8 8k1k
1>4t8b1m3:8 1>4t8b4m3:24 6>1d32b8m3:333 8>1d16b32m3:666 10>1d16b64m1:1229 7>1d8b128m1:1229
1>4t8b1:4 1>4t8b4:24 1>4t8b8:36 6>1d32b16:512 4>1d16b32:666 7>1d16b64:1229 7>1d8b256:2151
GB300 fp8 1k8k
1>4t8b1m3:4 1>4t8b4m3:16 1>1d32b4m3:141 1>1d32b16m3:544 1>2d16b64m1:2048 1>4d8b256m1:8192
1>4t8b1:4 1>4t8b8:36 1>1d32b8:282 1>1d32b32:1024 1>2d16b128:4096 1>2d16b256:8192
Kimi-K2.5
GB200 fp4 1k1k
1>5t4b8:5,15,30,55 1>4t8b128:4,192,360,668 1>1d8b768:4301,6452 1>1d16b32:666 1>1d32b64:2253
2>1d16b256:4301 2>1d32b128:4301
GB200 fp4 8k1k
1>4t8b1:4 1>5t4b16:5,15,30,60,105 1>4t4b32:156 2>1d16b16:333 3>1d16b32:615 5>1d8b256:2151
7>1d16b128:2253
"""
MODELS = ("DeepSeek-R1", "Kimi-K2.5")
GPUS = {"H100": "H100 SXM"}
TOKENS = {"1": 1024, "8": 8192}
RUN = re.compile(r"(\d+)>(\d+)([td])(\d+)b(\d+)(?:m(\d))?:([\d,]+)")


def recipe(run: Served) -> Recipe | None:
    """The recipe of a run; None if the list does not hold it."""
    return _recipes().get(run)


@cache
def _recipes() -> dict[Served, Recipe]:
    found = {}
    model = gpu = precision = ""
    isl = osl = 0
    for line in RUNS.split("\n"):
        if line in MODELS:
            model = line
            continue
        if line and ">" not in line:
            name, precision, lengths = line.split()
            gpu = GPUS.get(name, name)
            isl, osl = TOKENS[lengths[0]], TOKENS[lengths[2]]
            continue
        for prefills, decodes, kind, gpus, batch, drafts, users in RUN.findall(line):
            for many in users.split(","):
                run = Served(
                    model,
                    gpu,
                    precision,
                    isl,
                    osl,
                    bool(drafts),
                    int(prefills),
                    int(decodes),
                    int(gpus),
                    kind == "d",
                    int(many),
                )
                found[run] = Recipe(int(batch), int(drafts or 0))
    return found
