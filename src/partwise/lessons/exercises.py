"""The exercises of the lessons, whose checks recognize common mistakes and explain them."""

import itertools
import math
import re
from collections.abc import Callable

from partwise.comparison.stats.power import paired_t_power
from partwise.config import ConfigError
from partwise.config.overrides import parse_overrides
from partwise.lessons.failing_rates import check_failing_rates
from partwise.lessons.lesson import find_lesson
from partwise.lessons.mistakes import read_number, recognize
from partwise.lessons.own_part import check_own_part
from partwise.torch_extra import has_torch

Check = Callable[[str], str | None]
"""An answer -> None if it is right, else what is wrong with it."""


FOUR_GRAM = 1.7190  # nats per character of TinyShakespeare's last tenth; docs/first-comparison.md prints it
NOT_ITS_OWN = {
    "data": "changes the text or what is scored, so that the 4-gram's loss is another",
    "tokenizer": "changes the unit: a loss per token of several characters is not a loss per character",
    "ngram_lm": "adds an n-gram model to the logits: the model should pass the 4-gram by itself",
}


def check_four_gram(text: str) -> str | None:
    words = re.sub(r"[,;:](?=\s|$)|,", " ", text).split()
    given = [word for word in words if "=" in word]
    try:
        overrides = parse_overrides(given)
    except ConfigError as error:
        return str(error)
    loss = read_number(" ".join(word for word in words if "=" not in word))
    for path, _ in overrides:
        if path[0] in NOT_ITS_OWN:
            return f"{'.'.join(path)} {NOT_ITS_OWN[path[0]]}."
    if not 1 <= len(overrides) <= 3:
        return f"You give {len(overrides)} overrides: give one to three, such as train.steps=2000, and the loss."
    if invalid := find_invalid(1, given):
        return invalid
    if loss is None:
        return "Add the validation loss that you got, such as 1.83."
    if "bit" in text.lower():
        return f"A nat is 1.4427 bits: {loss:g} bits are {loss * math.log(2):.3f} nats. Give the loss in nats."
    if loss < 1.3:
        return f"No small model has a validation loss of {loss:g}. The loss of the training batch is lower: give the other."
    if loss >= FOUR_GRAM:
        return (
            f"{loss:g} is not below the 4-gram's {FOUR_GRAM:.3f}. Most models of this size still gain from more steps."
        )
    return None


def find_invalid(number: int, overrides: list[str]) -> str | None:
    """Why a lesson's model cannot have these overrides, such as an option that does not exist; None without torch."""
    if not has_torch():
        return None
    from partwise.train.config import run_config

    request = find_lesson(number).head.runs["main"]
    try:
        run_config(request.preset, *overrides, data=request.data, common=request.common)
    except ConfigError as error:
        return str(error)
    return None


def seeds_for_power(sd: float, difference: float, power: float = 0.8) -> int:
    """The fewest paired seeds that show a difference with this power at 5%."""
    n = 2
    while paired_t_power(difference / sd * math.sqrt(n), n, 0.05) < power:
        n += 1
    return n


def check_seeds(text: str) -> str | None:
    n = read_number(text)
    if n is None or n != n // 1 or n < 2:
        return "Answer with a number of seeds, 2 or more: one pair has no SD."
    right = seeds_for_power(0.0053, 0.01)
    if n in (right, right + 1):
        return None
    one_run = "That is for the SD of one run. What paired runs share cancels in the difference: take its SD."
    mistakes = {
        3: "That is (2.8 SD / 0.01)^2, by the normal distribution. Few seeds leave the SD uncertain: use Student's t.",
        4: "Then the interval is shorter than the difference, but it moves with its mean: the power is below 80%.",
        12: "That is for other initial positions. Two norms share all their random weights: their difference varies less.",
        **dict.fromkeys((13, 14), one_run),
        **dict.fromkeys(
            range(21, 25), "That is for unpaired runs, whose difference has sqrt(2) times the SD of a run."
        ),
    }
    return mistakes.get(int(n), "Which SD did you take? That of the paired difference gives another number.")


def check_crossing(text: str) -> str | None:
    steps = [int(digits) for digits in re.findall(r"\d+", text)]
    if len(steps) != 2:
        return "Answer with two steps, such as 100,200."
    first, second = steps
    if any(step % 100 or not 100 <= step <= 600 for step in steps):
        return "Losses are measured at steps 100, 200, ..., 600: give two of these."
    if first >= second:
        return "Give the earlier step first."
    if second <= 200:
        return "At step 200 the model without positions is still ahead, by about 0.02: they cross later."
    if first >= 300:
        return "At step 300 the learned positions are already ahead: they cross earlier."
    if second - first > 100:
        return "They do cross between these, and a narrower bracket is possible: take two evaluations in a row."
    return None


RELU_MEANS = ("0.399", "0.450", "0.431")
ORIGINS = {
    "a": "one draw of 3 x 3 numbers has a mean of its own, different in each draw",
    "b": "for normal numbers it is 1 / sqrt(2 pi)",
    "c": "three numbers with mean 0 and variance 1 give sqrt(2) / pi on average",
}


def check_relu_means(text: str) -> str | None:
    letters = re.findall(r"\b[abc]\b", text.lower())
    if len(letters) != 3:
        return "Answer with three letters, one for each of 0.399, 0.450 and 0.431, such as a b c."
    if len(set(letters)) < 3:
        return "Each origin belongs to one of the numbers. They differ in what is averaged, and over what."
    for mean, letter, right in zip(RELU_MEANS, letters, "bca", strict=True):
        if letter != right:
            return f"{mean} is not {letter}: {ORIGINS[letter]}."
    return None


def check_entropy(text: str) -> str | None:
    value = read_number(text)
    if value is None:
        return "Answer with a number of nats, such as 0.5."
    if not math.isfinite(value):
        return "exp overflowed, or 0 met log 0. Subtract the largest score before exp: the weights stay the same."
    weights = [math.exp(score - 2) for score in (2, 0, 0, 0)]
    p = [weight / sum(weights) for weight in weights]
    right = -sum(each * math.log(each) for each in p)
    if abs(value - right) <= 0.0015:
        return None
    if abs(value - right) <= 0.02:
        return f"{value:g} is near: give three digits."
    mistakes = {
        right / math.log(2): "That is in bits: log2. The natural logarithm gives nats.",
        right / math.log(10): "That is with log10. The natural logarithm gives nats.",
        -right: "The sign: log p is negative, and the entropy is minus the sum.",
        right
        / math.log(4): "That is the share of log 4, the largest entropy of four weights. Give the entropy itself.",
        math.log(4): "That is log 4, the entropy if all four weigh the same. The scores differ.",
        math.exp(right): "That is exp of the entropy, the perplexity: as many equal choices would be as uncertain.",
        -p[0] * math.log(p[0]): "That is the term of the first weight alone: sum p log p over all four.",
        right + p[0] * math.log(p[0]): "That is the sum without the first weight: sum p log p over all four.",
        0.0: "2, 0, 0, 0 divided by their sum is no softmax: take exp of each score first.",
    }
    return recognize(value, mistakes, 0.02) or (
        "Take exp of each score, divide by their sum, and compute -sum p log p with the natural logarithm."
    )


def check_head(text: str) -> str | None:
    found = re.findall(r"\d+\.\d+|\.\d+|\d+", text)
    if len(found) != 3:
        return "Answer with the layer, the head and its mean weight on the token before, such as 0 3 0.62."
    layer, head, weight = map(float, found)
    if layer not in (0, 1):
        return "The model has the layers 0 and 1: they count from 0."
    if head not in range(8):
        return "A layer has the heads 0 to 7: they count from 0."
    if 1 < weight <= 100:
        return f"Weights of a row sum to 1: give {weight / 100:g} for {weight:g}%."
    if weight > 1:
        return "Weights of a row sum to 1, so no weight exceeds it. Scores before the softmax do."
    if weight == 1:
        return "A weight of exactly 1 is that of the first token on itself. Average over the queries after it."
    if weight <= 0.5:
        return f"{weight:g} is not above 0.5. After 500 steps, a head of layer 1 is the likelier one."
    return None


def check_margin(text: str) -> str | None:
    margin = read_number(text)
    if margin is None or not math.isfinite(margin):
        return "Answer with a margin in nats, such as 0.5."
    if "%" in text:
        return "The margin is a difference of losses in nats, not a percentage: a hundredth of a nat is 0.01."
    if margin <= 0:
        return "No experiment shows that two losses are equal to the last digit: a margin is above 0."
    half = 2.262 * 0.005 / math.sqrt(10)  # t of 9 degrees of freedom, and the SD of the paired difference
    if margin <= half:
        return (
            f"The mean of ten differences of SD 0.005 is known to +-{half:.4f}. No such interval fits within +-{margin:g}: "
            "the verdict could not be equivalent. Take a larger margin, or more seeds."
        )
    if margin > 0.02:
        return (
            f"From step 500 to 600 the loss falls by 0.05, so {margin:g} is worth {margin / 0.0005:.0f} steps. A difference "
            "that costs so much training matters: take a smaller margin."
        )
    return None


CACHE_BYTES = 2 * 3 * 200 * 5 * 2 * 16 * 4  # keys and values, texts, tokens, layers, heads, numbers, bytes of a number
CACHE_FACTORS = {
    1 / 2: "half: a cache holds keys AND values",
    1 / 3: "a third: it holds all three texts",
    1 / 4: "a quarter: these are numbers, and a float32 number has 4 bytes",
    1 / 5: "a fifth: each of the five layers has a cache",
    1 / 200: "a 200th: it holds every token",
    6.0: "six times too large: the 2 key/value heads are cached, not the 12 query heads",
    8.0: "eight times too large: these are bits",
    1 / 1000: "a thousandth: give bytes, not kB",
    1 / 1024: "a 1,024th: give bytes, not KiB",
    1 / 1000**2: "a millionth: give bytes, not MB",
    1 / 1024**2: "a 1,048,576th: give bytes, not MiB",
    2.0: "twice too large: a float32 number has 4 bytes, not 8",
}


def check_cache(text: str) -> str | None:
    value = read_number(text)
    if value is None or not value > 0:
        return "Answer with a number of bytes, such as 4096."
    if value == CACHE_BYTES:
        return None
    for count in (1, 2, 3):
        for mistakes in itertools.combinations(CACHE_FACTORS, count):
            if math.isclose(value, CACHE_BYTES * math.prod(mistakes), rel_tol=2e-3):
                told = "; ".join(CACHE_FACTORS[each] for each in mistakes)
                return f"{told[0].upper()}{told[1:]}."
    return "Multiply: keys and values, texts, tokens, layers, key/value heads, numbers per head, bytes per number."


def check_confounded(text: str) -> str | None:
    words = {"size": r"size|param|width", "steps": r"step|long|length", "rate": r"rate|\blr\b"}
    named = {word for word, pattern in words.items() if re.search(pattern, text.lower())}
    if named == set(words) or (not named and re.search(r"\ball\b", text.lower())):
        return None
    if not named:
        return "Answer with those of size, steps and rate that may be the reason."
    missing = " and ".join(word for word in words if word not in named)
    return (
        f"{missing.capitalize()} changed as well, at the same time. To tell them apart, change one and keep the others."
    )


LONGER = ("rope_ntk", "rope_yarn", "rope_llama3")


def check_longer(text: str) -> str | None:
    try:
        settings = {".".join(path): value for path, value in parse_overrides(text.split())}
    except ConfigError as error:
        return str(error)
    kind, factor = settings.get("positions"), settings.get("positions.factor")
    if kind is None and "positions.theta" in settings:
        return "A larger theta is the idea of rope_ntk, whose factor computes it: theta factor^(E/(E-2))."
    if kind == "rope_linear":
        return "rope_linear slows all pairs alike. The fast ones tell neighbors apart: keep their speed."
    if kind not in LONGER:
        return f"Three parts slow the slow pairs of RoPE and spare the fast ones: {', '.join(LONGER)}."
    if not isinstance(factor, int | float):
        return "Say by how much: positions.factor."
    if factor in (128, 512):
        return "The factor is a ratio: the new length divided by that of training."
    if factor == 0.25:
        return "The factor is the inverse: the new length divided by that of training."
    if factor != 4:
        return f"512 is not {factor:g} times 128."
    original = settings.get("positions.original_context_length")
    if kind == "rope_ntk":
        return None
    if original is None:
        return (
            f"{kind} asks for positions.original_context_length: the length of training decides which pairs it slows."
        )
    if original != 128:
        return f"positions.original_context_length is the length of training, 128, not {original}."
    return None


CHECKS: dict[int, Check] = {
    1: check_four_gram,
    2: check_seeds,
    3: check_crossing,
    4: check_relu_means,
    5: check_entropy,
    6: check_head,
    7: check_margin,
    8: check_failing_rates,
    9: check_cache,
    10: check_confounded,
    11: check_longer,
    12: check_own_part,
}
"""By lesson, whose page asks the question."""

FILE_ANSWERS = frozenset({12})
"""The lessons whose exercise has a file for an answer, which the check imports."""
