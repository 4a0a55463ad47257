#!/usr/bin/env python3
"""Measures what Megatron-core's router takes behind its product: choice of experts and losses.

Usage: PYTHONPATH=Megatron-LM python3 tools/measure_routers.py [--engine TransformerEngine] [--cpu]
Needs a GPU, PyTorch and Triton. Prints JSON: for each router, with and without its auxiliary loss,
microseconds of routing() forward and of its backward, medians of a CUDA graph with the L2 cache
cleared. With --engine (a checkout of Transformer Engine) also with --moe-router-fusion, by that
checkout's kernels, which nvcc compiles into librouter.so beside it if it is not there. --cpu runs
each once and measures nothing.
"""
import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import types

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

SOFTMAX = dict(moe_router_load_balancing_type="aux_loss")
SIGMOID = dict(**SOFTMAX, moe_router_score_function="sigmoid")
GROUPS = dict(moe_router_load_balancing_type="seq_aux_loss", moe_router_score_function="sigmoid",
              moe_router_enable_expert_bias=True, moe_router_num_groups=8, moe_router_group_topk=4,
              moe_router_topk_scaling_factor=2.5)
# tokens, experts, experts a token, how they are chosen
ROUTERS = [(1024, 256, 8, GROUPS), (2048, 256, 8, GROUPS), (4096, 256, 8, GROUPS),
           (1024, 128, 8, SOFTMAX), (2048, 128, 8, SOFTMAX), (4096, 128, 8, SOFTMAX),
           (16384, 128, 8, SOFTMAX), (8192, 128, 1, SIGMOID), (4096, 64, 6, SOFTMAX),
           (2048, 8, 2, SOFTMAX), (8192, 8, 2, SOFTMAX)]
FUNCTIONS = {"sigmoid": 0, "softmax": 1}  # as the kernels number them
KERNELS = """
#include "common/fused_router/fused_moe_aux_loss.cu"
#include "common/fused_router/fused_score_for_moe_aux_loss.cu"
#include "common/fused_router/fused_topk_with_score_function.cu"
namespace transformer_engine {
extern "C" {
void topk_forward(float *logits, int tokens, int experts, int topk, int groups, int group_topk,
                  float scale, int function, float *bias, float *probs, bool *map, float *kept,
                  cudaStream_t stream) {
  fused_topk_with_score_function_forward_kernel_launcher<float, float>(
      logits, tokens, experts, topk, false, groups, group_topk, scale, function, bias, probs, map,
      kept, stream);
}
void topk_backward(bool *map, float *kept, float *gradient, int tokens, int experts, int topk,
                   float scale, int function, float *answer, cudaStream_t stream) {
  fused_topk_with_score_function_backward_kernel_launcher<float>(
      map, kept, gradient, tokens, experts, topk, false, scale, function, answer, stream);
}
void score_forward(float *logits, int tokens, int experts, int topk, int function, float *scores,
                   bool *map, float *kept, cudaStream_t stream) {
  fused_score_for_moe_aux_loss_forward_kernel_launcher<float>(logits, tokens, experts, topk,
                                                              function, scores, map, kept, stream);
}
void score_backward(float *kept, float *gradient, int tokens, int experts, int topk, int function,
                    float *answer, cudaStream_t stream) {
  fused_score_for_moe_aux_loss_backward_kernel_launcher<float>(
      kept, gradient, tokens, experts, topk, function, answer, stream);
}
void loss_forward(float *probs, int64_t *counts, int all_tokens, int experts, int rows, int columns,
                  int topk, float coefficient, float *loss, float *kept, cudaStream_t stream) {
  fused_moe_aux_loss_forward_kernel_launcher<float, int64_t>(probs, counts, all_tokens, experts,
      rows, columns, topk, coefficient, loss, kept, stream);
}
void loss_backward(float *kept, int64_t *counts, int rows, int columns, float *gradient,
                   float *answer, cudaStream_t stream) {
  fused_moe_aux_loss_backward_kernel_launcher<float, int64_t>(kept, counts, rows, columns, gradient,
                                                              answer, stream);
}
}
namespace cuda {
int current_device() { int device = 0; cudaGetDevice(&device); return device; }
int sm_arch(int) { return 90; }
}
}
"""


def compiled(engine):
    """The kernels of a checkout behind a C interface."""
    library = os.path.join(engine, "librouter.so")
    if not os.path.exists(library):
        source = os.path.join(engine, "router.cu")
        with open(source, "w", encoding="utf-8") as file:
            file.write(KERNELS)
        parts = [os.path.join(engine, "transformer_engine", part) for part in ("", "common/include")]
        subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "--expt-relaxed-constexpr",
                        *(f"-I{part}" for part in parts), "-Xcompiler=-fPIC", "-shared", "-o", library,
                        source], check=True)
    return ctypes.CDLL(library, mode=os.RTLD_LAZY)


class Extension(types.ModuleType):
    """transformer_engine_torch, as far as its router goes."""

    def __init__(self, library):
        super().__init__("transformer_engine_torch")
        self.library = library

    def call(self, name, *given):
        kinds = {torch.Tensor: lambda x: ctypes.c_void_p(x.data_ptr()), float: ctypes.c_float,
                 int: ctypes.c_int, type(None): ctypes.c_void_p}
        given = [kinds[type(one)](one) for one in given]
        if DEVICE == "cpu":
            return
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        getattr(self.library, name)(*given, stream)

    def fused_topk_with_score_function_fwd(self, logits, topk, use_pre_softmax, num_groups, group_topk,
                                           scaling_factor, score_function, expert_bias):
        assert not use_pre_softmax
        probs, kept = torch.empty_like(logits), torch.empty_like(logits)
        chosen = torch.empty_like(logits, dtype=torch.bool)
        self.call("topk_forward", logits, *logits.shape, topk, num_groups or -1, group_topk or -1,
                  float(scaling_factor or 1), FUNCTIONS[score_function], expert_bias, probs,
                  chosen, kept)
        return probs, chosen, kept

    def fused_topk_with_score_function_bwd(self, tokens, experts, chosen, kept, gradient, topk, _,
                                           scaling_factor, score_function):
        answer = torch.empty_like(kept)
        self.call("topk_backward", chosen, kept, gradient, tokens, experts, topk,
                  float(scaling_factor or 1), FUNCTIONS[score_function], answer)
        return answer

    def fused_score_for_moe_aux_loss_fwd(self, logits, topk, score_function):
        scores, kept = torch.empty_like(logits), torch.empty_like(logits)
        chosen = torch.empty_like(logits, dtype=torch.bool)
        self.call("score_forward", logits, *logits.shape, topk, FUNCTIONS[score_function],
                  scores, chosen, kept)
        return scores, chosen, kept

    def fused_score_for_moe_aux_loss_bwd(self, num_tokens, num_experts, intermediate_output,
                                         grad_scores, topk, score_function):
        answer = torch.empty_like(intermediate_output)
        self.call("score_backward", intermediate_output, grad_scores, num_tokens, num_experts, topk,
                  FUNCTIONS[score_function], answer)
        return answer

    def fused_moe_aux_loss_fwd(self, probs, tokens_per_expert, total_num_tokens, num_experts, num_rows,
                               num_cols, topk, coeff):
        loss, kept = torch.empty_like(probs[0, 0]), torch.empty_like(probs[0, 0])
        self.call("loss_forward", probs, tokens_per_expert, total_num_tokens, num_experts, num_rows,
                  num_cols, topk, coeff, loss, kept)
        return loss, kept

    def fused_moe_aux_loss_bwd(self, Const_buf, tokens_per_expert, num_rows, num_cols, grad_aux_loss):
        answer = torch.empty(num_rows, num_cols, device=Const_buf.device)
        self.call("loss_backward", Const_buf, tokens_per_expert, num_rows, num_cols, grad_aux_loss,
                  answer)
        return answer


def use_engine(engine):
    """Megatron-core's fused functions are those of a checkout that is not installed."""
    sys.modules["transformer_engine_torch"] = Extension(compiled(engine))
    path = os.path.join(engine, "transformer_engine/pytorch/router.py")
    spec = importlib.util.spec_from_file_location("router_of_engine", path)
    router = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(router)
    moe_utils.HAVE_TE = True
    for name in ("topk_with_score_function", "compute_score_for_moe_aux_loss", "moe_aux_loss"):
        setattr(moe_utils, f"fused_{name}", getattr(router, f"fused_{name}"))


def router_of(experts, topk, settings):
    config = TransformerConfig(
        num_layers=1, hidden_size=64, num_attention_heads=1, num_moe_experts=experts,
        moe_router_topk=topk, moe_router_dtype="fp32", bf16=True, params_dtype=torch.bfloat16,
        add_bias_linear=False, **settings)
    groups = getattr(moe_utils, "get_default_pg_collection", None)
    router = TopKRouter(config, **({"pg_collection": groups()} if groups else {})).to(DEVICE)
    router.set_layer_number(1)
    return router.train()


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def graph_of(run):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def median_us(run):
    from triton.testing import do_bench
    graph = graph_of(run)
    return 1e3 * do_bench(graph.replay, warmup=10, rep=40, return_mode="median")


def host_us(experts, topk, settings):
    """What the host takes for so few tokens that kernels are never waited for."""
    router = router_of(experts, topk, settings)
    logits = torch.randn(64, 1, experts, device=DEVICE, requires_grad=True)
    gradient = torch.randn(64, experts, device=DEVICE)
    times = []
    for _ in range(200):
        synchronize()
        begin = time.perf_counter()
        probs = router.routing(logits)[0]
        forward_s = time.perf_counter() - begin
        synchronize()
        begin = time.perf_counter()
        torch.autograd.grad(probs, logits, gradient)
        times.append((forward_s, time.perf_counter() - begin))
    return [round(1e6 * statistics.median(direction[20:])) for direction in zip(*times)]


def measured(tokens, experts, topk, settings):
    router = router_of(experts, topk, settings)
    logits = torch.randn(tokens, 1, experts, device=DEVICE, requires_grad=True)
    gradient = torch.randn(tokens, experts, device=DEVICE)

    def forward():
        return router.routing(logits)[0]

    def both():
        return torch.autograd.grad(forward(), logits, gradient)

    if DEVICE == "cpu":
        return {"forward_us": 0, "backward_us": len(both()) - 1}
    forward_us = median_us(forward)
    return {"forward_us": round(forward_us, 1), "backward_us": round(median_us(both) - forward_us, 1)}


def difference(tokens, experts, topk, settings):
    """Of probabilities and gradients, fused and not, over the largest."""
    logits = torch.randn(tokens, 1, experts, device=DEVICE, requires_grad=True)
    gradient = torch.randn(tokens, experts, device=DEVICE)
    found = []
    for fused in (False, True):
        probs = router_of(experts, topk, {**settings, "moe_router_fusion": fused}).routing(logits)[0]
        found.append((probs, *torch.autograd.grad(probs, logits, gradient)))
    return [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found)]


def main():
    hosts = []
    torch.distributed.init_process_group("gloo" if DEVICE == "cpu" else "nccl", rank=0, world_size=1,
                                         init_method="tcp://127.0.0.1:29511")
    parallel_state.initialize_model_parallel()
    moe_utils.MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(1.0, device=DEVICE))
    rows = []
    for tokens, experts, topk, choice in ROUTERS:
        for fused in [False, True] if ARGUMENTS.engine else [False]:
            row = {"tokens": tokens, "experts": experts, "topk": topk,
                   "groups": choice.get("moe_router_num_groups", 1), "fused": fused}
            for loss, coefficient in (("without_loss", 0.0), ("with_loss", 1e-3)):
                settings = {**choice, "moe_aux_loss_coeff": coefficient}
                if ARGUMENTS.engine:
                    settings["moe_router_fusion"] = fused
                if coefficient and tokens == 4096:
                    forward, backward = host_us(experts, topk, settings)
                    hosts.append({"experts": experts, "groups": row["groups"], "fused": fused,
                                  "forward_us": forward, "backward_us": backward})
                    print(json.dumps(hosts[-1]), file=sys.stderr, flush=True)
                for name, us in [] if ARGUMENTS.host else measured(tokens, experts, topk, settings).items():
                    row[f"{name[:-3]}_{loss}_us"] = us
            if fused and not ARGUMENTS.host:
                row["difference"] = difference(tokens, experts, topk, settings)
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    name = DEVICE if DEVICE == "cpu" else torch.cuda.get_device_name()
    print(json.dumps({"gpu": name, "torch": torch.__version__, "routers": rows,
                      "host": hosts}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine")
    parser.add_argument("--host", action="store_true", help="only what the host takes")
    parser.add_argument("--cpu", action="store_true")
    ARGUMENTS = parser.parse_args()
    DEVICE = "cpu" if ARGUMENTS.cpu else "cuda"
    if ARGUMENTS.cpu:
        torch.cuda.current_device = lambda: "cpu"
    if ARGUMENTS.engine:
        use_engine(ARGUMENTS.engine)
    torch.manual_seed(1)
    main()
