"""What the person watching sees: stages with their time, and one row per prompt."""

from __future__ import annotations

import sys
import time

COLUMNS = (("prompt", 13), ("in", 5), ("out", 4), ("blocks", 7), ("bytes", 11), ("ms", 7), ("path", 10), ("text", 8))


class Report:
    """Prints as it goes, so that a run that hangs shows where. `failures` decides the exit status."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.failures: list[str] = []

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def stage(self, title: str) -> None:
        print(f"\n[{time.monotonic() - self._start:6.1f} s] {title}", flush=True)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        print(f"  FAILED: {text}", flush=True)

    def require(self, held: bool, promise: str, otherwise: str) -> None:
        """One promise of the demo: said when it held, counted when it did not."""
        if held:
            self.note(f"ok: {promise}")
        else:
            self.fail(f"{promise}: {otherwise}")

    def header(self) -> None:
        self._line([title for title, _ in COLUMNS])

    def row(self, *cells: object) -> None:
        self._line([str(cell) for cell in cells])

    def _line(self, cells: list[str]) -> None:
        padded = [
            cell.ljust(width) if i in (0, 6, 7) else cell.rjust(width)
            for i, (cell, (_, width)) in enumerate(zip(cells, COLUMNS, strict=True))
        ]
        print("  " + " ".join(padded).rstrip(), flush=True)

    def finish(self) -> int:
        """The exit status: 0 only if all of it held."""
        seconds = time.monotonic() - self._start
        if self.failures:
            print(f"\n{len(self.failures)} promise(s) did not hold after {seconds:.0f} s:", file=sys.stderr)
            for failure in self.failures:
                print(f"  - {failure}", file=sys.stderr)
            return 1
        print(f"\nAll of it held, in {seconds:.0f} s.", flush=True)
        return 0
