#!/usr/bin/env python3
"""Trains one case with transformers' Trainer on random weights and tokens and writes its line with what was measured.

usage: [torchrun --nproc_per_node WORLD] trainer_run.py CASE.json|- [--out OUT.jsonl] [--trace FILE.json.gz] [--native]
                                                        [--steps N] [--shared] [--cpu]

A case is a line of data/measured's hf_trainer files without "measured": framework, model (members of its config, one
with a vision_config around a text_config is made with its tower, which random tokens never call),
world, strategy single|ddp|fsdp1|fsdp2|deepspeed, model_dtype, bf16_autocast, gradient_checkpointing, fsdp (fsdp_config),
ds_config (of zero_optimization; what it leaves out is the Trainer's to say), lora (peft's),
per_device_train_batch_size, gradient_accumulation_steps, sequence_length, optim (TrainingArguments', or muon:
trainer_muon.py), max_grad_norm, attn_implementation;
and where it has them: fp16, tf32, use_reentrant, use_liger_kernel, quantization, kbit_prepare, qat (trainer_model.py), loss
stock|trl_chunked|cut_cross_entropy or of trainer_losses.py, objective (trainer_objectives.py), loop llamafactory_v1 (trainer_v1.py), packing {"lengths"} (position_ids start again at each document, no attention_mask),
padding {"lengths"} (tokens of each row that are none), train_only and freeze (expressions over names of parameters), tensor_parallel, ring,
activation_offload, ffn_tiles (trainer_parts.py), packages (of fla, mamba_ssm and causal_conv1d those that the models' mixers find; PYTHONPATH says
where they are), arguments (further TrainingArguments), fake_group: rank 0 alone
runs (or rank fake_rank), in torch's process group "fake", whose collectives move nothing. Its allocator sees what a rank of the whole world
sees; its times have no transfers, and the driver's figures no communicators. DistributedDataParallel takes no such group.
--trace: three steps; what the allocator did until the end of the second (trainer_trace.py).
--native: its allocations name operators of PyTorch and nodes of autograd too.
--shared: other processes use the GPU, and what the driver says of it is left out.
--cpu: no GPU: whether a case runs at all.
"""
import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time

if "LOCAL_RANK" not in os.environ:
    # The Trainer would spread one process over all GPUs by DataParallel.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
if "--native" in sys.argv:
    os.environ.setdefault("TORCH_SYMBOLIZE_MODE", "dladdr")  # seconds; lines of C++ would take minutes

MIXER_PACKAGES = {"fla": "fla-core", "mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}


def hide_packages(path):
    """transformers takes functions of these packages wherever it can import them, when it is imported itself."""
    with open(path) as file:
        wanted = json.load(file).get("packages", [])
    for package in MIXER_PACKAGES:
        if package not in wanted:
            sys.modules[package] = None


def found_packages():
    return [name for package, name in MIXER_PACKAGES.items() if sys.modules.get(package, package) is not None]


if os.path.isfile(sys.argv[1] if len(sys.argv) > 1 else ""):
    hide_packages(sys.argv[1])

import torch
import trainer_objectives
import transformers
from trainer_losses import LOSSES
from trainer_model import build_model, parameter_counts, text_members
from trainer_parts import parallelism_arguments, trainer_class as trainer_class_of

DEFAULTS = {
    "framework": "transformers", "world": 1, "strategy": "single", "model_dtype": "fp32", "bf16_autocast": True,
    "gradient_checkpointing": False, "fsdp": None, "lora": None, "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1, "sequence_length": 512, "optim": "adamw_torch_fused", "max_grad_norm": 1.0,
    "attn_implementation": "sdpa",
}  # fmt: skip
STEPS, TRACED_STEPS = 6, 3
GPUS = {"H200": "H200-SXM-141GB", "H100 80GB HBM3": "H100-SXM-80GB"}


def used_bytes():
    free, total = torch.cuda.mem_get_info()
    return total - free


class RandomTokens(torch.utils.data.Dataset):
    """Rows of random tokens, whole, or padded or packed as the case says."""

    def __init__(self, case, rows):
        draw = torch.Generator().manual_seed(1)
        self.case = case
        self.tokens = torch.randint(0, text_members(case)["vocab_size"], (rows, case["sequence_length"]), generator=draw)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, row):
        tokens = self.tokens[row]
        if self.case.get("packing"):
            starts_again = [torch.arange(length) for length in self.case["packing"]["lengths"]]
            return {"input_ids": tokens, "position_ids": torch.cat(starts_again), "labels": tokens.clone()}
        mask, labels = torch.ones_like(tokens), tokens.clone()
        if self.case.get("padding"):
            lengths = self.case["padding"]["lengths"]
            filled = len(tokens) - lengths[row % len(lengths)]
            mask[filled:], labels[filled:] = 0, -100
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


class Recorder(transformers.TrainerCallback):
    """The times of steps and the allocator's figures after each."""

    def __init__(self, steps, on_cuda):
        self.steps, self.on_cuda = steps, on_cuda
        self.times, self.peaks, self.between, self.at_start = [], [], None, None

    def now(self):
        if self.on_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_begin(self, args, state, control, **others):
        if self.on_cuda:
            self.at_start = torch.cuda.memory_allocated()

    def on_step_begin(self, args, state, control, **others):
        self.began = self.now()

    def on_step_end(self, args, state, control, **others):
        self.times.append(round(self.now() - self.began, 4))
        if not self.on_cuda:
            return
        self.peaks.append(torch.cuda.max_memory_allocated())
        if state.global_step == self.steps - 1:
            self.between = torch.cuda.memory_allocated()


def checkpointing_arguments(case):
    chosen = {"gradient_checkpointing": case["gradient_checkpointing"]}
    if case.get("use_reentrant") is not None:
        chosen["gradient_checkpointing_kwargs"] = {"use_reentrant": case["use_reentrant"]}
    return chosen


def deepspeed_config(case):
    """DeepSpeed's file as the trainers' examples write it."""
    members = {
        "train_micro_batch_size_per_gpu": case["per_device_train_batch_size"],
        "gradient_accumulation_steps": case["gradient_accumulation_steps"],
        "gradient_clipping": "auto",
        "bf16": {"enabled": case["bf16_autocast"]},
        "zero_allow_untested_optimizer": True,
    }
    return members | case["ds_config"]


def training_arguments(case, steps, cpu):
    members = checkpointing_arguments(case)
    if case["strategy"] in ("fsdp1", "fsdp2"):
        members |= {"fsdp": True, "fsdp_config": dict(case["fsdp"])}
        if case["fsdp"].get("cpu_offload"):
            # What accelerate's launcher sets: norms of gradients on the CPU are summed there.
            members["ddp_backend"] = "cuda:nccl,cpu:gloo"
    elif case["strategy"] == "deepspeed":
        members["deepspeed"] = deepspeed_config(case)
    if cpu:
        members |= {"use_cpu": True} | ({"ddp_backend": "gloo"} if case["world"] > 1 else {})
    if case.get("tf32") is not None:
        members["tf32"] = case["tf32"]
    return transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="trainer_run_"),
        max_steps=steps,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        bf16=case["bf16_autocast"],
        fp16=case.get("fp16", False),
        per_device_train_batch_size=case["per_device_train_batch_size"],
        gradient_accumulation_steps=case["gradient_accumulation_steps"],
        optim=DEFAULTS["optim"] if case["optim"] == "muon" else case["optim"],
        max_grad_norm=case["max_grad_norm"],
        use_liger_kernel=case.get("use_liger_kernel", False),
        **members,
        **parallelism_arguments(case),
        **case.get("arguments", {}),
    )


def own_optimizer(case):
    """What the Trainer takes in place of the optimizer that TrainingArguments name."""
    if case["optim"] != "muon":
        return {}
    from trainer_muon import MuonWithAdamW

    return {"optimizer_cls_and_kwargs": (MuonWithAdamW, {"lr": 1e-4, "table_rows": text_members(case)["vocab_size"]})}


def rank_measured(recorder, counts, context, loading_peak, shared):
    """A rank's figures, with the names of the runs that are already measured."""
    measured = {"rank": int(os.environ.get("RANK", 0)), "parameters": counts[0], "trainable": counts[1]}
    if context is None:
        return measured
    stats = torch.cuda.memory_stats()
    measured |= {
        "context": context,
        "peaks_after_each_step": recorder.peaks,
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "allocated_between_steps": recorder.between,
        "reserved_end": torch.cuda.memory_reserved(),
        "device_used_end": used_bytes(),
        "device_total": torch.cuda.mem_get_info()[1],
        "retries": stats["num_alloc_retries"],
        "peak_while_loading": loading_peak,
        "allocated_at_start": recorder.at_start,
    }
    if shared:
        measured |= {"context": None, "device_used_end": None}
    return measured


def versions():
    named = {"torch": torch.__version__.split("+")[0], "cuda": torch.version.cuda}
    for package in ("transformers", "accelerate", "deepspeed", "peft", "bitsandbytes", "liger_kernel", "trl", "cut_cross_entropy",
                    "torchao", *found_packages()):  # fmt: skip
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            named[package] = importlib.metadata.version(package)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
        named["driver"] = ".".join(subprocess.check_output(asked, text=True).split(".")[:2])
    return named


def reference_of(case):
    """A model that is not trained, beside the one that is."""
    is_anchor = case.get("objective") == "asft"
    narrow = {"model_dtype": "bf16", "gradient_checkpointing": False} if is_anchor else {}
    return build_model(case | narrow, "cpu").requires_grad_(False)


def train(case, options):
    """(status, message, times, this rank's figures) of the case."""
    on_cuda, local_rank = not options.cpu, int(os.environ.get("LOCAL_RANK", 0))
    context, trace, counts, loading_peak = None, None, (None, None), None
    if on_cuda:
        torch.cuda.set_device(local_rank)
        torch.cuda.init()
        context = used_bytes()
    recorder = Recorder(options.steps, on_cuda)
    trainer_class, callbacks = trainer_class_of(case, transformers.Trainer), [recorder]
    trainer_class = trainer_objectives.trainer_class(case, trainer_class, lambda: reference_of(case))
    if options.trace:
        import trainer_trace

        trace = trainer_trace.Trace(on_cuda, options.native)
        trainer_class = trainer_trace.traced(trainer_class, trace)
        callbacks.append(trainer_trace.StepMarks(trace))
        trace.start()
    try:
        # DeepSpeed's ZeRO-3 divides a model while it is made, where arguments that ask for it are alive.
        arguments = training_arguments(case, options.steps, options.cpu)
        if case["strategy"] == "deepspeed":
            arguments.device  # the processes find each other, which it then counts
        model = build_model(case, local_rank if on_cuda else "cpu")
        counts = parameter_counts(case, model)
        if on_cuda:
            loading_peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        rows = case["world"] * case["per_device_train_batch_size"] * case["gradient_accumulation_steps"] * options.steps
        tokens = RandomTokens(case, rows)
        if case.get("loop") == "llamafactory_v1":
            import trainer_v1

            device = torch.device("cuda", local_rank) if on_cuda else torch.device("cpu")
            trainer_v1.train(case, model, tokens, callbacks, options.steps, device, int(os.environ.get("RANK", 0)))
        else:
            trainer = trainer_class(model=model, args=arguments, train_dataset=tokens, callbacks=callbacks,
                                    compute_loss_func=LOSSES.get(case.get("loss")), **own_optimizer(case))  # fmt: skip
            trainer.train()
        status, message = "ok", None
    except torch.OutOfMemoryError as error:
        status, message = "oom", str(error)
        print(message, file=sys.stderr, flush=True)
    if trace and local_rank == 0:
        trace.write(options.trace, case)
    return status, message, recorder.times, rank_measured(recorder, counts, context, loading_peak, options.shared)


def start_fake_group(world, rank):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def write_line(case, answers, out):
    """The case's line, of all ranks' answers."""
    status = next((answer[0] for answer in answers if answer[0] != "ok"), "ok")
    message = next((answer[1] for answer in answers if answer[1]), None)
    measured = {"status": status, "step_times_s": answers[0][2], "ranks": [answer[3] for answer in answers]}
    if message:
        measured["message"] = message
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name().removeprefix("NVIDIA ")
        case = case | {"gpu": GPUS.get(name, name)}
    line = json.dumps({"id": None, "framework": None, "versions": versions()} | case | {"measured": measured})
    if out:
        with open(out, "a") as file:
            file.write(line + "\n")
    else:
        print(line)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("case")
    for name in ("--out", "--trace"):
        parser.add_argument(name)
    for name in ("--native", "--shared", "--cpu"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    options.steps = options.steps or (TRACED_STEPS if options.trace else STEPS)
    with sys.stdin if options.case == "-" else open(options.case) as file:
        case = DEFAULTS | json.loads(file.read())
    if case.get("fake_group"):
        start_fake_group(case["world"], case.get("fake_rank", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world != case["world"]:
        sys.exit(f"{case['id']}: world: found {world} processes, expected {case['world']}")
    transformers.set_seed(42)
    answer = train(case, options)
    answers = [answer]
    if world > 1 and not case.get("fake_group"):
        answers = [None] * world
        torch.distributed.all_gather_object(answers, answer)
    if case.get("fake_group") or int(os.environ.get("RANK", 0)) == 0:
        write_line(case, answers, options.out)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
