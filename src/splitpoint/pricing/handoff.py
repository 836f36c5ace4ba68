"""The KV cache that one prefill hands to decode: bytes, pieces, and whether two pools can meet.

Full groups send every block of the input, window groups the blocks of the window, state groups
their last state only; what padding fills is not sent.
"""

from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Attention, Model
from splitpoint.pricing.layout import Group, KvLayout
from splitpoint.record import Record
from splitpoint.units import ceil_div

# Contiguous pieces of one layer's state: convolution parts (queries, keys, values, or the inputs
# of Mamba 2) and the matrix (vLLM 0.32 nixl/base_worker.py).
STATE_PIECES = {"gdn": 4, "kda": 4, "mamba2": 4, "mamba1": 2, "short_conv": 1}


class HandoffCost(Record, frozen=True, kw_only=True):
    """What the handoff of one request costs.

    A rank sends `bytes` in `blocks` and `descriptors` for the tokens asked, whole blocks counted.
    For any length: `bytes_per_token` x tokens (full groups) + `fixed_bytes` (last states, full
    windows), `descriptors_per_block` pieces for each block of a full group. `ranks` send side by
    side, `whole_bytes` in all; `unique_bytes` without the copies that ranks hold of each other.
    """

    tokens: int
    bytes: int
    bytes_per_token: float
    fixed_bytes: int
    blocks: int
    descriptors: int
    descriptors_per_block: float
    ranks: int
    unique_bytes: int

    @property
    def whole_bytes(self) -> int:
        """Bytes that all ranks of the prefill instance send."""
        return self.bytes * self.ranks


def handoff(model: Model, layout: KvLayout, tokens: int, *, pieces: int = 1) -> HandoffCost:
    """Bytes and pieces that one rank sends for a request of `tokens` input tokens.

    `pieces`: contiguous pieces of one layer's attention block (1 in vLLM 0.32, where keys and
    values lie together; 2 where a layout keeps them apart). With pipeline stages every rank is
    taken to send as much as the one that sends most.
    """
    full = [group for group in layout.groups if group.kind == "full"]
    fixed = [group for group in layout.groups if group.kind != "full"]
    sent = [(group, _sent_blocks(layout, group, tokens)) for group in layout.groups]
    return HandoffCost(
        tokens=tokens,
        bytes=sum(group.content_bytes * n for group, n in sent),
        bytes_per_token=sum(
            group.content_bytes / (_block(layout, group) * layout.dcp) for group in full
        ),
        fixed_bytes=sum(g.content_bytes * _sent_blocks(layout, g, model.max_len) for g in fixed),
        blocks=sum(n for _, n in sent),
        descriptors=sum(_pieces(group, pieces) * n for group, n in sent),
        descriptors_per_block=sum(_pieces(g, pieces) for g in full or fixed) / len(full or fixed),
        ranks=layout.tp * layout.pp,
        unique_bytes=sum(
            group.content_bytes * n * layout.tp // _copies(model, group, layout)
            for group, n in sent
        )
        * layout.pp,
    )


def refusal(prefill: KvLayout, decode: KvLayout, p_engine: Engine, d_engine: Engine) -> str | None:
    """Why two pools cannot hand over, in words for the user; None where they can.

    Equal block tokens are the only safe case: vLLM accepts a decode block that is a multiple of
    the prefill block, and gave wrong tokens with it on a real pair (64 -> 128, CPU backend).
    """
    if p_engine.name != d_engine.name:
        return f"prefill runs {p_engine.name} and decode {d_engine.name}: they share no connector"
    if p_engine.version != d_engine.version:
        return (
            f"engine versions differ ({p_engine.version} and {d_engine.version}); "
            "the connector's compatibility check refuses that"
        )
    if p_engine.kv_dtype != d_engine.kv_dtype:
        return (
            f"KV dtypes differ (prefill {p_engine.kv_dtype}, decode {d_engine.kv_dtype}); "
            "give both the same --kv-cache-dtype"
        )
    if p_engine.state_dtype != d_engine.state_dtype:
        return (
            f"state dtypes differ (prefill {p_engine.state_dtype}, decode {d_engine.state_dtype})"
        )
    if _layers_draft(p_engine) != _layers_draft(d_engine):
        side = "prefill" if _layers_draft(p_engine) else "decode"
        return (
            f"drafts on the {side} side only: draft layers are part of the KV cache that is "
            "compared at the handshake; draft on both sides or on neither"
        )
    if max(prefill.tp, decode.tp) % min(prefill.tp, decode.tp):
        return (
            f"tp {prefill.tp} on prefill and tp {decode.tp} on decode: neither divides the other, "
            "so a rank would read parts of heads"
        )
    if prefill.dcp != decode.dcp:
        return (
            f"dcp {prefill.dcp} on prefill and {decode.dcp} on decode: "
            "their ranks hold different tokens"
        )
    if prefill.dcp not in (1, prefill.tp) or (prefill.dcp > 1 and not _only_latent(prefill)):
        return (
            f"dcp {prefill.dcp} of tp {prefill.tp}: NIXL hands over caches that every rank holds "
            "whole or, of latent attention, that all ranks share"
        )
    if prefill.block_tokens != decode.block_tokens:
        return _blocks_apart(prefill, decode)
    if prefill.pp != decode.pp and len(prefill.groups) != len(decode.groups):
        return "their pipeline stages group the layers differently"
    if [g.kind for g in prefill.groups] != [g.kind for g in decode.groups]:
        return "their layers are grouped differently"
    return None


def _only_latent(layout: KvLayout) -> bool:
    return all(group.role in ("latent", "index") for group in layout.groups)


def _layers_draft(engine: Engine) -> bool:
    return engine.drafts > 0 and engine.draft_method != "ngram"


def _blocks_apart(prefill: KvLayout, decode: KvLayout) -> str:
    p, d = prefill.block_tokens, decode.block_tokens
    words = f"blocks of {p} tokens on prefill and {d} on decode"
    larger = max(p, d)
    advice = f"; --block-size {larger} on both sides makes them equal where that is allowed"
    if max(p, d) % min(p, d):
        return f"{words} cannot meet: neither divides the other{advice}"
    if d < p:
        return f"{words}: decode's block must be a multiple of prefill's{advice}"
    if prefill.tp > decode.tp:
        return f"{words} are refused when prefill has more tp ranks{advice}"
    return f"{words} are accepted by vLLM but gave wrong tokens on a real pair{advice}"


def _block(layout: KvLayout, group: Group) -> int:
    return group.block_tokens or layout.block_tokens


def _sent_blocks(layout: KvLayout, group: Group, tokens: int) -> int:
    if tokens <= 0:
        return 0
    held = ceil_div(tokens, _block(layout, group))
    match group.kind:
        case "full":
            return ceil_div(ceil_div(tokens, layout.dcp), _block(layout, group))
        case "window":
            return min(ceil_div(group.window, _block(layout, group)) + 1, held)
        case "chunk":
            return min(ceil_div(group.window, _block(layout, group)), held)
        case "state":
            return 1


def _pieces(group: Group, pieces: int) -> int:
    if group.kind == "state":
        return group.layers * STATE_PIECES[group.role]
    return group.layers * (pieces if group.role == "keys and values" else 1)


def _copies(model: Model, group: Group, layout: KvLayout) -> int:
    """tp ranks that hold the same bytes of a group: all for latent vectors, none for states, and
    tp / heads past the count of key-value heads; over dcp, whose ranks hold shares."""
    if group.kind == "state":
        return 1
    if group.role != "keys and values":
        return layout.tp // layout.dcp
    heads = max(
        layer.mixer.kv_heads for layer in model.layers if isinstance(layer.mixer, Attention)
    )
    return max(layout.tp // heads // layout.dcp, 1)
