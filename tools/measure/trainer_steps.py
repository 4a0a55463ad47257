#!/usr/bin/env python3
"""Step times of many small cases of transformers' Trainer, one after the other in this process.

usage: trainer_steps.py CASES.jsonl OUT.jsonl [--steps N] [--cpu]

For what hosts take: starting PyTorch for every case would take longer than its steps, and two processes are seldom
equally fast. A case is trainer_run.py's, of one process; all of a file have a fake_group of two ranks, or none has.
A line of OUT: id, status, message and the times of all steps (s), of which the first ones warm up.
"""
import argparse
import gc
import json
import statistics
import types

import torch
import trainer_run

FAKE_RANKS, WARM_UP = 2, 3


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1][len("usage: ") :])
    parser.add_argument("cases")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cpu", action="store_true")
    chosen = parser.parse_args()
    with open(chosen.cases) as file:
        cases = [trainer_run.DEFAULTS | json.loads(line) for line in file]
    groups = {bool(case.get("fake_group")) for case in cases}
    if len(groups) > 1:
        raise SystemExit("trainer_steps.py: some cases have a fake_group and some have none; expected one kind a file")
    if groups == {True}:
        trainer_run.start_fake_group(FAKE_RANKS)
    options = types.SimpleNamespace(cpu=chosen.cpu, steps=chosen.steps, trace=None, native=False, shared=True)
    with open(chosen.out, "a") as out:
        for case in cases:
            status, message, times, _ = trainer_run.train(case, options)
            out.write(json.dumps({"id": case["id"], "status": status, "message": message, "step_times_s": times}) + "\n")
            out.flush()
            print(f"{case['id']:28} {status} {statistics.median(times[WARM_UP:] or [0]):.4f} s", flush=True)
            gc.collect()
            if not chosen.cpu:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
