"""Verdicts for results that already exist: a CSV file with the columns seed, arm and value, and the text to print."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len

from partwise.comparison.digits import decimals, percent, show, show_p
from partwise.comparison.effect import LARGEST, MARGIN, Effect
from partwise.comparison.power import smallest_detectable
from partwise.comparison.protocol import Claim, confirmed
from partwise.comparison.statistics import holm, judge, look_alpha, pooled_sd
from partwise.config import ConfigError, did_you_mean

COLUMNS = ("seed", "arm", "value")


def read_values(path: str | Path) -> dict[str, dict[int, float]]:
    """arm -> seed -> value from a CSV file with a header; the order of arms is the file's, other columns are ignored.

    The values nan and inf stand for runs that diverged. Raises ConfigError naming file, line, value and remedy.
    """
    values: dict[str, dict[int, float]] = {}
    first_line: dict[tuple[str, int], int] = {}
    for line, (seed_text, arm, value_text) in _rows(Path(path)):
        where = f"{path} line {line}"
        seed, value = _seed(seed_text, where), _value(value_text, where)
        if not arm or not arm.isprintable():
            raise ConfigError(f"{where}: arm={arm!r}: give the arm a printable name")
        if (before := first_line.setdefault((arm, seed), line)) != line:
            raise ConfigError(
                f"{where}: arm {arm!r} has seed {seed} already on line {before}: keep one row per arm and seed"
            )
        values.setdefault(arm, {})[seed] = value
    if len(values) < 2:
        found = f"only the arm {next(iter(values))!r}" if values else "no rows under the header"
        raise ConfigError(f"{path}: {found}: a verdict compares two arms or more, each with 2 seeds or more")
    for arm, runs in values.items():
        if len(runs) == 1:
            raise ConfigError(
                f"{path}: arm {arm!r} has one seed only, which gives no interval: run at least 2, better 5"
            )
    return values


def _rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """The line number and the stripped fields of `COLUMNS` for each row that is not blank."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path} line {line}: not UTF-8 text; save the table as CSV in UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header: list[str] = []
        where: list[int] = []
        for row in reader:
            fields = [field.strip() for field in row]
            if not any(fields):
                continue
            if not header:
                header = [field.lower() for field in fields]
                where = _find_columns(header, path, reader.line_num)
            elif len(fields) < len(header) or any(fields[len(header) :]):
                raise ConfigError(
                    f"{path} line {reader.line_num}: {len(fields)} fields where the header names {len(header)}: "
                    f'write decimals with a point and put quotes around a text with a comma, as in "a,b"'
                )
            else:
                seed, arm, value = (fields[column] for column in where)
                yield reader.line_num, (seed, arm, value)
    except csv.Error as error:
        raise ConfigError(f"{path} line {reader.line_num}: not CSV ({error}); check the quotes on this line") from None
    if not header:
        raise ConfigError(f"{path} is empty: it needs the header {','.join(COLUMNS)} and one row per run")


def _find_columns(header: Sequence[str], path: Path, line: int) -> list[int]:
    for name in COLUMNS:
        if header.count(name) == 1:
            continue
        place = f"{path} line {line}"
        if name in header:
            raise ConfigError(f"{place}: the column {name!r} stands {header.count(name)} times: keep one")
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            raise ConfigError(f"{place}: the fields are not separated by commas: write {','.join(COLUMNS)}")
        raise ConfigError(f"{place}: no column {name!r} in the header{did_you_mean(name, header)}")
    return [header.index(name) for name in COLUMNS]


def _seed(text: str, where: str) -> int:
    try:
        if "_" in text:  # Python would read 1_5 as 15
            raise ValueError
        return int(text.removesuffix(".0"))  # pandas writes a column of seeds with a gap in it as 1.0, 2.0
    except ValueError:
        raise ConfigError(f"{where}: seed={text!r}: expected a whole number, such as 3") from None


def _value(text: str, where: str) -> float:
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise ConfigError(
            f"{where}: value={text!r}: expected a number such as 1.47, or nan if the run diverged"
        ) from None


def verdict_table(
    values: Mapping[str, Mapping[int, float]],
    *,
    margin: float = MARGIN,
    higher: bool = False,
    alpha: float = 0.05,
    look: int = 1,
    metric: str = "value",
    unit: str = "",
    baseline: str | None = None,
    known_sd: float | None = None,
) -> list[Effect]:
    """Judge every arm against the baseline: the first arm, unless `baseline` names another. `higher` is better if set.

    Better and worse hold for all arms at once, by Holm's method.

    Raises ConfigError for an unknown baseline, and whatever `judge` raises.
    """
    against = next(iter(values)) if baseline is None else baseline
    if against not in values:
        raise ConfigError(f"unknown baseline {against!r}{did_you_mean(against, values)}")
    effects = {
        Claim(arm, against): judge(
            arm,
            against,
            runs,
            values[against],
            margin=margin,
            alpha=alpha,
            look=look,
            lower_is_better=not higher,
            metric=metric,
            unit=unit,
            known_sd=known_sd,
        )
        for arm, runs in values.items()
        if arm != against
    }
    p = {claim: 1.0 if effect.p is None else effect.p for claim, effect in effects.items()}
    return list(confirmed(effects, p, look_alpha(look, alpha)).values())


def render(effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]]) -> str:
    """The arms, their differences from the baseline and what they mean, as plain text; `values` as judged."""
    parts = [_arms(effects, values), _differences(effects), "\n".join(effect.sentence for effect in effects)]
    return "\n\n".join([*parts, "\n".join(_notes(effects, values))]).rstrip() + "\n"


def _arms(effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]]) -> str:
    against = effects[0].against if effects else ""
    rows = [["arm", "seeds", "mean", "SD", "diverged"]]
    for arm, runs in values.items():
        diverged = sum(not abs(value) <= LARGEST for value in runs.values())
        row = [f"{arm} (baseline)" if arm == against else arm, str(len(runs))]
        sd = None if diverged else pooled_sd([list(runs.values())])
        places = decimals(sd or 0.0, ())
        row += ["-" if diverged else show(math.fsum(runs.values()) / len(runs), places)]
        rows.append([*row, "-" if sd is None else show(sd, places), str(diverged)])
    if all(row[-1] == "0" for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return _align(rows)


def _differences(effects: Sequence[Effect]) -> str:
    """One row per comparison; with several, Holm's p too."""
    judged = [effect for effect in effects if effect.p is not None]
    adjusted = dict(zip((id(e) for e in judged), holm([e.p for e in judged if e.p is not None]), strict=True))
    confidence = percent(effects[0].alpha, complement=True) if effects else ""
    rows = [["difference", "n", "mean", f"{confidence} interval", "r", "p", "p (Holm)", "verdict"]]
    for e in effects:
        row = [f"{e.arm} - {e.against}", str(e.n) if e.paired else f"{e.n_arm}, {e.n_against}"]
        if e.mean is None or e.low is None or e.high is None or e.p is None:
            row += ["-" if e.mean is None else show(e.mean, 4), "-", "-", "-", "-"]
        else:
            places = decimals((e.high - e.low) / 2, (e.low, e.high), e.margin)
            row += [show(e.mean, places), f"{show(e.low, places)} to {show(e.high, places)}"]
            row += ["-" if e.correlation is None else f"{e.correlation:.2f}"]
            row += [show_p(e.p, e.alpha), show_p(adjusted[id(e)], e.alpha)]
        rows.append([*row, e.verdict or "no verdict"])
    if len(effects) < 2:
        rows = [row[:6] + row[7:] for row in rows]
    return _align(rows)


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded by the cells they take on a terminal: the first and the last to the left, numbers to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [cell + gap if i == 0 else gap + cell for i, (cell, gap) in enumerate(zip(row, gaps, strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _notes(effects: Sequence[Effect], values: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """What a reader needs to weigh the verdicts: the noise floor, the number of comparisons, the price of looks."""
    against = effects[0].against if effects else ""
    sound = [list(runs.values()) for runs in values.values() if all(abs(value) <= LARGEST for value in runs.values())]
    pairs = [effect for effect in effects if effect.paired and effect.sd_difference is not None]
    sd = pooled_sd(sound)
    if sd is not None:
        yield f"Seed SD, pooled over {len(sound)} arm{'s' if len(sound) > 1 else ''}: {show(sd, decimals(sd, ()))}."
    if any(effect.sd_difference for effect in pairs):
        n = min(effect.n for effect in pairs)
        spread = math.hypot(*(e.sd_difference or 0.0 for e in pairs)) / math.sqrt(2 * len(pairs))
        least = smallest_detectable(spread, n, alpha=pairs[0].alpha)
        yield (
            f"With {n} pairs and this spread, a true difference of {show(least, decimals(least, ()))} would be shown "
            f"4 times in 5; smaller ones are mostly missed."
        )
    for effect in effects:
        if effect.df is not None and math.isinf(effect.df) and effect.mean is not None:
            scaled = abs(effect.mean) / math.sqrt(1 / effect.n_arm + 1 / effect.n_against)
            yield (
                f"{effect.arm}: with the SD of a run known, the difference over sqrt(1/n + 1/n) is {show(scaled, 4)}, which "
                "rules such as modded-nanogpt's compare with a limit (0.004 at an SD of 0.0013)."
            )
    if len(effects) > 1:
        total = min(1.0, len(effects) * effects[0].alpha_spent)
        yield (
            f"{len(effects)} comparisons with {against}: the chance that at least one interval misses the truth is up "
            f"to {percent(total)}. Confirm a winner on fresh seeds."
        )
    if effects and effects[0].look > 1:
        yield f"This is look {effects[0].look}; all looks so far spend {percent(effects[0].alpha_spent)} together."
