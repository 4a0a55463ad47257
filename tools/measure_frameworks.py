#!/usr/bin/env python3
"""Runs case lines with the real framework under PyTorch and writes them with what was measured.

usage: measure_frameworks.py CASES.jsonl OUT.jsonl [--ranks R,R,...] [--quiet] [--minutes M]
                             [--limit-s S]

torchtitan: its Llama 3 model, parallelism, loss and pipeline, and the steps of its trainer.
megatron-core-local: Megatron-core's GPTModel with local layers, PyTorch's RMSNorm, attention and
AdamW, its schedules, data parallelism and optimizer (data/measured/README.md, h200_frameworks.jsonl).
deepspeed: Hugging Face's Llama of the transformers that is installed, its loss and a DeepSpeed engine
of ZeRO 1 to 3 around it, with PyTorch's fused AdamW; "ds_config" in a case adds to its configuration.
All are found on PYTHONPATH. One process a rank; cases of one rank run side by side on all GPUs.
--quiet: one case at a time, and no other process loads PyTorch meanwhile: for steps of which the
host is the bottleneck.
--ranks (or a list "simulate_ranks" in the case): only these ranks run, each alone on a GPU, in
torch's process group "fake", whose collectives move nothing: a plan of any number of GPUs shows
what a rank allocates, but neither its times nor what NCCL takes.
"trace": PATH in a case writes every allocation of at least 1 MiB to PATH.RANK.csv.
"profile": PATH runs one more step and writes its kernels, calls and microseconds to PATH.RANK.csv.
A case that fails is recorded with status "crash", "oom" or "timeout".
"""
import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

WARMUPS, STEPS = 3, 4
NOT_WRITTEN = ("simulate_ranks", "trace", "profile", "ds_config")  # members of a case that are for this tool


def pipeline_stage(case, rank):
    """Both frameworks have pp slowest."""
    return rank // (world_of(case) // case["plan"].get("pp", 1))


def world_of(case):
    plan = case["plan"]
    return plan.get("tp", 1) * plan.get("cp", 1) * plan.get("pp", 1) * plan.get("dp", 1)


class Titan:
    """A torchtitan training step of v0.2.2's trainer (torchtitan/train.py) on random tokens."""

    def __init__(self, case):
        import torch
        from framework_modules import DEVICE, titan_settings
        job_config = titan_settings()
        from torchtitan.components import loss as losses
        from torchtitan.distributed import ParallelDims, utils
        from torchtitan.distributed.pipeline_parallel import pipeline_llm
        from torchtitan.models.llama3.infra.parallelize import parallelize_llama
        from torchtitan.models.llama3.model.args import TransformerModelArgs
        from torchtitan.models.llama3.model.model import Transformer

        self.torch, self.utils, self.device = torch, utils, torch.device(DEVICE)
        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        training, pp = case["training"], plan.get("pp", 1)
        self.sequence, self.microbatches = training["sequence_length"], training["num_microbatches"]
        self.batch = training["micro_batch"] * (self.microbatches if pp > 1 else 1)
        self.vocab = shape["vocab_size"]
        replicas = plan.get("dp_replicate", 1)
        self.dims = ParallelDims(dp_replicate=replicas, dp_shard=plan.get("dp", 1) // replicas,
                                 cp=plan.get("cp", 1), tp=plan.get("tp", 1), pp=pp, ep=1, etp=1,
                                 world_size=world_of(case))
        config = job_config.JobConfig()
        config.training.seq_len = self.sequence
        config.training.local_batch_size = self.batch
        recompute = plan.get("recompute", {"granularity": "none"})
        config.activation_checkpoint.mode = recompute["granularity"]
        config.activation_checkpoint.selective_ac_option = (
            "2" if recompute.get("policy") == "every_second_layer" else "op")
        config.compile.enable = bool(options.get("compile"))
        config.parallelism.fsdp_reshard_after_forward = options.get("reshard_after_forward", "default")
        config.parallelism.pipeline_parallel_degree = pp
        config.parallelism.pipeline_parallel_microbatch_size = training["micro_batch"]
        config.parallelism.pipeline_parallel_schedule = {
            "none": "1F1B", "1f1b": "1F1B", "gpipe": "GPipe",
            "interleaved_1f1b": "Interleaved1F1B"}[plan.get("schedule", "none")]
        hidden = shape["hidden_size"]
        arguments = TransformerModelArgs(
            dim=hidden, n_layers=shape["num_hidden_layers"], n_heads=shape["num_attention_heads"],
            n_kv_heads=shape["num_key_value_heads"], vocab_size=self.vocab, multiple_of=1,
            ffn_dim_multiplier=(shape["intermediate_size"] + 0.5) / int(8 * hidden / 3),
            rope_theta=shape["rope_theta"], max_seq_len=self.sequence)
        self.dims.build_mesh()
        utils.set_determinism(self.dims, self.device, config.debug, distinct_seed_mesh_dims=["pp"])
        with torch.device("meta"):
            model = Transformer(arguments)
        self.loss = losses.build_cross_entropy_loss(config)
        self.schedule = None
        if pp > 1:
            self.schedule, self.parts, self.first, self.last = pipeline_llm(
                model, self.dims, config, self.device, arguments, parallelize_llama, self.loss)
            del model
        else:
            self.parts = [parallelize_llama(model, self.dims, config)]
        for part in self.parts:
            part.to_empty(device=self.device)
            with torch.no_grad():
                part.init_weights()
            part.train()
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                             weight_decay=0.1, fused=True) for part in self.parts]
        self.context = utils.get_train_context(self.dims.tp_enabled)
        self.amp = utils.maybe_enable_amp(self.dims, "bfloat16", DEVICE)

    def parameters(self):
        local = [p.to_local() if hasattr(p, "to_local") else p for p in self.all_parameters()]
        return sum(p.numel() for p in local)

    def all_parameters(self):
        return [p for part in self.parts for p in part.parameters()]

    def microbatch(self):
        torch = self.torch
        tokens = torch.randint(0, self.vocab, (self.batch, self.sequence + 1))
        return tokens[:, :-1].to(self.device), tokens[:, 1:].to(self.device)

    def forward_backward(self, valid_tokens):
        from torchtitan.distributed.context_parallel import prepare_context_parallel_input
        torch = self.torch
        inputs, labels = self.microbatch()
        extra = {}
        if self.dims.cp_enabled:
            inputs, labels, extra = prepare_context_parallel_input(
                inputs, labels, extra, self.dims.get_mesh("cp"), self.device, "headtail")
        if self.schedule:
            with self.context():
                targets, losses = (labels, []) if self.last else (None, None)
                first = (inputs,) if self.first else ()
                self.schedule.step(*first, **extra, target=targets, losses=losses,
                                   return_outputs=False)
            if not self.last:
                return torch.tensor([-1.0], device=self.device)
            return (torch.sum(torch.stack(losses)) / valid_tokens).to(self.device)
        with self.context():
            with self.amp:
                prediction = self.parts[0](inputs, **extra)
                loss = self.loss(prediction, labels) / valid_tokens
            del prediction
            loss.backward()
        return loss

    def step(self):
        torch = self.torch
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        runs = 1 if self.schedule else self.microbatches
        valid_tokens = torch.tensor(runs * self.batch * self.sequence, device=self.device)
        if self.dims.dp_enabled:
            valid_tokens = self.utils.dist_sum(valid_tokens, self.dims.get_mesh("batch"))
        losses = [self.forward_backward(valid_tokens).detach() for _ in range(runs)]
        self.utils.clip_grad_norm_(self.all_parameters(), 1.0, foreach=True,
                                   pp_mesh=self.dims.get_optional_mesh("pp"))
        for optimizer in self.optimizers:
            optimizer.step()
        return losses


class Megatron:
    """A step of Megatron-core (megatron/training/training.py, train_step) on random tokens."""

    def __init__(self, case):
        import torch
        from framework_modules import DEVICE, megatron_config, megatron_modules
        from megatron.core import parallel_state, tensor_parallel
        from megatron.core.distributed import (DistributedDataParallel,
                                               DistributedDataParallelConfig, finalize_model_grads)
        from megatron.core.enums import ModelType
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.transformer.moe import moe_utils

        self.torch, self.device = torch, torch.device(DEVICE)
        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        training = case["training"]
        tp, pp, vpp, ep = (plan.get(key, 1) for key in ("tp", "pp", "vpp", "ep"))
        virtual = vpp if vpp > 1 else None
        zero = plan.get("zero", 1) == 1  # not given: Megatron-core's distributed optimizer
        self.sequence, self.batch = training["sequence_length"], training["micro_batch"]
        self.microbatches, self.vocab = training["num_microbatches"], shape["vocab_size"]
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=virtual,
            expert_model_parallel_size=ep, expert_tensor_parallel_size=plan.get("etp", 1),
            create_gloo_process_groups=False)
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        recompute = plan.get("recompute", {"granularity": "none"})
        kind = recompute["granularity"]
        replay = {} if kind == "none" else dict(recompute_granularity=kind)
        if kind == "full":
            replay.update(recompute_method=recompute["method"],
                          recompute_num_layers=recompute["num_layers"])
        if kind == "selective":
            replay.update(recompute_modules=recompute["modules"])
        sequence_parallel = bool(plan.get("sequence_parallel", tp > 1))
        experts = shape.get("num_local_experts", 0)
        self.config = megatron_config(
            shape["intermediate_size"], experts, shape.get("num_experts_per_tok"),
            num_layers=shape["num_hidden_layers"], hidden_size=shape["hidden_size"],
            num_attention_heads=shape["num_attention_heads"],
            num_query_groups=shape["num_key_value_heads"], tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=virtual,
            expert_model_parallel_size=ep, expert_tensor_parallel_size=plan.get("etp", 1),
            sequence_parallel=sequence_parallel, cross_entropy_loss_fusion=False,
            deallocate_pipeline_outputs=True, **replay)
        spec = megatron_modules(sequence_parallel, experts)
        stage = parallel_state.get_pipeline_model_parallel_rank()
        self.moe_tracker = moe_utils.get_moe_layer_wise_logging_tracker() if experts else {}
        overlap = bool(options.get("overlap_grad_reduce"))
        gathers = bool(options.get("overlap_param_gather"))
        data_ranks = plan.get("dp", 1) * plan.get("cp", 1)
        buckets = max(40000000, 1000000 * data_ranks) if overlap else None
        self.chunks = []
        for chunk in range(vpp):
            part = GPTModel(
                self.config, spec, self.vocab, self.sequence,
                pre_process=stage == 0 and chunk == 0,
                post_process=stage == pp - 1 and chunk == vpp - 1,
                position_embedding_type="rope", rotary_base=shape["rope_theta"],
                share_embeddings_and_output_weights=False,
                **({"vp_stage": chunk} if vpp > 1 else {})).to(self.device)
            part.model_type = ModelType.encoder_or_decoder
            self.chunks.append(DistributedDataParallel(
                self.config, DistributedDataParallelConfig(
                    grad_reduce_in_fp32=True, overlap_grad_reduce=overlap,
                    overlap_param_gather=gathers, use_distributed_optimizer=zero,
                    bucket_size=buckets), part, disable_bucketing=chunk > 0))
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16,
                            clip_grad=1.0, use_distributed_optimizer=zero,
                            overlap_param_gather=gathers), self.chunks,
            use_gloo_process_groups=False)
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        one = (lambda calls: calls[0]) if vpp == 1 else list
        if overlap:
            self.config.no_sync_func = one([chunk.no_sync for chunk in self.chunks])
            self.config.grad_sync_func = one([chunk.start_grad_sync for chunk in self.chunks])
        if gathers:
            self.config.param_sync_func = one([chunk.start_param_sync for chunk in self.chunks])
        self.run = get_forward_backward_func()
        self.positions = torch.arange(self.sequence, device=self.device).unsqueeze(0)

    def parameters(self):
        return sum(p.numel() for chunk in self.chunks for p in chunk.parameters())

    def forward(self, _, model, *__):
        torch = self.torch
        tokens = torch.randint(0, self.vocab, (self.batch, self.sequence + 1), device=self.device)
        output = model(tokens[:, :-1].contiguous(), self.positions.expand(self.batch, -1), None,
                       labels=tokens[:, 1:].contiguous())

        def loss(out):
            mean = out.float().mean()
            return mean, {"loss": mean.detach()}

        return output, loss

    def step(self):
        self.moe_tracker.clear()
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        iterators = [None] * len(self.chunks)
        losses = self.run(
            forward_step_func=self.forward, data_iterator=iterators if len(iterators) > 1 else None,
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=self.microbatches, seq_length=self.sequence,
            micro_batch_size=self.batch, decoder_seq_length=self.sequence, forward_only=False)
        self.optimizer.step()
        return losses


class DeepSpeed:
    """A step of deepspeed.initialize's engine as transformers' Trainer makes it: no key-value cache,
    the model's output is dropped before the backward pass, gradients are clipped."""

    def __init__(self, case):
        import deepspeed
        import torch
        from framework_modules import DEVICE
        from transformers import LlamaConfig, LlamaForCausalLM

        self.torch, self.device = torch, torch.device(DEVICE)
        shape, plan, options = case["model"], case["plan"], case.get("options", {})
        training = case["training"]
        self.sequence, self.batch = training["sequence_length"], training["micro_batch"]
        self.microbatches, self.vocab = training["num_microbatches"], shape["vocab_size"]
        zero = {"stage": plan.get("zero", 2),
                "overlap_comm": bool(options.get("overlap_grad_reduce", False))}
        for ours, theirs in (("reduce_bucket_elements", "reduce_bucket_size"),
                             ("prefetch_bucket_elements", "stage3_prefetch_bucket_size"),
                             ("max_live_parameters", "stage3_max_live_parameters")):
            if ours in options:
                zero[theirs] = options[ours]
        extra = dict(case.get("ds_config", {}))
        zero.update(extra.pop("zero_optimization", {}))
        config = {"train_micro_batch_size_per_gpu": self.batch, "gradient_clipping": 1.0,
                  "gradient_accumulation_steps": self.microbatches, "bf16": {"enabled": True},
                  "zero_optimization": zero, **extra}
        model_config = LlamaConfig(
            **{key: shape[key] for key in (
                "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "vocab_size", "rope_theta")},
            tie_word_embeddings=bool(shape.get("tie_word_embeddings")), use_cache=False,
            max_position_embeddings=self.sequence, attn_implementation="sdpa")
        sharded = (deepspeed.zero.Init(config_dict_or_path=config) if zero["stage"] == 3
                   else contextlib.nullcontext())
        torch.set_default_dtype(torch.bfloat16)
        with sharded, torch.device(self.device):
            model = LlamaForCausalLM(model_config)
        torch.set_default_dtype(torch.float32)
        if plan.get("recompute", {}).get("granularity", "none") == "full":
            model.gradient_checkpointing_enable()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

    def parameters(self):
        return sum(p.ds_tensor.ds_numel if hasattr(p, "ds_tensor") else p.numel()
                   for p in self.engine.module.parameters())

    def loss(self):
        tokens = self.torch.randint(0, self.vocab, (self.batch, self.sequence), device=self.device)
        mask = self.torch.ones_like(tokens)  # of the data collator; without it transformers masks
        return self.engine(input_ids=tokens, attention_mask=mask, labels=tokens).loss

    def step(self):
        for _ in range(self.microbatches):
            loss = self.loss()
            self.engine.backward(loss)
            self.engine.step()
        return loss


TRAINERS = {"torchtitan": Titan, "deepspeed": DeepSpeed}  # all others: Megatron


def measure(case, rank, fake):
    """The object of measured.ranks and the times of the steps after warm-up."""
    import torch
    import torch.distributed as dist
    from framework_modules import DEVICE
    cuda = torch.cuda if DEVICE == "cuda" else None
    world = world_of(case)

    def used():
        free, total = cuda.mem_get_info()
        return total - free

    result = {"rank": rank, "pp_rank": pipeline_stage(case, rank)}
    if cuda:
        cuda.set_device(0)
        cuda.init()
        cuda.current_stream().synchronize()
        if not fake:
            result["context"] = used()
    if fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    elif case["framework"] == "deepspeed" and cuda:
        import deepspeed
        deepspeed.init_distributed("nccl")
    else:
        dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
    if "trace" in case:
        cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=4000000)
    trainer = TRAINERS.get(case["framework"], Megatron)(case)
    result["parameters"] = trainer.parameters()
    gc.disable()  # as torchtitan's trainer: collections between steps only
    gc.collect(1)
    times = []
    if cuda:
        result["allocated_after_init"] = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
    for index in range(WARMUPS + STEPS):
        if cuda:
            cuda.synchronize()
        begin = time.perf_counter()
        losses = trainer.step()
        if cuda:
            cuda.synchronize()
        if index >= WARMUPS:
            times.append(round(time.perf_counter() - begin, 5))
        if index == 0 and cuda:
            result["peak_allocated_first_step"] = cuda.max_memory_allocated()
            cuda.reset_peak_memory_stats()
        del losses
    if cuda:
        stats = cuda.memory_stats()
        result["peak_allocated_steady"] = cuda.max_memory_allocated()
        result["peak_allocated"] = max(result["peak_allocated_first_step"],
                                       result["peak_allocated_steady"])
        result["allocated_between_steps"] = cuda.memory_allocated()
        result["peak_reserved"] = stats["reserved_bytes.all.peak"]
        if not fake:  # which has no communicators
            result["device_used_end"], result["reserved_end"] = used(), cuda.memory_reserved()
        result["device_total"] = cuda.mem_get_info()[1]
        result["allocation_retries"] = stats["num_alloc_retries"]
    if "trace" in case:
        write_trace(f"{case['trace']}.{rank}.csv")
    if "profile" in case:
        write_profile(trainer.step, f"{case['profile']}.{rank}.csv")
    if not fake:
        with contextlib.suppress(Exception):
            dist.barrier()
    return result, times


def write_trace(path):
    """Allocations and frees above 1 MiB in their order, and where in Python they were made."""
    import torch
    with open(path, "w", encoding="utf-8") as file:
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            if event["action"] not in ("alloc", "free_completed") or event["size"] < 1 << 20:
                continue
            frames = [f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}"
                      for f in event.get("frames", [])]
            ours = [f for f in frames if "measure_frameworks" not in f][:4]
            file.write(f"{event['action']},{event['addr']},{event['size']},{event['stream']},"
                       f"{' < '.join(ours)}\n")


def write_profile(step, path):
    """What the GPU did in a step, by kernel; the first two lines are the step's span and busy time."""
    import torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    kernels = sorted(((e.time_range.start, e.time_range.end, e.name) for e in profiler.events()
                      if e.device_type == torch.autograd.DeviceType.CUDA))
    total, calls, busy, reached = {}, {}, 0.0, kernels[0][0]
    for begin, end, name in kernels:
        total[name] = total.get(name, 0.0) + end - begin
        calls[name] = calls.get(name, 0) + 1
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"1,{reached - kernels[0][0]:.0f},span\n1,{busy:.0f},busy\n")
        for name in sorted(total, key=total.get, reverse=True):
            file.write(f"{calls[name]},{total[name]:.0f},{name[:200]}\n")


def worker(case_file, rank, out, fake):
    with open(case_file, encoding="utf-8") as file:
        case = json.load(file)
    import torch  # before its turn comes: takes seconds, and no GPU
    import torch.distributed
    while not (gpus := json_of(os.path.join(os.path.dirname(case_file), "gpus.json"))):
        time.sleep(0.05)
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpus[str(rank)])
    try:
        found, times = measure(case, rank, fake)
        answer = {"status": "ok", "rank": found, "times": times}
    except Exception as problem:  # recorded: other cases still count
        ran_out = type(problem).__name__ == "OutOfMemoryError"
        answer = {"status": "oom" if ran_out else "crash", "error": repr(problem)[:400],
                  "trace": traceback.format_exc()[-2500:]}
    write_whole(out, answer)
    os._exit(0)  # threads of NCCL and of compilers need not end first


def write_whole(path, value):
    """A JSON file that nobody sees half written."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


class Job:
    """One case and its processes, or with `fake` one of its ranks; they wait for start()."""

    def __init__(self, case, fake, port):
        self.case, self.fake, self.gpus = case, fake, []
        self.folder = tempfile.TemporaryDirectory()
        self.begin, self.late = None, False
        path = os.path.join(self.folder.name, "case.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(case, file)
        self.ranks = list(range(world_of(case))) if fake is None else [fake]
        self.outs, self.errors, self.processes = [], [], []
        for rank in self.ranks:
            out = os.path.join(self.folder.name, f"{rank}.json")
            self.errors.append(os.path.join(self.folder.name, f"{rank}.stderr"))
            environment = dict(
                os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world_of(case)),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0",
                CUDA_DEVICE_MAX_CONNECTIONS="1" if case["framework"].startswith("megatron") else "8")
            self.outs.append(out)
            with open(self.errors[-1], "w", encoding="utf-8") as errors:
                self.processes.append(subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "--worker", path, str(rank), out,
                     "fake" if fake is not None else "real"], env=environment,
                    stdout=subprocess.DEVNULL, stderr=errors))

    def start(self, gpus):
        self.gpus, self.begin = gpus, time.monotonic()
        write_whole(os.path.join(self.folder.name, "gpus.json"),
                    dict(zip(map(str, self.ranks), gpus)))

    def ended(self, limit_s):
        self.late = time.monotonic() - self.begin > limit_s
        failed = any(os.path.exists(out) and json_of(out).get("status") != "ok" for out in self.outs)
        if self.late or (failed and time.monotonic() - self.begin > 5):
            time.sleep(1)
            for process in self.processes:
                process.kill()
        return all(process.poll() is not None for process in self.processes)

    def line(self):
        answers = [json_of(out) for out in self.outs]
        errors = [text_of(path)[-800:] for path in self.errors]
        bad = [a for a in answers if a.get("status") not in ("ok", None)]
        measured = {"status": "ok"}
        if bad:
            measured = {"status": bad[0]["status"], "reason": bad[0]["error"]}
            print(bad[0]["trace"], file=sys.stderr)
        elif any("rank" not in a for a in answers):
            measured = {"status": "timeout" if self.late else "crash", "reason": max(errors, key=len)}
        else:
            if self.fake is None:
                times = max((a["times"] for a in answers), key=sum)
                measured["step_times_s"] = times
            measured["ranks"] = [a["rank"] for a in answers]
        self.folder.cleanup()
        line = {key: value for key, value in self.case.items() if key not in NOT_WRITTEN}
        return dict(line, measured=measured)


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def json_of(path):
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        return json.load(file)
    return {}


def gpu_count():
    if not shutil.which("nvidia-smi"):
        return 8  # a dry run on the host
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return max(1, sum(line.startswith("GPU ") for line in listed.splitlines()))


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cases")
    options.add_argument("out")
    options.add_argument("--ranks", default="")
    options.add_argument("--quiet", action="store_true")
    options.add_argument("--minutes", type=float, default=1e9)
    options.add_argument("--limit-s", type=float, default=150)
    given = options.parse_args()
    with open(given.cases, encoding="utf-8") as file:
        cases = [json.loads(line) for line in file if line.strip()]
    jobs = []
    for case in cases:
        ranks = [int(r) for r in given.ranks.split(",") if r] or case.get("simulate_ranks") or [None]
        jobs += [(case, rank) for rank in ranks]
    gpus = gpu_count()
    for case, rank in jobs:
        if rank is None and world_of(case) > gpus:
            raise SystemExit(f"{case['id']}: found {gpus} GPUs, expected {world_of(case)} or --ranks")
    free, ready, running, begin, port = list(range(gpus)), [], [], time.monotonic(), 29500
    while jobs or ready or running:
        if time.monotonic() - begin > 60 * given.minutes:
            jobs = []
        ahead = (0 if running else 1) if given.quiet else 2
        while jobs and len(ready) < ahead:
            port += 1
            ready.append(Job(*jobs.pop(0), port))
        for job in [job for job in running if job.ended(given.limit_s)]:
            running.remove(job)
            free += job.gpus
            line = job.line()
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            measured = line["measured"]
            print(f"{line['id']}: {measured['status']} {measured.get('step_times_s', '')} "
                  f"{measured.get('reason', '')[:200]} after {time.monotonic() - job.begin:.0f} s",
                  flush=True)
        is_free = not running if given.quiet else ready and len(ready[0].ranks) <= len(free)
        if ready and is_free:
            running.append(ready.pop(0))
            running[-1].start([free.pop(0) for _ in running[-1].ranks])
        time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "fake")
    else:
        main()
