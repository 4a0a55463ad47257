#!/usr/bin/env python3
"""Runs the cases of a file with trainer_run.py, each in processes of its own, and writes each one's line at once.

usage: trainer_runs.py CASES.jsonl OUT.jsonl [--trace FOLDER] [--native] [--parallel N] [--gpus G] [--only ID,ID..]
                                             [--limit-s S] [--minutes M] [--steps N] [--cpu]

--trace: what the allocator did, as FOLDER/ID.json.gz.
--parallel: cases of one process run N at a time, spread over G GPUs (1); what the driver says of the GPU is left out where
N is above G, and times mean nothing.
--limit-s: what a case may take (90). --minutes: no case starts later.
A case that fails is written with status "crash", "oom" or "timeout" and the last lines that it printed; one whose id
OUT already holds is not run again.
"""
import argparse
import concurrent.futures
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LAST_CHARACTERS = 1500
GIB = 2**30


def processes_of(case):
    return 1 if case.get("fake_group") else case.get("world", 1)


def command_of(case, folder, options):
    command = [sys.executable]
    if processes_of(case) > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes_of(case))]
    command += [os.path.join(HERE, "trainer_run.py"), os.path.join(folder, "case.json"), "--out", os.path.join(folder, "out")]
    if options.trace:
        command += ["--trace", os.path.join(os.path.abspath(options.trace), case["id"] + ".json.gz")]
    if options.steps:
        command += ["--steps", str(options.steps)]
    if options.parallel > options.gpus and processes_of(case) == 1:
        command.append("--shared")
    return command + [name for name in ("--native", "--cpu") if getattr(options, name[2:])]


def failure(case, status, printed):
    # What the launcher adds behind the words of the process that failed says nothing of why.
    printed = printed.split("torch/distributed/elastic/multiprocessing/api.py")[0] or printed
    if "out of memory" in printed.lower():
        status = "oom"
    return case | {"measured": {"status": status, "step_times_s": [], "ranks": [], "message": printed[-LAST_CHARACTERS:]}}


def run_case(case, gpu, options):
    """The line of the case, and the seconds it took."""
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="trainer_case_") as folder:
        with open(os.path.join(folder, "case.json"), "w") as file:
            json.dump(case, file)
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        if gpu is not None:
            environment |= {"CUDA_VISIBLE_DEVICES": str(gpu), "OMP_NUM_THREADS": "2"}
        with open(os.path.join(folder, "log"), "w+", errors="replace") as log:
            process = subprocess.Popen(command_of(case, folder, options), stdout=log, stderr=subprocess.STDOUT,
                                       env=environment, start_new_session=True)  # fmt: skip
            status = "crash"
            try:
                process.wait(options.limit_s)
            except subprocess.TimeoutExpired:
                status = "timeout"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.seek(0)
            printed = log.read()
        written = os.path.join(folder, "out")
        if os.path.exists(written):
            with open(written) as file:
                return json.loads(file.read()), time.time() - began
    return failure(case, status, printed), time.time() - began


class Lines:
    """OUT and the table of what was measured."""

    def __init__(self, path):
        self.path, self.rows, self.lock = path, [], threading.Lock()

    def add(self, line, seconds):
        measured = line["measured"]
        ranks = measured["ranks"] or [{}]
        names = ("peak_allocated", "allocated_between_steps")
        peak, between = (max(rank.get(name) or 0 for rank in ranks) / GIB for name in names)
        step = measured["step_times_s"][-1] if measured["step_times_s"] else 0
        row = f"{line['id']:40} {measured['status']:8} {peak:9.3f} {between:9.3f} {step:8.4f} {seconds:6.1f}"
        with self.lock:
            with open(self.path, "a") as file:
                file.write(json.dumps(line) + "\n")
            self.rows.append(row)
            print(row, flush=True)
            if measured["status"] != "ok":
                print("    " + measured.get("message", "").strip()[-400:].replace("\n", "\n    "), flush=True)

    def print_table(self):
        print(f"{'id':40} {'status':8} {'peak GiB':>9} {'between':>9} {'step s':>8} {'took s':>6}")
        print("\n".join(sorted(self.rows)))


def cases_to_run(options):
    with open(options.cases) as file:
        cases = [json.loads(line) for line in file if line.strip()]
    done = set()
    if os.path.exists(options.out):
        with open(options.out) as file:
            done = {json.loads(line)["id"] for line in file}
    wanted = options.only.split(",") if options.only else [case["id"] for case in cases]
    return [case for case in cases if case["id"] in wanted and case["id"] not in done]


def run_all(cases, lines, options):
    """Cases of one rank first, side by side; then those of several, one after another."""
    began = time.time()
    gpus = queue.SimpleQueue()
    for worker in range(options.parallel):
        gpus.put(worker % options.gpus)

    def run(case):
        alone = processes_of(case) == 1
        gpu = gpus.get() if alone else None
        try:
            if options.minutes and time.time() - began > 60 * options.minutes:
                print(f"{case['id']:40} not started", flush=True)
                return
            lines.add(*run_case(case, gpu, options))
        finally:
            if alone:
                gpus.put(gpu)

    with concurrent.futures.ThreadPoolExecutor(options.parallel) as workers:
        list(workers.map(run, [case for case in cases if processes_of(case) == 1]))
    for case in cases:
        if processes_of(case) > 1:
            run(case)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("cases")
    parser.add_argument("out")
    for name in ("--trace", "--only"):
        parser.add_argument(name)
    for name in ("--native", "--cpu"):
        parser.add_argument(name, action="store_true")
    for name, value in (("--parallel", 1), ("--gpus", 1), ("--limit-s", 90), ("--steps", None)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--minutes", type=float)
    options = parser.parse_args()
    if options.trace:
        os.makedirs(options.trace, exist_ok=True)
    lines = Lines(options.out)
    run_all(cases_to_run(options), lines, options)
    lines.print_table()


if __name__ == "__main__":
    main()
