#!/usr/bin/env python3
"""How fast this host launches eager PyTorch, and host_slowdown for its GPU or cluster file.

usage: measure_host_speed.py
A Llama layer of plain PyTorch on tensors so small that its kernels are never waited for: what the
forward and the backward pass take is the host's time. Medians of 20 rounds of 40 steps of 8 layers.
Nothing else should run on this host meanwhile.
"""
import json
import statistics
import time

import torch
from torch.nn import functional

HIDDEN, FFN, HEADS, TOKENS, LAYERS = 256, 512, 4, 64, 8
WARMUPS, STEPS, ROUNDS = 5, 40, 20
# Microseconds of a layer, both ways, on a host of host_slowdown 1 (a DGX H100): with these the
# estimates of 46 steps that waited for four hosts are met in the median, single frameworks within a
# fifth (data/measured/host_steps_h100.jsonl). No DGX has been measured with this script.
UNIT_US = 1050


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda rows, columns: torch.nn.Linear(rows, columns, bias=False)
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(HIDDEN), torch.nn.RMSNorm(HIDDEN)])
        self.query, self.key, self.value, self.out = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.gate, self.up, self.down = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def heads(self, projected, angles):
        x = projected.view(1, TOKENS, HEADS, HIDDEN // HEADS)
        if angles is not None:
            first, second = x.chunk(2, dim=-1)
            x = x * angles + torch.cat((-second, first), dim=-1) * angles
        return x.transpose(1, 2)

    def forward(self, x, angles):
        y = self.norms[0](x)
        attended = functional.scaled_dot_product_attention(
            self.heads(self.query(y), angles), self.heads(self.key(y), angles),
            self.heads(self.value(y), None), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(1, TOKENS, HIDDEN))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def host_us_per_layer():
    """Microseconds of a layer: {"forward": F, "backward": B}."""
    layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS)).to("cuda", torch.bfloat16)
    start = torch.randn(1, TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    angles = torch.randn(TOKENS, 1, HIDDEN // HEADS, device="cuda", dtype=torch.bfloat16)
    forward, backward = [], []
    for step in range(WARMUPS + STEPS):
        layers.zero_grad()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        x = start
        for layer in layers:
            x = layer(x, angles)
        loss = x.sum()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        if step >= WARMUPS:
            forward.append(middle - begin)
            backward.append(end - middle)
    torch.cuda.synchronize()
    return {name: round(1e6 * statistics.median(times) / LAYERS, 1)
            for name, times in (("forward", forward), ("backward", backward))}


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("found no GPU, expected one: on a CPU the kernels' own time counts")
    rounds = [host_us_per_layer() for _ in range(ROUNDS)]
    layer = {way: statistics.median(one[way] for one in rounds) for way in ("forward", "backward")}
    print(json.dumps({"host_us_per_layer": layer,
                      "host_slowdown": round(sum(layer.values()) / UNIT_US, 2)}))
