"""What one request costs and what the GPUs of each topology hold, as the answer shows it."""

from collections.abc import Iterable

from msgspec.structs import replace

from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.pricing.price import price
from splitpoint.search import instance as ready
from splitpoint.search.loads import Profile
from splitpoint.verdict.answer import Figure, Holding, RequestCost


def request_cost(model: Model, gpu: Gpu, reference: ready.Holding, profile: Profile) -> RequestCost:
    """The cost of a mean request, input and output, on one rank of a holding."""
    tokens = round(profile.isl + profile.osl)
    # A trace may hold requests that are longer than the model was made for; they cost the same.
    engine = replace(reference.engine, max_len=max(reference.engine.max_len or 0, tokens))
    found = price(model, gpu, reference.topology, engine, context=tokens)
    return RequestCost(
        topology=str(reference.topology),
        tokens=tokens,
        block_tokens=found.block_tokens,
        page_bytes=found.page_bytes,
        blocks=found.request.pool_blocks,
        bytes=found.request.bytes,
        fixed_share=found.request.fixed_share,
        unused_share=found.request.unused_share,
    )


def holdings(held: Iterable[ready.Holding], profile: Profile) -> tuple[Holding, ...]:
    """The memory ladder of each, named by topology, drafts and token budget, the smallest first."""
    shown: dict[str, Holding] = {}
    for one in sorted(held, key=_size):
        name = _name(one)
        if name in shown:
            continue
        need = one.blocks(round(profile.isl + profile.osl))
        shown[name] = Holding(
            topology=name,
            rungs=tuple(
                Figure(
                    name=rung.name,
                    value=float(rung.bytes),
                    unit="B",
                    origin=rung.origin,
                    source=rung.source,
                )
                for rung in one.ladder.rungs
            ),
            kv_bytes=one.kv_bytes,
            kv_blocks=one.kv_blocks,
            concurrency=max(one.kv_blocks - 1, 0) / need,
            fits=one.ladder.fits,
        )
    return tuple(shown.values())


def _size(held: ready.Holding) -> tuple[int, str, int, int]:
    engine = held.engine
    return held.topology.gpus, str(held.topology), engine.drafts, engine.batched_tokens or 0


def _name(held: ready.Holding) -> str:
    drafts = f" drafts={held.engine.drafts}" if held.engine.drafts else ""
    return f"{held.topology}{drafts} budget={held.engine.batched_tokens:,}"
