"""The checks of a model, on copies of it: what each position, row, cache and parameter does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from partwise.checks.finding import Finding
from partwise.checks.measures import (
    cached_logits,
    change_before,
    change_before_each,
    change_of_first_row,
    gradient_shares,
    relative_change,
)
from partwise.checks.probe import Probe, copy_model, perturbed_probe, widest_probe
from partwise.config import describe_error
from partwise.model import Transformer

SHORT = 7
"""Tokens of a short text: an odd number, so that no layer treats it as a length of its own."""

CACHE_TOLERANCE = 1e3
"""Times the tolerance of a probe: a cached step may compute the same sums by another algorithm."""

LEAK, ROWS, CACHE, GRADIENTS, EVALUATION = (
    "no position sees later ones",
    "rows are independent",
    "cached = uncached",
    "every parameter has a gradient",
    "evaluations repeat",
)
"""The names of the checks."""


@dataclass(frozen=True)
class Case:
    """One way of calling a probe."""

    probe: Probe
    training: bool
    length: int

    def __str__(self) -> str:
        mode = "in training" if self.training else "in evaluation"
        return f"{self.length:,} tokens {mode}, {self.probe.state}"


def check_model(
    model: Transformer,
    seq_len: int,
    trained: bool = False,
    backends: Callable[[Transformer], None] | None = None,
) -> list[Finding]:
    """Check a model at its initial weights and at random ones, on `seq_len` tokens and on few; if `trained`, as it is.

    The model, its buffers and all random number generators do not change. `backends` chooses how layers compute;
    float32 is then used. Raises what a layer raises.
    """
    state = f"with the {'trained' if trained else 'initial'} weights"
    own = Probe(copy_model(model).float(), state, torch.float32, backends) if backends else None
    own = own or widest_probe(model, seq_len, state)
    lengths = sorted({min(SHORT, seq_len), seq_len})
    if model.config.encoder_only:  # every position sees all others, and nothing is cached
        probes = [own] if trained else [own, perturbed_probe(own, seq_len, 0)]
        gradients = [] if trained else [check_gradients(probes[::-1], seq_len)]
        return [check_rows(probes, lengths), *gradients, check_evaluation(probes[-1], seq_len)]
    if trained:
        return [*check_dependence([own], lengths), check_evaluation(own, seq_len)]
    random = perturbed_probe(own, seq_len, 0)
    return [
        *check_dependence([own, random], lengths),
        check_cache(random, lengths[0]),
        check_gradients([random, own, lambda: perturbed_probe(own, seq_len, 1)], seq_len),
        check_evaluation(random, seq_len),
    ]


def check_dependence(probes: Sequence[Probe], lengths: Sequence[int]) -> list[Finding]:
    """Whether logits depend on later tokens, or on other rows, in both modes and at every length."""
    largest, cases = 0.0, 0
    leak = rows = unclear = failed = ""  # a sentence on the first case of each
    for case in [Case(probe, training, n) for n in lengths for probe in probes for training in (False, True)]:
        probe, call, ids = case.probe, case.probe.logits(case.training), case.probe.ids[:, : case.length]
        try:
            base = call(ids)
        except Exception as error:
            if case.length == lengths[-1]:
                raise
            failed = f"fails on few tokens, so it cannot generate text ({case}: {describe_error(error)})"
            continue
        cases += 1
        positions = cuts(case.length)
        pairs = zip(positions, reversed(positions), strict=True)
        change = max(
            (change_before_each(call, ids, pair, probe.vocab_size, base) for pair in pairs if pair[0] <= pair[1]),
            default=0.0,
        )
        if change <= probe.tolerance:
            largest = max(largest, change)
        elif probe.noise(case.length, case.training) > probe.tolerance:
            unclear = f"results do not repeat ({case}), so it cannot be told"
        else:
            rows = rows or describe_rows(case, base)
            leak = describe_leak(case, base)
            if leak:
                break  # the run is refused, so the other cases do not matter
    at_most = f"change by at most {largest:.1g} of the largest ({cases} cases)"
    return [
        finding(LEAK, leak, unclear or failed, f"when later tokens change, earlier logits {at_most}"),
        finding(ROWS, "", rows or unclear, f"when other rows change, a row's logits {at_most}"),
    ]


def finding(check: str, leak: str, warning: str, passed: str) -> Finding:
    return Finding(check, "leak" if leak else "warning" if warning else "passed", leak or warning or passed)


def cuts(length: int) -> list[int]:
    """Positions from which a text is changed: in layers that mix blocks of positions, one of them is inside a block."""
    return sorted({1, length // 3, length // 2 + 1, length - 1} - {0, length})


def describe_leak(case: Case, base: Tensor) -> str:
    """How much logits depend on later tokens, if they do."""
    call, ids = case.probe.logits(case.training), case.probe.ids[:, : case.length]
    for cut in cuts(case.length):
        change = change_before(call, ids, cut, case.probe.vocab_size, base)
        if change > case.probe.tolerance:
            where = "the first position" if cut == 1 else f"the first {cut:,} positions"
            return f"when later tokens change, logits of {where} change by {change:.2g} of the largest ({case})"
    return ""


def describe_rows(case: Case, base: Tensor) -> str:
    """How much the logits of a row depend on the others, if they do."""
    call, ids = case.probe.logits(case.training), case.probe.ids[:, : case.length]
    change = change_of_first_row(call, ids, case.probe.vocab_size, base)
    if change <= case.probe.tolerance:
        return ""
    return f"when other rows change, a row's logits change by {change:.2g} of the largest ({case})"


def check_rows(probes: Sequence[Probe], lengths: Sequence[int]) -> Finding:
    """Whether the logits of a row depend on other rows, in both modes and at every length."""
    cases = [Case(probe, training, n) for n in lengths for probe in probes for training in (False, True)]
    for case in cases:
        base = case.probe.logits(case.training)(case.probe.ids[:, : case.length])
        if fault := describe_rows(case, base):
            return finding(ROWS, "", fault, "")
    return finding(ROWS, "", "", f"when other rows change, a row's logits stay ({len(cases)} cases)")


def check_cache(probe: Probe, length: int) -> Finding:
    """Whether generation with a cache computes what the whole text gives."""
    ids = probe.ids[:, :length]
    try:
        full = probe.logits(training=False)(ids)
        with probe.repeatable(), torch.no_grad():
            source = probe.source
            pieces = cached_logits(probe.copy(training=False), ids, [*range(min(3, length - 1), length)], source)
    except Exception as error:
        return Finding(CACHE, "warning", f"generation fails: {describe_error(error)}")
    change = relative_change(pieces, full)
    if change > CACHE_TOLERANCE * probe.tolerance:
        return Finding(CACHE, "warning", f"generated text differs: cached logits differ by {change:.2g} of the largest")
    return Finding(CACHE, "passed", f"cached logits differ by {change:.1g}")


def check_gradients(probes: Sequence[Probe | Callable[[], Probe]], length: int) -> Finding:
    """Whether every parameter has a gradient at the weights of at least one probe; makes more probes if needed."""
    names: set[str] | None = None
    for each in probes:
        probe = each if isinstance(each, Probe) else each()
        model = copy_model(probe.model).train()
        model.seed_dropout(0, 0)
        with probe.repeatable(), torch.enable_grad():
            shares = gradient_shares(model, probe.ids[:, :length], probe.source)
        without = {name for name, share in shares.items() if share == 0} - model.parameters_without_gradient()
        names = without if names is None else names & without
        if not names:
            return Finding(GRADIENTS, "passed", f"{len(shares):,} tensors")
    unused = sorted(names or ())
    shown = ", ".join(unused[:3]) + (f" and {len(unused) - 3} others" if len(unused) > 3 else "")
    return Finding(GRADIENTS, "warning", f"no output depends on {shown}, which training leaves unchanged")


def check_evaluation(probe: Probe, length: int) -> Finding:
    """Whether an evaluation leaves the next one unchanged."""
    change = probe.change_by_evaluation(length)
    if change > probe.tolerance:
        by = f"a second evaluation of a text differs by {change:.2g} of the largest logit"
        return Finding(EVALUATION, "warning", f"{by}: it is random, or changes the model")
    return Finding(EVALUATION, "passed", f"a second evaluation differs by {change:.1g}")
