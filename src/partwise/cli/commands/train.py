"""`train`: train or resume a run."""

import os
import signal
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from partwise.checks.finding import Finding
from partwise.cli.commands.evaluate import show_scores
from partwise.cli.signals import ENDING, HANGUP, exit_status, handled, leave_terminal
from partwise.cli.terminal import console, follow_run, print_error, table, with_prompt
from partwise.config import ConfigError
from partwise.config.overrides import distinct, parse_overrides
from partwise.data import Dataset
from partwise.data.repetition import repetition_note
from partwise.drafts import make_folder
from partwise.files import open_file
from partwise.inspection.memory import memory_warning
from partwise.machine import OUT_OF_MEMORY, available_memory, is_out_of_memory
from partwise.messages import attempt, not_shown, quantity
from partwise.model import Transformer
from partwise.run_names import check_run_name, default_run_name, explain_write_errors
from partwise.train.config import run_config, vocabulary_note
from partwise.train.distributed.environment import STORE
from partwise.train.distributed.launcher import LOST, TOGETHER, end_now, end_with_launcher
from partwise.train.distributed.processes import (
    SINGLE,
    EndedTogether,
    Processes,
    ProcessLost,
    explain_lost,
    join,
)
from partwise.train.loop import Diverged
from partwise.train.own_parts import TRAINED, check_own_parts, leak_sentence, leaks
from partwise.train.run_folder import Interrupted, RunFolder
from partwise.train.samples import draw_sample
from partwise.train.trained_model import open_trained


def train_run(
    preset: str,
    overrides: list[str],
    data: str | None,
    name: str | None,
    fresh: bool,
    command: str,
    allow_leak: bool = False,
    processes: Processes = SINGLE,
) -> int:
    """Train or resume one run; returns the exit status."""
    with processes.patient():
        with processes.together():
            distinct(parse_overrides(overrides))
            config = run_config(preset, *overrides, data=data)
            parts = [Path(preset).stem, *overrides, *([data] if data else [])]
            folder = check_run_name(name) if name else default_run_name(parts)
            path = Path("runs") / folder
        for turn in (True, False):  # the others find what the first has prepared
            with processes.together():
                if processes.first == turn:
                    with console.status("preparing the data") if console.is_terminal and turn else nullcontext():
                        dataset = config.prepare()
        run = RunFolder(
            path,
            config,
            fresh=fresh,
            command=[command],
            dataset=dataset,
            processes=processes,
            allow_leak=allow_leak,
        )
    if not processes.first:
        write_output_to(path / "ranks" / f"{processes.rank}.log")
    runtime = run.runtime
    times = f"{processes.size} processes ({config.train.parallel}) x " if processes.size > 1 else ""
    console.print(
        f"{folder}: {config.count_parameters()} on {runtime.device}, {runtime.precision}, "
        f"{times}{quantity(runtime.threads, 'thread')}, {len(run.run.ids):,} training tokens of {config.data.label}",
        markup=False,
        soft_wrap=True,
    )
    show_findings(run.run.findings or [])
    if processes.first and (note := repetition_note(dataset)):
        console.print(note, markup=False, soft_wrap=True)
    available = available_memory() if processes.size == 1 and runtime.device == "cpu" else None
    if processes.first and (excess := vocabulary_note(config, dataset)):
        console.print(excess, markup=False, soft_wrap=True)
    if warning := memory_warning(config, runtime.precision, available):
        console.print(warning, markup=False)
    if run.run.new_tensors:
        names = ", ".join(run.run.new_tensors)
        console.print(f"initialized at random, as the starting weights lack them: {names}", markup=False)
    if runtime.compile:
        with console.status("compiling the model") if console.is_terminal else nullcontext():
            seconds = run.run.compile()
        console.print(f"compiled the model in {seconds:.1f} s")
    if run.run.step:
        console.print(f"resuming after step {run.run.step}")

    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            leave_terminal()
        received.append(number)
        run.stop_requested = True

    try:
        with handled(stop, (signal.SIGINT, *ENDING)):
            follow_run(run)
    except Interrupted as reason:
        processes.leave()
        console.print(f"{reason}. To resume:\n  {command.replace(' --fresh', '')}", markup=False, soft_wrap=True)
        return 128 + (received or [signal.SIGTERM])[0]  # another process may have received it
    except Diverged as error:
        processes.leave()
        print_error(f"training diverged at {error}. The last good checkpoint is in {path / 'checkpoints'}")
        return 1
    processes.leave()  # after any other error the processes are at different places, and end without each other
    if not processes.first:
        return 0
    # with others, this process may have parts of the model only
    model = run.run.model if processes.size == 1 else open_trained(str(path)).model
    findings = check_own_parts(config, model, dataset, run.run.plan, trained=True)
    run.add_findings(findings, TRAINED)
    known = run.latest_evaluation if config.train.validation_estimator == "full" else None

    def show_its_scores() -> None:
        show_scores(model, dataset, config.seq_len, runtime, max_problems=200, known=known)

    attempt("the scores", show_its_scores, print_reason)  # the run has ended and is stored
    console.print()
    attempt("the sample", lambda: show_sample(model, dataset, runtime.precision), print_reason)
    console.print(f"\nsaved to {path}", markup=False, soft_wrap=True)
    more = f"generate more: partwise generate {folder} --prompt ..."
    if config.model.encoder_only:
        more = f"its attention maps: partwise inspect {folder} attention"
    console.print(more, markup=False, soft_wrap=True)
    console.print(f"its page with curves: partwise report {folder}", markup=False, soft_wrap=True)
    show_findings(findings)
    return 1 if leaks(findings) and not allow_leak else 0


def show_findings(findings: Sequence[Finding]) -> None:
    """Print what the checks of the user's own parts do not pass; a leak in bold."""
    for finding in findings:
        if finding.outcome != "passed":
            text = f"{finding.check}: {finding.measured}" if finding.outcome == "warning" else leak_sentence([finding])
            console.print(text, markup=False, soft_wrap=True, style="bold" if finding.outcome == "leak" else "")


def train_with_others(
    preset: str,
    overrides: list[str],
    data: str | None,
    name: str | None,
    fresh: bool,
    command: str,
    allow_leak: bool = False,
) -> int:
    """`train_run` in one of several processes; the first one reports for all."""
    processes = SINGLE
    if STORE in os.environ:
        end_with_launcher()
    try:
        with explain_lost():
            processes = join()
            status = train_run(preset, overrides, data, name, fresh, command, allow_leak, processes)
        # now and then a thread of torch's still runs when Python has ended, which aborts the process
        return end_now(status) if processes.size > 1 else status
    except EndedTogether:
        return end_now(TOGETHER)
    except ProcessLost as error:
        if processes.first and STORE not in os.environ:  # otherwise the launcher says which process
            print_error(error)
        return end_now(LOST)
    except ConfigError as error:
        print_error(error)
        return end_now(2)
    except KeyboardInterrupt:
        return end_now(exit_status())
    except Exception as error:
        if is_out_of_memory(type(error).__name__, str(error)):
            print_error(OUT_OF_MEMORY)
            return end_now(2)
        traceback.print_exc()
        return end_now(1)


def write_output_to(path: Path) -> None:
    """From now on, also append the output of this process to a file."""
    with explain_write_errors(path):
        make_folder(path.parent)
        file = open_file(path, "ab", buffering=0)
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def print_reason(reason: str) -> None:
    """The line in place of what could not be shown."""
    console.print(not_shown(reason), markup=False, soft_wrap=True)


def show_sample(model: Transformer, dataset: Dataset, precision: str) -> None:
    """Print generated text, or the model's answers to a few problems or sources."""
    sample = draw_sample(model, dataset, precision)
    if sample.rows:
        console.print(table(f"{len(sample.rows)} {sample.title}", sample.columns, sample.rows))
        return
    console.print(f"[bold]{sample.title}[/]")
    console.print(with_prompt(sample.prompt, sample.text), soft_wrap=True)
