#!/usr/bin/env python3
"""Measures what linear layers of Transformer Engine take in bf16 and by recipe of fp8.

Usage: python3 tools/measure_fp8_products.py > data/measured/fp8_products_h100.csv
Needs a GPU, PyTorch and Transformer Engine 2. Prints for each layer [m, k] -> [m, n] (of as many
experts, m in all) and recipe the microseconds of kernels that multiply and of all others, forward
and backward once, mean of ten steps. A step that is not the first of its batch, as here each is,
would not round the weight again.
"""
import torch
import transformer_engine.pytorch as te
from torch.profiler import ProfilerActivity, profile
from transformer_engine.common.recipe import (DelayedScaling, Float8BlockScaling,
                                              Float8CurrentScaling)

RECIPES = {"bf16": None, "delayed": DelayedScaling(), "tensorwise": Float8CurrentScaling(),
           "blockwise": Float8BlockScaling()}
# m, n, k, experts (0: one layer without)
LAYERS = [(4096, 8192, 4096, 0), (8192, 6144, 6144, 0), (8192, 6144, 8192, 0),
          (8192, 6144, 16384, 0), (8192, 32768, 6144, 0), (16384, 8192, 8192, 0),
          (16384, 4096, 4096, 8), (8192, 32768, 6144, 2)]
STEPS = 10


def step(layer, rows, recipe):
    layer.zero_grad(set_to_none=True)
    with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
        answer = layer(*rows)
    answer.backward(answer.detach())


def microseconds(layer, rows, recipe):
    """Of products and of all other kernels, a step."""
    for _ in range(5):
        step(layer, rows, recipe)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(STEPS):
            step(layer, rows, recipe)
        torch.cuda.synchronize()
    spent = {True: 0.0, False: 0.0}
    for kernel in trace.key_averages():
        name = kernel.key.lower()
        multiplies = "nvjet" in name or "gemm" in name or "cutlass" in name
        spent[multiplies] += kernel.self_device_time_total / STEPS
    return spent[True], spent[False]


def main():
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("m,n,k,experts,recipe,products_us,other_us")
    for m, n, k, experts in LAYERS:
        rows = (torch.randn(m, k, device="cuda", dtype=torch.bfloat16, requires_grad=True),)
        for name, recipe in RECIPES.items():
            options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda"}
            if experts:
                layer = te.GroupedLinear(experts, k, n, **options)
                given = (*rows, [m // experts] * experts)
            else:
                layer, given = te.Linear(k, n, **options), rows
            products, other = microseconds(layer, given, recipe)
            print(f"{m},{n},{k},{experts},{name},{products:.0f},{other:.0f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(1)
    main()
