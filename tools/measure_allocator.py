#!/usr/bin/env python3
"""Measures PyTorch's CUDA caching allocator on allocation traces, for the test of its replay.

Usage: python3 tools/measure_allocator.py > data/measured/allocator/traces.jsonl
Needs one GPU and PyTorch. One JSON line per trace and allocator setting: the events
([id, bytes], bytes 0 frees) and what the allocator reported: the peaks of allocated and
reserved bytes with memory to spare, and the smallest limit (set_per_process_memory_fraction,
2 MiB steps) at which the same trace still runs.
"""
import json
import os
import random
import subprocess
import sys

MIB = 2**20


def random_sizes(seed, low, high, live_limit, steps):
    """Log-uniform sizes, random frees: many splits, merges and misfits."""
    rng = random.Random(seed)
    live, events, next_id = [], [], 0
    for _ in range(steps):
        if live and (len(live) >= live_limit or rng.random() < 0.45):
            events.append([live.pop(rng.randrange(len(live))), 0])
        else:
            size = int(low * (high / low) ** rng.random())
            events.append([next_id, size])
            live.append(next_id)
            next_id += 1
    events += [[i, 0] for i in live]
    return events


def training_like(layers, hidden_bytes, ffn_bytes, microbatches, in_flight, first_step_state):
    """Weights, then steps of saved activations and temporaries, optimizer state after step one."""
    events, next_id = [], 0

    def new(size):
        nonlocal next_id
        events.append([next_id, size])
        next_id += 1
        return next_id - 1

    def free(i):
        events.append([i, 0])

    for _ in range(layers):
        new(3 * hidden_bytes)
        new(ffn_bytes // 2)
    for step in range(2):
        saved = []

        def forward():
            kept = []
            for _ in range(layers):
                kept += [new(hidden_bytes), new(hidden_bytes // 4096), new(hidden_bytes)]
                wide = new(2 * ffn_bytes)
                scratch = new(ffn_bytes)
                kept += [wide, new(ffn_bytes)]
                free(scratch)
            saved.append(kept)

        def backward():
            kept = saved.pop(0)
            gradient = new(hidden_bytes)
            while kept:
                out, wide, norm, stat, x = (kept.pop() for _ in range(5))
                free(out)
                wide_gradient = new(2 * ffn_bytes)
                free(wide)
                lower = new(hidden_bytes)
                free(wide_gradient)
                free(norm)
                free(stat)
                free(gradient)
                free(x)
                gradient = lower
            free(gradient)

        for m in range(microbatches):
            forward()
            if len(saved) == in_flight:
                backward()
        while saved:
            backward()
        if step == 0 and first_step_state:
            for _ in range(layers):
                new(6 * hidden_bytes)
                new(ffn_bytes)
        scratch = [new(hidden_bytes * 2 + 512 * k) for k in range(layers)]
        for i in scratch:
            free(i)
    return events


TRACES = {
    "small_blocks": random_sizes(1, 256, 1 * MIB, 400, 1500),
    "around_one_mib": random_sizes(2, MIB // 4, 4 * MIB, 200, 1200),
    "medium_1_to_10_mib": random_sizes(3, 1 * MIB, 10 * MIB, 120, 1200),
    "large_10_to_300_mib": random_sizes(4, 10 * MIB, 300 * MIB, 60, 1200),
    "all_sizes": random_sizes(5, 512, 500 * MIB, 150, 1800),
    "all_sizes_few_live": random_sizes(6, 512, 900 * MIB, 12, 1200),
    "training_8_layers": training_like(8, 64 * MIB, 112 * MIB, 4, 1, True),
    "training_pipeline_4_in_flight": training_like(4, 32 * MIB, 56 * MIB, 8, 4, True),
    "training_odd_sizes": training_like(6, 13 * MIB + 4096 * 3, 45 * MIB + 777 * 512, 5, 2, True),
    "training_no_new_state": training_like(5, 20 * MIB, 70 * MIB, 3, 1, False),
    "training_small": training_like(6, 3 * MIB, 5 * MIB + 1024, 6, 3, True),
    "training_tiny": training_like(12, 300 * 1024, 700 * 1024, 4, 2, True),
}


def play(torch, events):
    live = {}
    for i, size in events:
        if size:
            live[i] = torch.empty(size, dtype=torch.uint8, device="cuda")
        else:
            del live[i]
    live.clear()


def survives(torch, events, limit, total):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        play(torch, events)
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def measure(setting):
    import torch
    total = torch.cuda.get_device_properties(0).total_memory
    for name, events in TRACES.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_allocated() == 0
        play(torch, events)
        allocated = torch.cuda.max_memory_allocated()
        reserved = torch.cuda.max_memory_reserved()
        low, high = allocated // (2 * MIB) - 1, -(-reserved // (2 * MIB))
        while high - low > 1:  # low fails, high survives
            middle = (low + high) // 2
            if survives(torch, events, middle * 2 * MIB + 4096, total):
                high = middle
            else:
                low = middle
        print(json.dumps({
            "trace": name, "allocator": setting, "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(0), "allocated": allocated, "reserved": reserved,
            "required": high * 2 * MIB, "events": events}, separators=(",", ":")), flush=True)


def main():
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    for setting, conf in (("caching", ""), ("caching_expandable", "expandable_segments:True")):
        env = dict(os.environ, PYTORCH_ALLOC_CONF=conf, PYTORCH_CUDA_ALLOC_CONF=conf)
        subprocess.run([sys.executable, __file__, setting], env=env, check=True)


if __name__ == "__main__":
    main()
