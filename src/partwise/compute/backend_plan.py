"""The plan of computation: the backend of every operation of a model, chosen once for a model and a machine.

`plan_backends` is for one model; `shared_plans` is for the arms of a comparison, which use one backend for each
shared layer. A plan is stored with the run and applied to its model.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from partwise.compute.backends import BACKENDS, KINDS, Backend
from partwise.compute.runtime import DefaultSettings, Runtime, choose_runtime, requested
from partwise.config import ConfigError
from partwise.kernels.malloc import keep_freed_memory
from partwise.model import ModelConfig, Transformer
from partwise.model.operations import ModelOperation, operations
from partwise.parts.operations import OpaqueSpec, Operation, OperationSpec

EAGER = "eager"


@dataclass(frozen=True)
class Choice:
    """The backend that computes an operation in training, and why a faster one does not."""

    kind: str
    backend: str
    chain: tuple[str, ...] = ()
    """The backends to ask for each call, in order: a call may have inputs that the first does not take."""
    reason: str = ""


@dataclass(frozen=True)
class BackendPlan:
    """The choice for every operation, by the name of its module."""

    choices: dict[str, Choice]

    def apply(self, model: Transformer) -> None:
        """Install the backends of this plan in the model. Raises ConfigError if it is the plan of another model."""
        found = {each.name: each for each in operations(model)}
        if found.keys() != self.choices.keys():
            names = sorted(found.keys() ^ self.choices.keys())
            raise ConfigError(
                f"these backends were chosen for another model (it differs in {names[0]}): choose them again"
            )
        for name, operation in found.items():
            if isinstance(operation.module, Operation):
                chosen = (find_backend(operation.kind, each) for each in self.choices[name].chain)
                operation.module.backends = tuple(each.bind(operation.module, operation.spec) for each in chosen)

    def counts(self) -> dict[str, Counter[str]]:
        """Kind -> backend -> number of operations, without the layers of blocks that a backend computes as a whole."""
        totals: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        for _, choice in self.visible():
            totals[choice.kind][choice.backend] += 1
        return totals

    def visible(self) -> Iterator[tuple[str, Choice]]:
        """The choices that training uses: all but those within a block that a backend computes as a whole."""
        whole = [f"{name}." for name, each in self.choices.items() if each.kind == "block" and each.backend != EAGER]
        for name, choice in self.choices.items():
            if not name.startswith(tuple(whole)):
                yield name, choice

    def uses_kernels(self, *kinds: str) -> bool:
        """Whether another backend than the layers' own equations may compute operations of these kinds."""
        return any(choice.chain for choice in self.choices.values() if choice.kind in kinds)

    def reasons(self) -> dict[str, list[str]]:
        """Kind -> the different reasons why faster backends are not used."""
        found: dict[str, list[str]] = {}
        for _, choice in self.visible():
            if choice.reason and choice.reason not in found.setdefault(choice.kind, []):
                found[choice.kind].append(choice.reason)
        return found

    def to_dict(self) -> list[dict[str, Any]]:
        """One entry per distinct choice, with the names of its modules."""
        grouped: dict[Choice, list[str]] = {}
        for name, choice in self.choices.items():
            grouped.setdefault(choice, []).append(name)
        return [
            {
                "kind": choice.kind,
                "backend": choice.backend,
                "chain": list(choice.chain),
                "reason": choice.reason,
                "modules": names,
            }
            for choice, names in grouped.items()
        ]

    @classmethod
    def from_dict(cls, entries: list[dict[str, Any]]) -> Self:
        choices: dict[str, Choice] = {}
        for entry in entries:
            choice = Choice(entry["kind"], entry["backend"], tuple(entry["chain"]), entry["reason"])
            choices |= dict.fromkeys(entry["modules"], choice)
        return cls(choices)

    def difference(self, other: "BackendPlan") -> tuple[str, str, str] | None:
        """The first module that the plans compute differently: its name and both backends, or None."""
        for name in sorted(self.choices.keys() | other.choices.keys()):
            mine, others = self.choices.get(name), other.choices.get(name)
            if mine is None or others is None or (mine.backend, mine.chain) != (others.backend, others.chain):
                texts = ["nothing" if each is None else " then ".join(each.chain) or EAGER for each in (mine, others)]
                return name, texts[0], texts[1]
        return None


def multi_seed_backends(backends: Mapping[str, str]) -> dict[str, str]:
    """The backends of multi-seed training: MLPs and blocks have no kernel for several seeds. Raises ConfigError."""
    for kind in ("ffn", "block"):
        if backends[kind] not in ("auto", EAGER):
            raise ConfigError(
                f"train.{kind}_backend={backends[kind]} does not support multi-seed training: use "
                f"train.{kind}_backend=auto or --seeds-per-process 1"
            )
    return {**backends, "ffn": EAGER, "block": EAGER}


def plan_backends(
    model: Transformer, runtime: Runtime, backends: Mapping[str, str] | None = None, n_tokens: int | None = None
) -> BackendPlan:
    """The plan of one model for rows of `n_tokens` (default: context_length).

    `backends` names a backend per kind of operation (default: "auto", the fastest).
    """
    return shared_plans({"": model}, runtime, backends, {"": n_tokens} if n_tokens else None)[""]


def plan_config(
    config: ModelConfig, runtime: Runtime, backends: Mapping[str, str] | None = None, n_tokens: int | None = None
) -> BackendPlan:
    """`plan_backends` without allocating the model."""
    with torch.device("meta"):
        return plan_backends(Transformer(config), runtime, backends, n_tokens)


def shared_plans(
    models: Mapping[str, Transformer],
    runtime: Runtime,
    backends: Mapping[str, str] | None = None,
    n_tokens: Mapping[str, int] | None = None,
) -> dict[str, BackendPlan]:
    """The plans of the arms of a comparison, which use one backend for each shared layer.

    In bfloat16, where backends round at different places, a layer that several arms have uses a backend that supports it in
    all of them. In float32 backends differ by about 1e-7: options that exclude a backend of attention in one arm, such as a
    soft-cap, exclude it in all, but blocks and MLPs use the kernels that each arm has, and `slower_arms` names those that
    lack one. An arm's additional layers use a backend that supports such a layer in every layer of all arms.
    """
    wanted = {kind: (backends or {}).get(kind, "auto") for kind in KINDS}
    found = {
        arm: {each.name: each for each in operations(model, (n_tokens or {}).get(arm))} for arm, model in models.items()
    }
    alone = {
        arm: {name: choose(arm, each, [(arm, each)], runtime, wanted[each.kind]) for name, each in own.items()}
        for arm, own in found.items()
    }
    kinds = ("attention",) if runtime.precision == "float32" else KINDS
    shared = {
        arm: {
            name: choose(arm, each, find_peers(each, found), runtime, wanted[each.kind])
            for name, each in own.items()
            if each.kind in kinds
        }
        for arm, own in found.items()
    }
    held = {  # layers that another arm excludes from their backend; a kernel of the whole block would ignore that
        name: choice.reason
        for arm, choices in shared.items()
        for name, choice in choices.items()
        if choice.backend != alone[arm][name].backend
    }
    plans = {}
    for arm, own in alone.items():
        plans[arm] = BackendPlan({name: shared[arm].get(name, choice) for name, choice in own.items()})
        for name, choice in own.items():
            reason = next((text for layer, text in held.items() if layer.startswith(f"{name}.")), None)
            if choice.kind == "block" and reason is not None:
                plans[arm].choices[name] = Choice("block", EAGER, (), choice.reason or f"attention shares {reason}")
    return plans


def find_peers(
    operation: ModelOperation, found: Mapping[str, Mapping[str, ModelOperation]]
) -> list[tuple[str, ModelOperation]]:
    """The operations of all arms that share a backend with this one: of the same name, or at the same place in any layer."""
    if all(operation.name in own for own in found.values()):
        return [(arm, own[operation.name]) for arm, own in found.items()]
    return [(arm, each) for arm, own in found.items() for each in own.values() if same_place(each, operation)]


SLOWER_HERE = "slower here"
"""Begins the reason why a kernel that could compute a layer does not: another backend is faster."""


def slower_arms(plans: Mapping[str, BackendPlan], runtime: Runtime) -> dict[str, list[str]]:
    """The arms in which layers lack the kernel that the same layers of another arm have, with the reasons."""
    ranks = {(kind, name): each.rank(runtime) for kind, own in BACKENDS.items() for name, each in own.items()}
    best: dict[str, int] = {}
    for plan in plans.values():
        for name, choice in plan.choices.items():
            best[name] = max(best.get(name, 0), ranks.get((choice.kind, choice.backend), 0))
    slower: dict[str, list[str]] = {}
    for arm, plan in plans.items():
        for name, choice in plan.visible():
            behind = ranks.get((choice.kind, choice.backend), 0) < best[name] and SLOWER_HERE not in choice.reason
            if behind and f"{choice.kind}: {choice.reason}" not in slower.setdefault(arm, []):
                slower[arm].append(f"{choice.kind}: {choice.reason}")
    return {arm: reasons for arm, reasons in slower.items() if reasons}


def check_requested(plans: Iterable[BackendPlan], backends: Mapping[str, str]) -> None:
    """Raise ConfigError if a backend named in `backends` computes no operation: the setting would have no effect."""
    plans = list(plans)
    for kind, name in backends.items():
        used = {choice.backend for plan in plans for choice in plan.choices.values() if choice.kind == kind}
        if name not in ("auto", EAGER) and name not in used:
            choices = (each for plan in plans for each in plan.choices.values())
            reasons = [each.reason for each in choices if each.kind == kind and each.reason]
            raise ConfigError(
                f"train.{kind}_backend={name} supports no layer of this model{f' ({reasons[0]})' if reasons else ''}: "
                f"use train.{kind}_backend=auto (`partwise doctor` shows the backends of each preset)"
            )


def find_backend(kind: str, name: str) -> Backend:
    """The backend of a plan. Raises ConfigError."""
    if name not in BACKENDS[kind]:
        raise ConfigError(f"the backend {name!r} of this plan is unknown: --import the file that registers it")
    return BACKENDS[kind][name]


def apply_backends(
    model: Transformer, runtime: Runtime, backends: Mapping[str, str] | None = None, n_tokens: int | None = None
) -> BackendPlan:
    """Make the plan of a model and apply it."""
    plan = plan_backends(model, runtime, backends, n_tokens)
    plan.apply(model)
    return plan


def same_place(one: ModelOperation, other: ModelOperation) -> bool:
    """Whether two operations are at the same place of different layers, such as `blocks.2.ffn` and `blocks.5.ffn`."""
    return one.kind == other.kind and without_index(one.name) == without_index(other.name)


def without_index(name: str) -> str:
    """`blocks.2.attention.scores` -> `blocks.attention.scores`."""
    return ".".join(word for word in name.split(".") if not word.isdigit())


def choose(
    arm: str, operation: ModelOperation, peers: list[tuple[str, ModelOperation]], runtime: Runtime, wanted: str
) -> Choice:
    """The fastest backend that trains an operation and all its peers, and the chain of those that may take other calls."""
    chosen, chain, reasons = EAGER, list[str](), list[str]()
    for candidate in candidates(operation.kind, runtime, wanted):
        refusals = [(other, refusal(candidate, peer.spec, runtime, wanted)) for other, peer in peers]
        refused = [(other, reason) for other, reason in refusals if reason is not None]
        takes_calls = all(
            any(refusal(candidate, variant, runtime, wanted) is None for variant in peer.spec.variants())
            for _, peer in peers
        )
        # a backend that trains some peers and not others would make them differ
        if takes_calls and len(refused) in (0, len(peers)):
            chain.append(candidate.name)
        if chosen == EAGER and refused:
            other, reason = min(refused, key=lambda each: each[0] == arm)
            reasons.append(f"{candidate.name}: {reason}" + (f" (arm {other})" if other != arm else ""))
        elif chosen == EAGER:
            chosen = candidate.name
    return Choice(operation.kind, chosen, tuple(chain), "; ".join(reasons))


def candidates(kind: str, runtime: Runtime, wanted: str) -> list[Backend]:
    """The backends to consider, the fastest first: one that is named, and those slower than it."""
    ranks = {each.name: each.rank(runtime) for each in BACKENDS[kind].values()}
    limit = 0 if wanted == EAGER else ranks.get(wanted, max(ranks.values(), default=0) + 1)
    names = [name for name, rank in ranks.items() if name == wanted or 0 < rank < limit]
    return [BACKENDS[kind][name] for name in sorted(names, key=lambda name: -ranks[name])]


def refusal(candidate: Backend, spec: OperationSpec, runtime: Runtime, wanted: str) -> str | None:
    """Why a backend does not compute an operation: it cannot, or, unless it is named, it is slower here."""
    if isinstance(spec, OpaqueSpec):
        return f"{spec.option} has no kernel"
    reason = candidate.unsupported(spec, runtime)
    if reason is None and wanted != candidate.name and (slower := candidate.slower(spec, runtime)):
        reason = f"{SLOWER_HERE}: {slower}"
    return reason


def select_backends(
    model: Transformer,
    precision: str = "float32",
    backends: Mapping[str, str] | None = None,
    n_tokens: int | None = None,
) -> BackendPlan:
    """Select and install the fastest backends of this machine, and return their plan: for a training loop of your own.

    `precision` is "bfloat16" if you call the model under autocast; weights are float32. `backends` names a backend per
    kind of operation ("block", "attention", "ffn"); `n_tokens` is the length of the rows (default: context_length). On a
    CPU, the process keeps freed memory from now on, which saves system calls. Call it again after changing modules.

        >>> model = partwise.Transformer(partwise.preset("mingpt"))
        >>> partwise.select_backends(model)
    """
    device = model.embed.weight.device.type
    names = {kind: (backends or {}).get(kind, "auto") for kind in KINDS}
    settings = DefaultSettings(device, precision, names["attention"], names["ffn"], names["block"])
    runtime = choose_runtime(settings)
    plan = apply_backends(model, runtime, requested(settings), n_tokens)
    check_requested([plan], requested(settings))
    if device == "cpu":
        keep_freed_memory()
    return plan
