"""Every file of a deployment's recipe, by name: what all engines share and what each writes itself.

An engine is a module with the functions of `_Engine`; the deployment's engine name picks it.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol, cast

from splitpoint.errors import PlanError
from splitpoint.inputs.files import to_json, write_atomic
from splitpoint.recipes import readme, scripts, sglang, vllm
from splitpoint.recipes.placement import Instance, Share, place
from splitpoint.recipes.serving import DEPLOYMENT, Serving, chosen, deployment_file
from splitpoint.verdict.answer import Answer

EXECUTABLE = 0o755
README = "README.md"


class _Engine(Protocol):
    SERVER: str

    def refusal(self, made: Serving) -> PlanError | None: ...
    def settings(self, made: Serving) -> tuple[str, ...]: ...
    def instance(self, made: Serving, instance: Instance, share: Share, nodes: int) -> str: ...
    def router(self, made: Serving, instances: Sequence[Instance]) -> str: ...
    def checked(self, instances: Sequence[Instance]) -> Sequence[scripts.Words]: ...
    def told(self, made: Serving) -> readme.Told: ...


def write(what: Answer | Serving, folder: Path) -> tuple[Path, ...]:
    """Write the recipe of a deployment, or of an answer's choice.

    No choice, no files; a choice that this recipe cannot launch leaves a README that says why,
    since the answer is worth having all the same.
    """
    if isinstance(what, Serving):
        return _write(files(what), folder)
    made = chosen(what)
    if made is None:
        return ()
    refused = refusal(made)
    return _write(files(made) if refused is None else {README: readme.none(made, refused)}, folder)


def _write(made: dict[str, str], folder: Path) -> tuple[Path, ...]:
    paths = []
    for name, text in made.items():
        path = folder / name
        write_atomic(path, text)
        if name.endswith((".sh", ".py")):
            path.chmod(EXECUTABLE)
        paths.append(path)
    return tuple(paths)


def files(made: Serving) -> dict[str, str]:
    """Every file of the recipe by name."""
    refused = refusal(made)
    if refused is not None:
        raise refused
    engine = _module(made)
    instances = place(made.deployment, made.gpus_per_node)
    nodes = 1 + max(share.node for instance in instances for share in instance.shares)
    routed = len(instances) > 1
    out = {"env.sh": scripts.env(made, instances, nodes, engine.settings(made))} | {
        scripts.script_name(instance, share): engine.instance(made, instance, share, nodes)
        for instance in instances
        for share in instance.shares
    }
    if routed:
        out["router.sh"] = engine.router(made, instances)
    out["run.sh"] = scripts.run(instances, routed, engine.SERVER)
    out["stop.sh"] = scripts.STOP
    out["check.sh"] = scripts.check(made, instances, routed, engine.checked(instances))
    out["check.py"] = resources.files("splitpoint.recipes").joinpath("check_tokens.py").read_text()
    out[DEPLOYMENT] = to_json(deployment_file(made)).decode()
    out[README] = readme.text(made, instances, nodes, routed, engine.told(made))
    return out


def refusal(made: Serving) -> PlanError | None:
    """What the engine would fail on once it is on a cluster; None if it can run the deployment."""
    names = {pool.engine.name for pool in made.deployment.pools}
    if len(names) > 1:
        what = f"{' and '.join(sorted(names))} share no connector"
        return PlanError("deployment", what, "one engine for all pools")
    if "trtllm" in names:
        return PlanError("engine.name", "no launch recipe for trtllm yet", "vllm, sglang")
    return _module(made).refusal(made)


def _module(made: Serving) -> _Engine:
    engine = sglang if made.deployment.pools[0].engine.name == "sglang" else vllm
    return cast(_Engine, engine)
