"""The token check of a recipe, against engines on loopback."""

import pytest

from splitpoint.recipes import check_tokens
from tests.recipes.fake import Behaviour, engine


def code(prefill: Behaviour, decode: Behaviour, *more: str) -> int:
    """What the check of one pair returns."""
    with engine(prefill) as first, engine(decode) as second:
        return check_tokens.main(
            ["--model", "m", "--prefill", first, "--decode", second, "--prompts", "12", *more]
        )


def test_a_sound_pair_passes_and_really_handed_over(capsys: pytest.CaptureFixture[str]) -> None:
    decode = Behaviour()
    assert code(Behaviour(), decode, "--kv-blocks", "prefill-0=1100") == 0
    assert decode.handed == 12
    told = capsys.readouterr().out
    assert "prefill-0 -> decode-0: equal within the noise: 0 of 12" in told
    assert "1,000 KV blocks of 16 tokens, predicted 1,100 (-9.1%)" in told


def test_corrupted_transfers_are_found_though_every_answer_is_200() -> None:
    assert code(Behaviour(), Behaviour(corrupt=True)) == 1


def test_corrupted_transfers_are_found_in_noise_too() -> None:
    assert code(Behaviour(noise=0.15), Behaviour(noise=0.15, corrupt=True), "--prompts", "24") == 1


def test_a_noisy_but_sound_pair_is_not_accused() -> None:
    assert code(Behaviour(noise=0.15), Behaviour(noise=0.15), "--prompts", "24") == 0


def test_a_pair_too_noisy_to_judge_is_not_passed() -> None:
    assert code(Behaviour(noise=0.8), Behaviour(noise=0.8)) == 3


def test_different_block_tokens_are_wrong_before_any_prompt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert code(Behaviour(block=64), Behaviour(block=128)) == 1
    assert "block tokens differ (prefill-0 64, decode-0 128)" in capsys.readouterr().out


def test_a_dead_instance_is_no_answer() -> None:
    with engine(Behaviour()) as url:
        pass
    assert check_tokens.main(["--model", "m", "--mixed", url]) == 2


def test_mixed_instances_and_the_router_are_held_against_the_first() -> None:
    with engine(Behaviour()) as one, engine(Behaviour()) as two, engine(Behaviour(noise=1)) as bad:
        sound = ["--model", "m", "--mixed", one, "--mixed", two]
        assert check_tokens.main([*sound, "--router", two]) == 0
        assert check_tokens.main([*sound, "--router", bad]) == 1


def sglang_code(prefill: Behaviour, decode: Behaviour, *more: str) -> int:
    """What the check of an SGLang pair returns."""
    with engine(prefill) as first, engine(decode) as second:
        words = ["--engine", "sglang", "--bootstrap-port", "5600", "--prefill", first]
        return check_tokens.main(
            ["--model", "m", *words, "--decode", second, "--prompts", "12", *more]
        )


def test_a_sound_sglang_pair_passes_by_meeting_at_prefills_bootstrap_port(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prefill, decode = Behaviour(role="prefill"), Behaviour(role="decode")
    assert sglang_code(prefill, decode, "--kv-blocks", "prefill-0=1100") == 0
    assert len(decode.rooms) == 12 and sorted(decode.rooms) == sorted(prefill.rooms)
    assert {(host, port) for host, port, _ in decode.rooms} == {("127.0.0.1", 5600)}
    assert len({room for *_, room in decode.rooms}) == 12
    # The noise floor is what the prefill side gives without what it has cached.
    assert prefill.flushed == 12 * check_tokens.OUTPUT_TOKENS
    told = capsys.readouterr().out
    assert "prefill-0 -> decode-0: equal within the noise: 0 of 12" in told
    assert "1,000 KV blocks of 16 tokens, predicted 1,100 (-9.1%)" in told


def test_corrupted_sglang_transfers_are_found_though_the_first_token_is_right() -> None:
    wrong = Behaviour(role="decode", corrupt=True)
    assert sglang_code(Behaviour(role="prefill"), wrong) == 1


def test_a_noisy_but_sound_sglang_pair_is_not_accused() -> None:
    # A step in a hundred comes out differently: one prompt in seven.
    prefill = Behaviour(role="prefill", noise=0.01)
    assert sglang_code(prefill, Behaviour(role="decode", noise=0.05), "--prompts", "24") == 0


def test_pages_of_different_sizes_are_wrong_in_sglang_too() -> None:
    prefill, decode = Behaviour(role="prefill", block=64), Behaviour(role="decode", block=1)
    assert sglang_code(prefill, decode) == 1


def test_sglang_instances_that_serve_alone_are_held_against_the_first() -> None:
    with engine(Behaviour()) as one, engine(Behaviour()) as two, engine(Behaviour(noise=1)) as bad:
        sound = ["--model", "m", "--engine", "sglang", "--mixed", one, "--mixed", two]
        assert check_tokens.main([*sound, "--router", two]) == 0
        assert check_tokens.main([*sound, "--router", bad]) == 1


def test_fisher_gives_the_tea_tasting_probability() -> None:
    # Fisher's lady tasting tea: 4 of 4 right against 0 of 4 has chance 1/70; 3 or more, 17/70.
    assert check_tokens.exceeds(4, 4, 0, 4) == pytest.approx(1 / 70)
    assert check_tokens.exceeds(3, 4, 1, 4) == pytest.approx(17 / 70)


def test_the_wrong_tokens_of_a_real_server_are_called_wrong_and_its_noise_is_not() -> None:
    # vLLM 0.32 on a CPU: blocks of 64 on P and 128 on D gave 23 of 24 prompts wrong; bf16 alone
    # makes 10 of 24 differ between two runs of one server.
    floor = check_tokens.Result(24, 10, 0)
    assert check_tokens.judge("real", check_tokens.Result(24, 23, 23), floor) == 1
    assert check_tokens.judge("real", check_tokens.Result(24, 12, 1), floor) == 0


def test_prompts_lie_around_block_boundaries_and_within_the_longest() -> None:
    prompts = check_tokens.prompts_for(24, 2176, 4000, "0")
    lengths = {len(prompt) for prompt in prompts}
    assert {2175, 2176, 2177, 4000} <= lengths and max(lengths) == 4000
    assert min(lengths) >= 5
    assert prompts == check_tokens.prompts_for(24, 2176, 4000, "0")
