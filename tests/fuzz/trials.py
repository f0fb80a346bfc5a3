"""One input at a time: what its reader makes of it, within time and memory.

``python tests/fuzz/trials.py`` prints a table of all readers; ``python tests/fuzz/trials.py READER NUMBER`` tries
one input again and shows what comes.
"""

from __future__ import annotations

import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from mutations import as_bytes, mutated
from readers import READERS, Reader

from weft.errors import LONGEST_MESSAGE, InDoubt, WeftError

MOST_S = 5.0
"""CPU-seconds of an input; the machine may be busy with others."""
COMPILING_S = 120.0
MOST_BYTES = 10**9
TOO_SLOW = f"takes more than {MOST_S:g} s"


class TooSlow(BaseException):
    """Raised by the alarm."""


@dataclass(slots=True)
class Tally:
    """What became of a reader's inputs."""

    reader: Reader
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    slowest: int = 0
    faults: dict[int, str] = field(default_factory=dict)

    def row(self) -> str:
        counts = f"{self.accepted + self.refused + len(self.faults):>7}{self.refused:>9}{self.accepted:>9}"
        return f"{self.reader.name:<58}{counts}{len(self.faults):>7}{self.slowest_s:>9.3f}"


def tried(reader: Reader, numbers: range, most_faults: int = 10) -> Tally:
    """Give a reader the inputs of these numbers; it has passed its seeds before."""
    tally = Tally(reader)
    seeds = [as_bytes(seed) if isinstance(seed, str) else seed for seed in reader.seeds()]
    with workplace() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", InDoubt)
        for seed in seeds:
            fresh(folder)
            reader.read(seed, folder)
        with limits():
            for number in numbers:
                raw = input_of(reader, seeds, number)
                fresh(folder)
                fault = _try(reader, raw, folder, tally, number)
                if fault == TOO_SLOW:  # it may have been the first to need a kernel, which was compiled
                    fresh(folder)
                    _try(reader, raw, folder, Tally(reader), number, most_s=COMPILING_S)
                    fresh(folder)
                    fault = _try(reader, raw, folder, tally, number)
                if fault:
                    tally.faults[number] = f"{fault}: {raw[:200]!r}"
                    if len(tally.faults) >= most_faults:
                        break
    return tally


def input_of(reader: Reader, seeds: list[bytes], number: int) -> bytes:
    return mutated(Random(f"{reader.name} {number}"), seeds, reader.form)


def _try(reader: Reader, raw: bytes, folder: Path, tally: Tally, number: int, most_s: float = MOST_S) -> str | None:
    before, started = _peak(), time.process_time()
    fault = None
    signal.setitimer(signal.ITIMER_PROF, most_s)
    try:
        reader.read(raw, folder)
        tally.accepted += 1
    except WeftError as error:
        fault = unfit(str(error))
        tally.refused += fault is None
    except TooSlow:
        fault = TOO_SLOW
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"{type(error).__name__}: {str(error)[:100]} ({Path(place.filename).name}:{place.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    took = time.process_time() - started
    if took > tally.slowest_s:
        tally.slowest_s, tally.slowest = took, number
    return fault or (f"takes {_peak() - before:,} bytes" if _peak() - before > MOST_BYTES else None)


def unfit(message: str) -> str | None:
    """What is wrong with a message."""
    if not message.strip() or len(message) > LONGEST_MESSAGE:
        return f"a message of {len(message)} characters"
    odd = [one for one in message if not one.isprintable() and one not in "\n\t\u00a0"]
    return f"a message with {odd[0]!r}" if odd else None


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def limits() -> Iterator[None]:
    """An alarm, and a bound on the memory that is taken beyond what there is."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    former = signal.signal(signal.SIGPROF, ring)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, former)


@contextmanager
def workplace() -> Iterator[Path]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="weft-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder) / "input"


def fresh(folder: Path) -> None:
    """Empty the folder of one input."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()


def again(name: str, number: int) -> None:
    """One input, with what it raises."""
    reader = READERS[name]
    seeds = [as_bytes(seed) if isinstance(seed, str) else seed for seed in reader.seeds()]
    raw = input_of(reader, seeds, number)
    print(f"{raw[:2000]!r}\n{len(raw):,} bytes")
    with workplace() as folder:
        fresh(folder)
        print(reader.read(raw, folder))


def table(inputs: int, names: list[str]) -> None:
    share = -(-inputs // len(READERS))
    print(f"{'reader':<58}{'inputs':>7}{'refused':>9}{'accepted':>9}{'faults':>7}{'slowest':>9}")
    for name in names or READERS:
        tally = tried(READERS[name], range(share))
        print(tally.row(), tally.slowest, flush=True)
        for number, fault in tally.faults.items():
            print(f"  {number}: {fault[:260]}")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2].isdigit():
        again(sys.argv[1], int(sys.argv[2]))
    else:
        table(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, sys.argv[2:])
