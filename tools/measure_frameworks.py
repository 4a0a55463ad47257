#!/usr/bin/env python3
"""Runs case lines with the real framework under PyTorch and writes them with what was measured.

usage: measure_frameworks.py CASES.jsonl OUT.jsonl [--ranks R,R,...] [--quiet] [--steps N]
                             [--minutes M] [--limit-s S]

torchtitan: its Llama 3 and 4, Qwen3, DeepSeek-V3 and GPT-OSS models, parallelism, loss and pipeline, and the steps of its
trainer; the experts of a mixture are evenly loaded (debug.moe_force_load_balance).
megatron-core-local: Megatron-core's GPTModel with local layers, PyTorch's RMSNorm, attention and
AdamW (FusedAdam where the case says fused_optimizer), its schedules, data parallelism and optimizer
(data/measured/README.md, h200_frameworks.jsonl).
megatron: the same with Transformer Engine, APEX' fused gradients if they are found, and Megatron-LM's
defaults; ZeRO-2 and 3 are Megatron-FSDP; "fp8_recipe" in a case is --fp8-recipe, "settings" adds to
its TransformerConfig. DeepSeek's models are built of latent attention, shared experts, their routers and predicted layers.
deepspeed: the model of the transformers that is installed (Llama, Qwen3 and their mixtures), its loss and a DeepSpeed engine
of ZeRO 1 to 3 around it, with PyTorch's fused AdamW; "ds_config" in a case adds to its configuration.
nanotron: its Llama and its trainer's step (tools/frameworks/nanotron.py).
All are found on PYTHONPATH. One process a rank; cases of one rank run side by side on all GPUs.
--quiet: one case at a time, and no other process loads PyTorch meanwhile, a dozen having done so
before: for steps of which the host is the bottleneck. Ranks say how fast their host was then
(measure_host_speed.py).
--steps: after three of warm-up; 4, with --quiet 12.
--ranks (or a list "simulate_ranks" in the case): only these ranks run, each alone on a GPU, in
torch's process group "fake", whose collectives move nothing: a plan of any number of GPUs shows
what a rank allocates, but neither its times nor what NCCL takes.
"trace": PATH in a case writes every allocation of at least 1 MiB to PATH.RANK.csv.
"profile": PATH runs one more step and writes its kernels to PATH.RANK.csv: calls, microseconds of all
and of the shortest; and before which of them how long nothing ran.
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

WARMUPS, STEPS, QUIET_STEPS = 3, 4, 12
LOADED_AT_ONCE = 12  # cases of --quiet
LOADED = ".loaded"  # beside a worker's answer: it has imported what it needs
MANY_QUEUES = ("torchtitan", "deepspeed")  # the others ask for CUDA_DEVICE_MAX_CONNECTIONS=1
NOT_WRITTEN = ("simulate_ranks", "trace", "profile", "ds_config", "fp8_recipe", "settings")  # members of a case that are for this tool


def pipeline_stage(case, rank):
    """All frameworks have pp slowest."""
    return rank // (world_of(case) // case["plan"].get("pp", 1))


def world_of(case):
    plan = case["plan"]
    return plan.get("tp", 1) * plan.get("cp", 1) * plan.get("pp", 1) * plan.get("dp", 1)


def hardware_queues(case):
    """As who trains sets it: Megatron-LM asks for one, and for many where exchanges run beside work."""
    if case.get("options", {}).get("overlap_moe_expert_parallel_comm"):
        return "32"
    many = case["framework"] in MANY_QUEUES or (case["framework"] == "megatron" and case["plan"].get("zero", 1) >= 2)
    return "8" if many else "1"


def trainer_of(case):
    """The class of the framework, which alone is imported."""
    if case["framework"] == "torchtitan":
        from frameworks.torchtitan import Titan as Trainer
    elif case["framework"] == "deepspeed":
        from frameworks.deepspeed import DeepSpeed as Trainer
    elif case["framework"] == "nanotron":
        from frameworks.nanotron import Nanotron as Trainer
    else:
        options = case.get("options", {})
        if case["framework"] == "megatron-core-local" and not options.get("fused_optimizer"):
            # It is found no more: where it is, PyTorch takes flash kernels for cuDNN's attention.
            sys.modules["transformer_engine"] = None
        from frameworks.megatron import Megatron as Trainer
    return Trainer


def measure(case, rank, fake, quiet, steps):
    """The object of measured.ranks and the times of the steps after warm-up."""
    import torch
    import torch.distributed as dist
    from frameworks.absent import DEVICE
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
    options = case.get("options", {})
    if case["framework"] != "megatron" and options.get("attention_backend") == "flash":
        torch.backends.cuda.enable_cudnn_sdp(False)  # which PyTorch takes first otherwise
    trainer = trainer_of(case)(case, world)
    result["parameters"] = trainer.parameters()
    if not getattr(trainer, "keeps_collector", False):
        gc.disable()  # as torchtitan's trainer: collections between steps only
    gc.collect(1)
    times = []
    if cuda:
        result["allocated_after_init"] = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
    for index in range(WARMUPS + steps):
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
    if quiet and cuda:
        import measure_host_speed
        result["host_us_per_layer"] = measure_host_speed.host_us_per_layer()
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
        torch.distributed.barrier()  # ranks begin to record one after the other
        step()
        torch.cuda.synchronize()
    kernels = sorted(((e.time_range.start, e.time_range.end, e.name) for e in profiler.events()
                      if e.device_type == torch.autograd.DeviceType.CUDA))
    times, busy, reached = {}, 0.0, kernels[0][0]

    def count(name, microseconds):
        times.setdefault(name, []).append(microseconds)

    for begin, end, name in kernels:
        if begin > reached:
            count("nothing before " + name, begin - reached)
        count(name, end - begin)
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    with open(path, "w", encoding="utf-8") as file:
        span = reached - kernels[0][0]
        file.write(f"1,{span:.0f},{span:.0f},span\n1,{busy:.0f},{busy:.0f},busy\n")
        for name, each in sorted(times.items(), key=lambda kernel: -sum(kernel[1])):
            file.write(f"{len(each)},{sum(each):.0f},{min(each):.1f},{name[:200]}\n")


def worker(case_file, rank, out, fake, quiet, steps):
    with open(case_file, encoding="utf-8") as file:
        case = json.load(file)
    import torch  # before its turn comes: takes seconds, and no GPU
    import torch.distributed
    if quiet:  # which GPU it gets is known
        with contextlib.suppress(Exception):  # told when its turn comes
            trainer_of(case)
    write_whole(out + LOADED, True)
    while not (gpus := json_of(os.path.join(os.path.dirname(case_file), "gpus.json"))):
        time.sleep(0.05)
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpus[str(rank)])
    try:
        found, times = measure(case, rank, fake, quiet, steps)
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

    def __init__(self, case, fake, port, quiet, steps):
        self.case, self.fake, self.gpus = case, fake, []
        self.folder = tempfile.TemporaryDirectory()
        self.begin, self.late = None, False
        path = os.path.join(self.folder.name, "case.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(case, file)
        self.ranks = list(range(world_of(case))) if fake is None else [fake]
        self.outs, self.errors, self.processes = [], [], []
        for index, rank in enumerate(self.ranks):
            out = os.path.join(self.folder.name, f"{rank}.json")
            self.errors.append(os.path.join(self.folder.name, f"{rank}.stderr"))
            environment = dict(
                os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world_of(case)),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0",
                # 1 as torchrun sets it: many threads wake up slowly
                OMP_NUM_THREADS=str(case.get("options", {}).get("host_threads", 1)),
                CUDA_DEVICE_MAX_CONNECTIONS=hardware_queues(case))
            if quiet:
                environment["CUDA_VISIBLE_DEVICES"] = str(index)
            self.outs.append(out)
            with open(self.errors[-1], "w", encoding="utf-8") as errors:
                self.processes.append(subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "--worker", path, str(rank), out,
                     "fake" if fake is not None else "real", "quiet" if quiet else "busy", str(steps)],
                    env=environment,
                    stdout=subprocess.DEVNULL, stderr=errors))

    def is_loaded(self):
        return all(process.poll() is not None or os.path.exists(out + LOADED)
                   for process, out in zip(self.processes, self.outs))

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
            speeds = [a["rank"].pop("host_us_per_layer", None) for a in answers]
            measured["ranks"] = [a["rank"] for a in answers]
            if speeds[0]:
                measured["run"] = {"host_us_per_layer": speeds}
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
    options.add_argument("--steps", type=int)
    options.add_argument("--minutes", type=float, default=1e9)
    options.add_argument("--limit-s", type=float, default=150)
    given = options.parse_args()
    steps = given.steps or (QUIET_STEPS if given.quiet else STEPS)
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
        ahead = (0 if running or ready else LOADED_AT_ONCE) if given.quiet else 2
        while jobs and len(ready) < ahead:
            port += 1
            ready.append(Job(*jobs.pop(0), port, given.quiet, steps))
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
        if given.quiet:
            is_free = not running and all(job.is_loaded() for job in ready)
        else:
            is_free = ready and len(ready[0].ranks) <= len(free)
        if ready and is_free:
            free.sort()
            running.append(ready.pop(0))
            running[-1].start([free.pop(0) for _ in running[-1].ranks])
        time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "fake",
               sys.argv[6] == "quiet", int(sys.argv[7]))
    else:
        main()
