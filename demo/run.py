"""`make demo`: real servers, end to end. Exit status 0 only if everything that is promised below held.

1. bytes     two processes move 64 MiB through moontide.Engine, both ways, and compare them
2. measure   one ordinary vLLM server answers the prompts: what it says is right
3. hand-over a prefill and a decode server, joined by Moontide, behind its router: the same text
4. pool      the prefill server is restarted and finds what it had in the pool: the same text
5. crash     the prefill server is killed in mid-request: an answer or a clear error within seconds, and the decode
             server goes on alone
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from demo import bytes as byte_demo
from demo.client import healthy
from demo.cluster import Cluster
from demo.compare import References, collect
from demo.processes import DemoError, Fleet, end_on_signals, free_port
from demo.prompts import after_the_kill, batches, for_the_kill
from demo.report import Report
from demo.servers import MODEL, ROOT, VLLM_PYTHON, vllm_command, vllm_environment
from demo.stages import crash, hand_over, reuse

START_SECONDS = 300


def make_model(report: Report) -> None:
    command = [str(VLLM_PYTHON), "-m", "demo.tiny_model", str(MODEL)]
    done = subprocess.run(command, cwd=ROOT, env=vllm_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"the model could not be made:\n{done.stderr[-2000:]}")
    report.note(done.stdout.strip() or f"{MODEL} is there already")


def measure(fleet: Fleet, report: Report) -> References:
    port = free_port()
    ordinary = fleet.start("ordinary", vllm_command(port), vllm_environment())
    report.note(f"up after {ordinary.wait_healthy(lambda: healthy(port), START_SECONDS):.0f} s")
    wanted = [*batches(), for_the_kill(), *([prompt] for prompt in after_the_kill())]
    references = collect(port, wanted, report.note)
    ordinary.stop()
    report.note(f"{len(references.answers)} prompts answered alone and at once, {len(references.replaced)} replaced")
    return references


def run(report: Report, fleet: Fleet) -> None:
    report.stage("the model: a tiny Llama with random weights, and a tokenizer")
    make_model(report)
    report.stage("1. bytes: two processes move 64 MiB and compare them")
    byte_demo.main()
    report.stage("2. measure: what one ordinary vLLM server answers")
    references = measure(fleet, report)
    ordinary, (killed, *alone) = references.batches[:-3], references.batches[-3:]
    report.stage("3. hand-over: master, node, prefill, decode and router")
    cluster = Cluster(fleet, report)
    cluster.start()
    hand_over(cluster, report, ordinary, references)
    report.stage("4. pool: the prefill server is restarted, the prompts are the same")
    reuse(cluster, report, ordinary, references)
    report.stage("5. crash: the prefill server is killed in mid-request")
    crash(cluster, report, killed, alone, references)
    report.require(cluster.master.running() and cluster.node.running(), "master and node outlived it all", "one ended")


def main() -> int:
    end_on_signals()
    report = Report()
    logs = Path(tempfile.mkdtemp(prefix="moontide-demo-"))
    print(f"logs: {logs}", flush=True)
    with Fleet(logs) as fleet:
        try:
            run(report, fleet)
        except DemoError as error:
            report.fail(str(error))
        if report.failures:
            for server in fleet:
                print(f"\n--- the end of {server.log}\n{server.tail(15)}", file=sys.stderr)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
