"""The W&B mirror: it reads what runs write and logs each into its own W&B run; the only module that imports wandb.

results/<sweep>/
    .mirror.lock                    held by the one mirror that follows the sweep
    wandb/
        mirrored/<run id>.json      what W&B holds of a run, written when its W&B run was closed
        mirror.log                  what the live mirror and wandb printed
        [offline-]run-<time>-<id>/  W&B's own

The run folders are the truth and W&B is a cache: a W&B run that has no file under `mirrored/`, or a file that no longer fits,
is made anew from the first row. Offline its remains are deleted first; online it is resumed and the steps that the server
has are left out. A step is the number of a line of `metrics.jsonl`, so that a replay repeats nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from study.config import RunConfig
from study.counting import parameters
from study.errors import InputError, Problem
from study.records import RunFolder, RunRecord, SweepFolder, write_atomically
from study.schema import Index, Strict, flatten, join_path

if TYPE_CHECKING:
    import wandb

Tracked = Literal["online", "offline"]
Mode = Literal["online", "offline", "disabled"]

DEFAULT_PROJECT = "scaling-study"
POLL_SECONDS = 1.0
RETRY_SECONDS = 30.0
"""How long the live mirror leaves a run alone, or an unreachable server, after an error."""
IDLE_SECONDS = 1800.0
"""A run that wrote no row for so long has its W&B run closed; it is opened again when it goes on."""
INIT_SECONDS = 20.0
FINISH_SECONDS = 300.0
ORPHAN_SECONDS = 20.0
"""What the mirror process may still take when the coordinator has died."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncReport:
    """What a mirroring did: how many runs it mirrored, how many were there already, and why others failed, by run id."""

    mode: Mode
    mirrored: int = 0
    already: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


class Mirrored(Strict):
    """What W&B holds of one run: its rows, whether its record too, in which mode, and the name of W&B's folder."""

    rows: Index
    finished: bool
    mode: Tracked
    wandb_folder: str


def sync(folder: SweepFolder, progress: Callable[[int, int], None] | None = None) -> SyncReport:
    """Mirror all that the runs of a sweep have written by now, and wait for it.

    `progress` hears how many runs are done, of how many. Raises InputError where another mirror follows the sweep.
    """
    return mirror_sweep(folder, progress=progress)


def mirror_sweep(
    folder: SweepFolder, stop: threading.Event | None = None, progress: Callable[[int, int], None] | None = None
) -> SyncReport:
    """Mirror the runs of a sweep: once, or following them until `stop` is set and what they wrote by then is mirrored.

    Ends this process's wandb session, so no W&B run of the caller's survives it. Raises InputError where another mirror
    follows the sweep; a follower gives that one a minute to end.
    """
    logging.getLogger("wandb").propagate = False  # it writes each run's debug.log, every record at INFO
    lock = FileLock(folder.lock_file.with_name(".mirror.lock"), timeout=0 if stop is None else 60)
    try:
        mode = tracking_mode()
        if mode == "disabled":
            return SyncReport(mode)
        with lock:
            mirror = _Mirror(folder, mode)
            while stop is not None and not stop.is_set():
                mirror.pass_over(closing=False)
                stop.wait(POLL_SECONDS)
            return mirror.pass_over(closing=True, progress=progress)
    except Timeout:
        raise InputError.at(str(folder.path), "is being mirrored by another process; wait until its launch ends") from None
    finally:
        _end_session()


def tracking_mode() -> Mode:
    """How wandb would track here, by WANDB_MODE, its settings files and whether someone is logged in.

    Reads the environment, wandb's settings and netrc; asks nobody, touches no network and prints no secret. Raises
    InputError where a setting is one that wandb refuses.
    """
    import wandb
    from wandb.sdk.lib import wbauth

    try:
        settings = wandb.setup(settings=_settings()).settings
    except ValidationError as error:
        details = error.errors(include_input=False)
        raise InputError(Problem(f"W&B setting {join_path(*detail['loc'])}", detail["msg"]) for detail in details) from None
    except wandb.errors.UsageError as error:
        raise InputError.at("W&B settings", str(error)) from None
    if settings.mode in ("disabled", "offline", "dryrun"):
        return "disabled" if settings.mode == "disabled" else "offline"
    try:
        login = wbauth.authenticate_session(host=settings.base_url, source="study", prompt=False, update_session=False)
    except wandb.errors.AuthenticationError as error:
        logger.warning("the W&B login cannot be used, mirroring offline: %s", error)
        return "offline"
    return "online" if login else "offline"


def _end_session() -> None:
    """End wandb's service process; the next W&B run starts another."""
    import wandb

    try:
        wandb.teardown()
    except ConnectionError as error:
        logger.warning("wandb's service had died: %s", error)


def switched_off() -> bool:
    """Whether WANDB_MODE turns tracking off; needs no wandb."""
    return os.environ.get("WANDB_MODE") == "disabled"


def left_behind(folder: SweepFolder) -> list[str]:
    """The ids of the runs of which W&B does not hold all that they wrote."""
    return [
        run.run_id
        for run in folder.runs()
        if (run.record_file.exists() or run.metrics_file.exists()) and not _is_mirrored(folder, run)
    ]


def run_name(config: RunConfig) -> str:
    """The readable name of a run, such as `L2-H128-A2-F512 lr=3e-3 seed=0`."""
    mantissa, exponent = f"{config.recipe.learning_rate:.2e}".split("e")
    return f"{config.architecture.shape_name} lr={float(mantissa):g}e{int(exponent)} seed={config.seed}"


def tracked_config(config: RunConfig) -> dict[str, Any]:
    """A run's configuration under dotted keys, with its parameter totals and its training FLOPs per token by convention."""
    flops = {f"flops_per_token.{convention}": flops for convention, flops in config.flops_per_token.items()}
    return flatten(config.to_dict()) | parameters(config.architecture).totals() | flops


def tracked_summary(record: RunRecord) -> dict[str, Any]:
    """The results of a record; what was not reached is left out, and `exclusion` is there where fits leave the run out."""
    values = record.model_dump(mode="json", exclude_none=True, exclude={"config", "environment", "tags", "schema_version"})
    return values if record.exclusion is None else values | {"exclusion": record.exclusion}


def _settings() -> wandb.Settings:
    """The settings of all W&B runs: metrics only (no console, code, git, host or system metrics), and no endless waits."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        symlink=False,
        use_dot_wandb=False,
        disable_code=True,
        disable_git=True,
        label_disable=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
    )


def _state_file(folder: SweepFolder, run: RunFolder) -> Path:
    return folder.wandb / "mirrored" / f"{run.run_id}.json"


def _state(folder: SweepFolder, run: RunFolder) -> Mirrored | None:
    """What W&B holds of a run; None where nothing is known, or W&B's offline folder is gone."""
    try:
        state = Mirrored.parse(json.loads(_state_file(folder, run).read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, InputError) as error:
        logger.warning("%s is damaged, the run is mirrored anew: %s", _state_file(folder, run), error)
        return None
    return state if state.mode == "online" or (folder.wandb / state.wandb_folder).is_dir() else None


def _is_mirrored(folder: SweepFolder, run: RunFolder, mode: Tracked = "offline") -> bool:
    """Whether W&B holds all that a run wrote; online is also good enough for offline, but not the reverse."""
    state = _state(folder, run)
    if state is None or (mode == "online" and state.mode == "offline") or state.finished != run.record_file.exists():
        return False
    return state.finished or state.rows == _complete_lines(run.metrics_file)


def _complete_lines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as lines:
        return sum(line.endswith(b"\n") for line in lines)


class _Rows:
    """The rows of a growing file of JSON lines, each once; a line without its end is left until it has one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._offset = 0
        self._last = b""

    def new(self) -> Iterator[dict[str, Any]]:
        """The rows that came since; raises ValueError at a line that is not JSON."""
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            lines.seek(self._offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                row = json.loads(line)
                self._offset, self._last = self._offset + len(line), line
                self.count += 1
                yield row

    def rewritten(self) -> bool:
        """Whether the last row is no longer where it was, as when a resumed run drops the rows that it will repeat."""
        if not self._last:
            return False
        with self.path.open("rb") as lines:
            lines.seek(self._offset - len(self._last))
            return lines.read(len(self._last)) != self._last

    def idle(self) -> bool:
        """Whether nothing was written for long."""
        return self.path.exists() and time.time() - self.path.stat().st_mtime > IDLE_SECONDS


class _OpenRun:
    """One run with its W&B run, from the first row on."""

    def __init__(self, folder: SweepFolder, source: RunFolder, mode: Tracked) -> None:
        import wandb

        if not re.fullmatch(r"[0-9a-f]{16}", source.run_id):
            raise InputError.at(str(source.path), "is not named by a run id (16 hex digits)")
        config = source.config()
        self.rows = _Rows(source.metrics_file)
        self._mode = mode
        self._state_file = _state_file(folder, source)
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        self._state_file.unlink(missing_ok=True)
        for remains in folder.wandb.glob(f"*run-*-{source.run_id}*"):
            shutil.rmtree(remains)
        self._run = wandb.init(
            reinit="create_new",
            id=source.run_id,
            project=wandb.setup(settings=_settings()).settings.project or DEFAULT_PROJECT,
            group=folder.name,
            job_type="pretrain",
            name=run_name(config),
            tags=[config.architecture.shape_name],
            config=tracked_config(config),
            dir=str(folder.path),
            mode=mode,
            resume="allow" if mode == "online" else None,
        )
        self._folder = Path(self._run.dir).parent
        self._run.define_metric("trainer/tokens")
        self._run.define_metric("*", step_metric="trainer/tokens")

    def log_new_rows(self) -> None:
        """Log the rows that came since, each under the number of its line."""
        for row in self.rows.new():
            step = self.rows.count - 1
            if step >= self._run.starting_step:
                self._run.log(row, step=step, commit=True)

    def close(self, record: RunRecord | None) -> None:
        """End the W&B run, by its record where it has one and as preempted where not, and note what W&B holds."""
        if record is None:
            self._run.mark_preempting()
        else:
            self._file(record)
        self._run.finish(exit_code=0 if record is not None and record.state == "COMPLETED" else 1)
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} was deleted while it was written")
        state = Mirrored(rows=self.rows.count, finished=record is not None, mode=self._mode, wandb_folder=self._folder.name)
        write_atomically(self._state_file, state.model_dump_json().encode() + b"\n")

    def abandon(self) -> None:
        """End the W&B run after an error, noting nothing, so that it is made anew."""
        self._run.finish(exit_code=1)

    def _file(self, record: RunRecord) -> None:
        self._run.summary.update(tracked_summary(record))
        if record.environment is not None:
            self._run.config.update(flatten(record.environment.model_dump(exclude_none=True), "environment"))
        verdict = ("excluded",) if record.exclusion else ()
        self._run.tags = (*self._run.tags, *(tag[:64] for tag in record.tags if tag), *verdict)


class _Mirror:
    """The runs of one sweep on their way to W&B; only those that are being written stay open between passes."""

    def __init__(self, folder: SweepFolder, mode: Tracked) -> None:
        self._folder = folder
        self._mode = mode
        self._open: dict[str, _OpenRun] = {}
        self._finished: set[str] = set()
        self._mirrored: set[str] = set()
        self._already: set[str] = set()
        self._failed: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._server_error = ""
        self._server_retry_at = 0.0

    def pass_over(self, closing: bool, progress: Callable[[int, int], None] | None = None) -> SyncReport:
        """Log what is new in every run; the last pass, `closing`, ends every W&B run. One run's trouble stays its own."""
        runs = self._folder.runs()
        for number, run in enumerate(runs, start=1):
            if closing or time.monotonic() >= self._retry_at.get(run.run_id, 0.0):
                try:
                    self._advance(run, closing)
                except Exception as error:  # wandb's errors have no common base, and one run must not end the others
                    self._fail(run.run_id, error)
            if progress is not None:
                progress(number, len(runs))
        return SyncReport(self._mode, len(self._mirrored), len(self._already - self._mirrored), dict(self._failed))

    def _advance(self, run: RunFolder, closing: bool) -> None:
        """Bring one run's W&B run up to date, and end it where no more rows are expected."""
        ended = run.record_file.exists()  # asked before the rows are read: no row follows a record
        if run.run_id in self._open and self._open[run.run_id].rows.rewritten():
            self._open.pop(run.run_id).abandon()
        if run.run_id not in self._open:
            if (run.run_id in self._finished and not closing) or self._is_settled(run, ended):
                return
            self._open[run.run_id] = self._opened(run)
        opened = self._open[run.run_id]
        opened.log_new_rows()
        if ended or closing or opened.rows.idle():
            opened.close(run.record())
            del self._open[run.run_id]
            self._mirrored.add(run.run_id)
            if ended:
                self._finished.add(run.run_id)
        self._failed.pop(run.run_id, None)

    def _is_settled(self, run: RunFolder, ended: bool) -> bool:
        """Whether nothing is to be done for a run that is not open: it wrote nothing yet, or W&B holds it."""
        if not ended and not run.metrics_file.exists():
            return True
        if not _is_mirrored(self._folder, run, self._mode):
            return False
        self._already.add(run.run_id)
        if ended:
            self._finished.add(run.run_id)
        return True

    def _opened(self, run: RunFolder) -> _OpenRun:
        """The run with a W&B run; a server that was silent a moment ago is not asked again for each of many runs."""
        import wandb

        if time.monotonic() < self._server_retry_at:
            raise TimeoutError(self._server_error)
        try:
            return _OpenRun(self._folder, run, self._mode)
        except wandb.errors.CommError as error:
            self._server_error, self._server_retry_at = str(error), time.monotonic() + RETRY_SECONDS
            raise

    def _fail(self, run_id: str, error: Exception) -> None:
        """Note why a run could not be mirrored; it is made anew later."""
        logger.warning(
            "run %s is not mirrored: %s", run_id, error, exc_info=not isinstance(error, OSError | ValueError | InputError)
        )
        self._failed[run_id] = f"{type(error).__name__}: {error}"
        self._retry_at[run_id] = time.monotonic() + RETRY_SECONDS
        opened = self._open.pop(run_id, None)
        if opened is not None:
            try:
                opened.abandon()
            except Exception:  # the run has failed already; whatever wandb says now is only worth a line
                logger.exception("the W&B run %s did not end", run_id)
        if not self._open:
            _end_session()  # in case that wandb's service is what failed: it crashes on answers that it does not expect


class MirrorProcess:
    """The mirror of a sweep in a process and session of its own, from the start of a launch to its end.

    Nothing here raises or waits for W&B: a mirror that cannot start, hangs or dies only leaves runs behind, which
    `study sync` mirrors later. The process ends by itself when its parent does.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the mirror is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does nothing where WANDB_MODE is `disabled`."""
        if switched_off():
            return
        command = [sys.executable, "-P", "-m", "study.sweeping.mirror", str(self._folder.path.absolute())]
        with contextlib.ExitStack() as stack:
            try:
                self._folder.wandb.mkdir(exist_ok=True)
                output: int | IO[bytes] = stack.enter_context((self._folder.wandb / "mirror.log").open("ab"))
            except OSError as error:
                logger.warning("the W&B mirror has no log: %s", error)
                output = subprocess.DEVNULL
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
                )
            except OSError as error:
                logger.warning("the W&B mirror could not start, `study sync` does its work later: %s", error)

    def stop(self, timeout_seconds: float) -> int:
        """Ask the mirror to mirror what is there and end, kill it after `timeout_seconds`; the number of runs left behind."""
        if switched_off():
            return 0
        if self._process is not None:
            try:
                self._process.communicate(f"{timeout_seconds}".encode(), timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        return len(left_behind(self._folder))


def main() -> None:
    """Follow the sweep whose folder is the argument, until standard input says in how many seconds to end, or closes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    os.nice(10)
    stop = threading.Event()
    threading.Thread(target=_await_stop, args=(stop,), daemon=True).start()
    logger.info("%s", mirror_sweep(SweepFolder(Path(sys.argv[1])), stop))


def _await_stop(stop: threading.Event) -> None:
    """Set `stop` when the parent asks or dies, and end the process when its time is over, hanging in W&B or not."""
    request = os.read(sys.stdin.fileno(), 64)
    stop.set()
    time.sleep(float(request) if request else ORPHAN_SECONDS)
    logger.error("W&B did not answer in time; `study sync` mirrors what is missing")
    os._exit(1)


if __name__ == "__main__":
    main()
