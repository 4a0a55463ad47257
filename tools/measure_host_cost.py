#!/usr/bin/env python3
"""What the host spends on eager PyTorch training: seconds of one layer by framework and layout.

usage: measure_host_cost.py OUT.json CASE...
CASE: titan:tp=2,cp=2,dp=1,ac=full,compile=0   torchtitan's Llama 3 model, as its trainer builds it
      titan:model=qwen3,experts=32             its Qwen3 model, with ac=op also the operators that
                                               one layer's forward dispatches
      megatron:tp=2,experts=32                 Megatron-core's GPTModel with local layers
      kernels:FRAMEWORK[,LAYERS]               kernels of 2 or LAYERS layers of an 8B model on 8192
                                               tokens: titan, titan_compiled or megatron
      attention:flash, attention:cudnn         TFLOP/s by head dimension and length
LIMIT_S in the environment: cases that would begin so many seconds after the first one are not run.
torchtitan and Megatron-LM are found on PYTHONPATH. One process and one GPU: torch's process group
"fake" makes collectives that move nothing, so their calls are counted and their transfers are not.
Tensors are so small that the host decides. A layer is the difference between models of 2 and 6
layers over 4; "rest" is what does not grow with the layers. Medians of steps.
"""
import json
import os
import re
import statistics
import sys
import time
import traceback

import torch
import torch.distributed as dist

from frameworks.absent import DEVICE
from frameworks.torchtitan import llama3, qwen3, titan_settings

KNOWN = re.compile("(titan|megatron)(:|$)|kernels:(titan|titan_compiled|megatron)(,[0-9]+)?$|"
                   "attention:(flash|cudnn)$")


def sync():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed_steps(parts, warmups=3, steps=24):
    """Medians of every part's seconds; parts are called in order."""
    times = {name: [] for name, _ in parts}
    for step in range(warmups + steps):
        state = {}
        for name, call in parts:
            sync()
            begin = time.perf_counter()
            call(state)
            sync()
            if step >= warmups:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def per_layer(build, few=2, many=6):
    short, long = timed_steps(build(few)), timed_steps(build(many))
    result = {}
    for name in short:
        layer = (long[name] - short[name]) / (many - few)
        result[name + "_us_per_layer"] = round(layer * 1e6, 1)
        result[name + "_us_rest"] = round((short[name] - few * layer) * 1e6, 1)
    return result


def start_group(world):
    if dist.is_initialized():
        dist.destroy_process_group()
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def count_chosen_operators(parts):
    """Operators that pass through the choice by operators of torch.utils.checkpoint in a forward."""
    from torch.utils import checkpoint
    mode = checkpoint._CachingTorchDispatchMode
    dispatch, calls = mode.__torch_dispatch__, []

    def counted(self, func, types, args=(), kwargs=None):
        calls.append(func)
        return dispatch(self, func, types, args, kwargs)

    mode.__torch_dispatch__ = counted
    state = {}
    for _, call in parts:
        call(state)
    mode.__torch_dispatch__ = dispatch
    return len(calls)


def titan_parts(layers, tp, cp, dp, ac, compile_, hidden=512, ffn=1536, heads=8, kv_heads=2,
                sequence=512, vocab=1024, model="llama3", experts=0):
    job_config = titan_settings()
    from torchtitan.components.loss import cross_entropy_loss
    from torchtitan.distributed import ParallelDims, utils
    from torchtitan.distributed.context_parallel import prepare_context_parallel_input

    dims = ParallelDims(dp_replicate=1, dp_shard=dp, cp=cp, tp=tp, pp=1, ep=1, etp=1,
                        world_size=tp * cp * dp)
    config = job_config.JobConfig()
    config.training.seq_len = sequence
    config.activation_checkpoint.mode = {"none": "none", "full": "full"}.get(ac, "selective")
    config.activation_checkpoint.selective_ac_option = "op"
    config.compile.enable = bool(compile_)
    shape = dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                 num_key_value_heads=kv_heads, vocab_size=vocab, intermediate_size=ffn,
                 head_dim=hidden // heads, rope_theta=1e6, num_experts=experts,
                 num_experts_per_tok=2, moe_intermediate_size=256)
    transformer, arguments, parallelize = (qwen3 if model == "qwen3" else llama3)(
        shape, sequence, {})
    torch._dynamo.reset()
    dims.build_mesh()
    with torch.device("meta"):
        model = transformer(arguments)
    parallelize(model, dims, config)
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        model.init_weights()
    model.train()
    loss_fn = torch.compile(cross_entropy_loss) if compile_ else cross_entropy_loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    amp = utils.maybe_enable_amp(dims, "bfloat16", DEVICE)
    context = utils.get_train_context(dims.tp_enabled)
    tokens = torch.randint(0, vocab, (1, sequence), device=DEVICE)

    def forward(state):
        extra = {}
        inputs, labels = tokens, tokens
        if dims.cp_enabled:
            inputs, labels, extra = prepare_context_parallel_input(
                tokens, tokens, extra, dims.get_mesh("cp"), torch.device(DEVICE))
        with context(), amp:
            state["pred"], state["labels"] = model(inputs, **extra), labels

    def loss(state):
        with context(), amp:
            state["loss"] = loss_fn(state.pop("pred"), state["labels"]) / sequence

    def backward(state):
        with context(), amp:
            state["loss"].backward()

    def clip(_):
        utils.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)

    def optimize(_):
        optimizer.step()
        optimizer.zero_grad()

    return [("forward", forward), ("loss", loss), ("backward", backward), ("clip", clip),
            ("optimizer", optimize)]


def megatron_parts(layers, tp, experts, hidden=512, ffn=1024, heads=8, kv_heads=2, sequence=512,
                   vocab=1024, expert_tokens=2):
    from frameworks.megatron import megatron_config, megatron_modules
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.moe import moe_utils

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp,
                                             create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = megatron_config(
        ffn, experts, expert_tokens, num_layers=layers, hidden_size=hidden,
        num_attention_heads=heads, num_query_groups=kv_heads, tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1)
    spec = megatron_modules(tp > 1, experts, qk_norm=False)
    model = GPTModel(config, spec, vocab, sequence, position_embedding_type="rope",
                     share_embeddings_and_output_weights=False).to(DEVICE)
    ddp = DistributedDataParallel(
        config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False,
                                              use_distributed_optimizer=False), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16,
                        clip_grad=1.0, use_distributed_optimizer=False), [ddp],
        use_gloo_process_groups=False)
    # The tracker of auxiliary losses keeps the number of layers of the first model.
    aux_losses = moe_utils.get_moe_layer_wise_logging_tracker() if experts else {}
    tokens = torch.randint(0, vocab, (1, sequence), device=DEVICE)
    positions = torch.arange(sequence, device=DEVICE).unsqueeze(0)

    def forward(state):
        aux_losses.clear()
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        state["loss"] = ddp(tokens, positions, None, labels=tokens).float().mean()

    def backward(state):
        state["loss"].backward()

    def optimize(_):
        ddp.finish_grad_sync()
        optimizer.step()

    return [("forward", forward), ("backward", backward), ("optimizer", optimize)]


def kernel_table(parts, layers):
    """Kernels by name: calls and microseconds of one forward, backward and optimizer."""
    from torch.profiler import ProfilerActivity, profile
    for _ in range(3):
        state = {}
        for _, call in parts:
            call(state)
    table = {"layers": layers}
    state = {}
    for name, call in parts:
        sync()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
            call(state)
            sync()
        rows = [(e.key[:160], e.count, round(e.self_device_time_total, 1))
                for e in found.key_averages() if e.self_device_time_total > 0
                and e.device_type != torch.autograd.DeviceType.CPU]
        table[name] = sorted(rows, key=lambda row: -row[2])
    return table


def attention_rates(backend):
    """The causal triangle counted once, backward as 2.5 forwards; 16384 tokens, hidden 4096."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    table = {}
    for head_dim in (64, 128):
        for length in (2048, 4096, 8192, 16384, 32768):
            batch, heads = max(1, 16384 // length), 4096 // head_dim
            q, k, v = (torch.randn(batch, length, n, head_dim, device=DEVICE, dtype=torch.bfloat16)
                       .transpose(1, 2).requires_grad_() for n in (heads, heads // 4, heads // 4))
            grad = torch.randn_like(q)
            state = {}

            def forward(state):
                with sdpa_kernel(backends[backend]):
                    for _ in range(4):
                        state["out"] = torch.nn.functional.scaled_dot_product_attention(
                            q, k, v, is_causal=True, enable_gqa=True)

            def backward(state):
                for _ in range(4):
                    torch.autograd.grad(state["out"], (q, k, v), grad, retain_graph=True)

            seconds = timed_steps([("forward", forward), ("backward", backward)], 2, 5)
            flops = 2.0 * batch * length * length * 4096 * 4
            table[f"{head_dim}x{length}"] = [round(flops / seconds["forward"] / 1e12, 1),
                                             round(2.5 * flops / seconds["backward"] / 1e12, 1)]
            del state
    return table


def options_of(text):
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


def run_case(case):
    kind, _, text = case.partition(":")
    if kind == "kernels":
        start_group(1)
        framework, _, layers = text.partition(",")
        layers = int(layers or 2)
        big = dict(hidden=4096, heads=32, kv_heads=8, sequence=8192, vocab=128256)
        if framework == "megatron":
            parts = megatron_parts(layers, 1, 0, ffn=14336, **big)
        else:
            start_group(2)
            parts = titan_parts(layers, 1, 1, 2, "none", int(framework == "titan_compiled"),
                                ffn=14336, **big)
        return kernel_table(parts, layers)
    options = options_of(text)
    if kind == "attention":
        return attention_rates(text)
    if kind == "titan":
        tp, cp, dp = (options.get(key, 1) for key in ("tp", "cp", "dp"))
        start_group(tp * cp * dp)
        ac = options.get("ac", "none")

        def build(layers):
            return titan_parts(layers, tp, cp, dp, ac, options.get("compile", 0),
                               model=options.get("model", "llama3"),
                               experts=options.get("experts", 0))

        result = per_layer(build)
        if ac == "op" and not options.get("compile", 0):
            few, many = count_chosen_operators(build(2)), count_chosen_operators(build(6))
            result["operators_per_layer"] = (many - few) // 4
        return result
    start_group(options.get("tp", 1))
    return per_layer(lambda layers: megatron_parts(layers, options.get("tp", 1),
                                                   options.get("experts", 0)))


def main():
    out, cases = sys.argv[1], sys.argv[2:]
    for case in cases:
        if not KNOWN.match(case):
            sys.exit(f"found {case}, expected titan:OPTIONS, megatron:OPTIONS, "
                     "kernels:FRAMEWORK[,LAYERS] or attention:BACKEND")
    limit_s = float(os.environ.get("LIMIT_S", "1e9"))
    begin = time.monotonic()
    results = {"torch": torch.__version__, "cpus": os.cpu_count()}
    if DEVICE == "cuda":
        results["gpu"] = torch.cuda.get_device_name()
    for case in cases:
        at = time.monotonic()
        try:
            late = at - begin > limit_s
            results[case] = {"error": "no time left"} if late else run_case(case)
        except Exception as problem:  # the other cases still count
            results[case] = {"error": repr(problem)[:300], "trace": traceback.format_exc()[-1500:]}
        results[case]["seconds"] = round(time.monotonic() - at, 1)
        with open(out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
        short = {k: v for k, v in results[case].items()
                 if k != "trace" and not (isinstance(v, list) and len(v) > 2)}
        print(case, short, flush=True)


if __name__ == "__main__":
    main()
