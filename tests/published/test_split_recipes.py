"""The settings of measured split deployments are those that their recipes print."""

from benchmarks.split_recipes import Recipe, Served, recipe

RUN = Served(
    model="DeepSeek-R1",
    gpu="GB300",
    precision="fp8",
    isl=8192,
    osl=1024,
    drafting=False,
    prefills=1,
    decodes=4,
    decode_gpus=8,
    wide=False,
    users=24,
)


def test_a_run_is_found_by_all_that_tells_it_from_others() -> None:
    # recipes/trtllm/gb300-fp8/8k1k/stp/ctx1_gen4_tep8_batch4_eplb0_mtp0_24.yaml
    assert recipe(RUN) == Recipe(batch=4, drafts=0)
    assert recipe(RUN._replace(users=36)) == Recipe(batch=8, drafts=0)
    assert recipe(RUN._replace(drafting=True)) == Recipe(batch=4, drafts=3)
    assert recipe(RUN._replace(users=25)) is None
    assert recipe(RUN._replace(wide=True)) is None


def test_a_file_counts_where_its_name_says_otherwise() -> None:
    # ctx1_gen3_tp8_batch1024_eplb0_mtp0_4.yaml sets max_batch_size: 1.
    one = RUN._replace(gpu="B200", isl=1024, decodes=3, users=4)
    assert recipe(one) == Recipe(batch=1, drafts=0)


def test_ranks_and_drafts_are_read_from_a_run_s_line() -> None:
    wide = Served("DeepSeek-R1", "H100 SXM", "fp8", 8192, 1024, True, 2, 1, 16, True, 154)
    assert recipe(wide) == Recipe(batch=8, drafts=3)


def test_kimi_s_runs_are_its_own() -> None:
    # ctx1dep4_gen5tep4_batch8_allconc_eplb0_mtp0.yaml: concurrencies 5x15x30x55, max_batch_size 8.
    kimi = Served("Kimi-K2.5", "GB200", "fp4", 1024, 1024, False, 1, 5, 4, False, 55)
    assert recipe(kimi) == Recipe(batch=8, drafts=0)
    assert recipe(kimi._replace(model="DeepSeek-R1")) is None
