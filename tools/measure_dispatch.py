#!/usr/bin/env python3
"""Measures DeepEP's exchange of tokens between the GPUs of one NVLink domain, as Megatron-LM calls it.

Usage: python3 tools/measure_dispatch.py 4 2 > data/measured/dispatch_h100.json
Needs GPUs, PyTorch and DeepEP v1.2.1 (package deep_ep), which may be built without NVSHMEM. Prints
one JSON object for each number of ranks with, of each case, the bytes outside PyTorch's allocator
that a buffer for its width takes, the rows that rank 0 receives and the median seconds of dispatch
and combine, in bf16, each from the call to the end of its kernels.
"""
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

SMS = 20  # Megatron-LM core_v0.16.1, moe_deepep_num_sms
TURNS = 30
# Tokens, hidden size, experts on each rank, experts of a token; with groups: all, chosen.
CASES = [(4096, 7168, 32, 8, 1, 1), (4096, 7168, 64, 8, 8, 4), (4096, 4096, 16, 8, 1, 1),
         (8192, 4096, 2, 2, 1, 1), (8192, 2048, 32, 8, 1, 1), (2048, 7168, 64, 8, 1, 1)]


def outside_allocator():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def choose(tokens, experts, topk, groups, chosen):
    """Each token's experts at random, of `chosen` of `groups` groups at random."""
    scores = torch.rand(tokens, experts, device="cuda")
    if groups > 1:
        kept = torch.rand(tokens, groups, device="cuda").topk(chosen, dim=-1).indices
        mask = torch.zeros(tokens, groups, device="cuda").scatter_(1, kept, 1.0)
        scores += 2 * mask.repeat_interleave(experts // groups, dim=1)
    return scores.topk(topk, dim=-1).indices


def timed(action):
    """Median seconds, the slowest rank's of every turn."""
    seconds = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        dist.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) / 1e3], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds.append(slowest.item())
    return statistics.median(seconds)


def measure_case(ranks, case):
    from deep_ep import Buffer

    tokens, hidden, local, topk, groups, chosen = case
    experts = local * ranks
    configs = Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)
    near = max(config.get_nvl_buffer_size_hint(2 * hidden, ranks) for config in configs)
    before = outside_allocator()
    buffer = Buffer(dist.group.WORLD, near, 0)
    taken = outside_allocator() - before
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    indices = choose(tokens, experts, topk, groups, chosen)
    weights = torch.rand(tokens, topk, device="cuda")
    state = {}

    def dispatch():
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(indices, experts)
        state["rows"], _, _, _, state["handle"], _ = buffer.dispatch(
            x, topk_idx=indices, topk_weights=weights, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert)

    dispatch_s = timed(dispatch)
    rows = state["rows"].clone()
    combine_s = timed(lambda: buffer.combine(rows, state["handle"]))
    return {"tokens": tokens, "hidden": hidden, "experts": experts, "topk": topk, "groups": groups,
            "topk_groups": chosen, "buffer_bytes": taken, "received_rows": rows.shape[0],
            "dispatch_s": dispatch_s, "combine_s": combine_s}


def measure(rank, ranks, queue):
    from deep_ep import Buffer

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29530", NCCL_NVLS_ENABLE="0")
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    dist.barrier()
    Buffer.set_num_sms(SMS)
    cases = [measure_case(ranks, case) for case in CASES]
    if rank == 0:
        queue.put({"ranks": ranks, "sms": SMS, "gpu": torch.cuda.get_device_name(),
                   "torch": torch.__version__, "cases": cases})
    dist.barrier()
    dist.destroy_process_group()


def main():
    runs = []
    for ranks in map(int, sys.argv[1:]):
        queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
        spawn(measure, (ranks, queue), nprocs=ranks)
        runs.append(queue.get())
    print(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
