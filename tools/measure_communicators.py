#!/usr/bin/env python3
"""Measures what NCCL communicators cost outside PyTorch's allocator, step by step.

Usage: python3 tools/measure_communicators.py > data/measured/communicators_h200.json
Needs 4 GPUs and PyTorch; NVLink multicast stays off. Prints one JSON object: for communicators
created at first use ("lazy") and at start-up ("eager"), the growth of driver-level memory of rank
0 in MiB after each step. Groups are named by their ranks: s alone, p a pair, q all four.
"""
import json
import os

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

RANKS = 4
GROUPS = {"s": [[0], [1], [2], [3]], "p": [[0, 1], [2, 3]], "q": [[0, 1, 2, 3]]}


class Meter:
    def __init__(self):
        self.steps, self.last = [], 0

    def step(self, name, action):
        action()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        used = (total - free - torch.cuda.memory_reserved()) / 2**20
        self.steps.append([name, round(used - self.last)])
        self.last = used


def create(groups, name, rank):
    for ranks in GROUPS[name[0]]:
        group = dist.new_group(ranks, backend="nccl")
        if rank in ranks:
            groups[name] = (group, len(ranks))


def send_receive(group, peer):
    out = torch.ones(2**20, device="cuda")
    back = out.clone()
    operations = [dist.P2POp(dist.isend, out, peer, group), dist.P2POp(dist.irecv, back, peer, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def measure(rank, mode, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT={"lazy": "29510", "eager": "29520"}[mode])
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    torch.cuda.set_device(rank)
    meter, groups = Meter(), {}
    meter.step("context", lambda: torch.zeros(1, device="cuda"))
    matrix = torch.ones(2**13, 2**13, device="cuda").bfloat16()
    meter.step("gemm", lambda: matrix @ matrix)
    options = {"device_id": torch.device("cuda", rank)} if mode == "eager" else {}
    backend = "nccl" if mode == "eager" else "gloo"
    meter.step("init", lambda: dist.init_process_group(backend, rank=rank, world_size=RANKS, **options))
    for name in ("s1", "p1", "q1", "s2", "s3", "p2", "p3", "q2", "q3", "q4"):
        meter.step(f"create {name}", lambda: create(groups, name, rank))
    one = torch.ones(1, device="cuda")

    def reduce(name, tensor):
        meter.step(f"{name} all_reduce {tensor.numel()}",
                   lambda: dist.all_reduce(tensor, group=groups[name][0]))

    def scatter_gather(name):
        group, ranks = groups[name]
        part = torch.ones(2**22, device="cuda")
        whole = part.repeat(ranks)
        meter.step(f"{name} reduce_scatter", lambda: dist.reduce_scatter_tensor(part, whole, group=group))
        meter.step(f"{name} all_gather", lambda: dist.all_gather_into_tensor(whole, part, group=group))

    for first, second, third in (("s1", "s2", "s3"), ("p1", "p2", "p3"), ("q1", "q2", "q3")):
        reduce(first, one)
        reduce(first, matrix)
        scatter_gather(first)
        reduce(second, one)
        scatter_gather(third)
    meter.step("q4 first peer", lambda: send_receive(groups["q4"][0], rank ^ 1))
    meter.step("q4 second peer", lambda: send_receive(groups["q4"][0], 3 - rank))
    if rank == 0:
        queue.put(meter.steps)
    dist.destroy_process_group()


def main():
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    result = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__,
              "nccl": ".".join(map(str, torch.cuda.nccl.version())), "nvls": False, "unit": "MiB"}
    for mode in ("lazy", "eager"):
        spawn(measure, (mode, queue), RANKS)
        result[mode] = queue.get()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
