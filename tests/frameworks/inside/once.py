"""One life of an engine: answers a prompt and says how. usage: once.py PROMPT [EXTRA-JSON [OPTIONS-JSON]]"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    from vllm_engine import VllmEngine, until

    extra, options = (json.loads(argument) for argument in (*sys.argv[2:], "{}", "{}")[:2])
    engine = VllmEngine(extra, **options)
    # A pool that answers is there before the first request; one that does not is not waited for.
    door = engine.connector._scheduler._door
    until(lambda: door is None or door.store() is not None or door._shut_until > 0)
    answer = engine.run(sys.argv[1], tokens=16)
    saver = engine.worker._worker.half._saver

    def saved() -> bool:
        saver.poll()
        return saver.blocks_under_way == 0

    until(saved)
    engine.settle()
    for half in (engine.worker, engine.connector):
        half._stats.drain()
    line = {"tokens": answer.tokens, "cached": answer.cached, "prompt": len(answer.prompt), "counts": engine.counts}
    print("RESULT " + json.dumps(line), flush=True)
    # Nothing may rely on a clean exit.
    os._exit(0)


if __name__ == "__main__":
    main()
