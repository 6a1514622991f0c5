"""Numbers in the answers to exercises, and the mistakes that they show."""

import re


def read_number(text: str) -> float | None:
    """The first number of an answer such as `768,000 bytes`, `0,92`, `87%` or `nan`; None if there is none."""
    text = re.sub(r"(?<=\d)(?<!\b0)[,_ ](?=\d{3}(?!\d))", "", text.strip().lower())  # thousands
    found = re.search(r"[-+]?(?:nan|inf|\d*[.,]?\d+(?:e[-+]?\d+)?)(\s*%)?", text)
    if found is None:
        return None
    value = float(found[0].rstrip("% ").replace(",", "."))
    return value / 100 if found[1] else value


def recognize(value: float, mistakes: dict[float, str], tolerance: float) -> str | None:
    """What is said of the mistake whose result is nearest to the value, if one is within the tolerance, relative."""
    near = {abs(value - wrong) / max(abs(wrong), 0.1): told for wrong, told in mistakes.items()}
    return near[min(near)] if min(near) <= tolerance else None
