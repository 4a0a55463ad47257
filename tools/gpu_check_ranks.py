"""Part `ranks` of gpu_check: plans of 4 and 8 ranks on however few GPUs there are.

One process for each rank, started with torchrun's variables as if on several hosts of as many
processes as there are GPUs, all of them this machine. NCCL takes two ranks on one GPU where
NCCL_HOSTID says that they are on different hosts, and sends between hosts through sockets. So every
collective, kernel and process of a plan is real; memory and speed are those of a shared GPU and
mean nothing.
"""
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess

WORLD = 8
GLOBAL_BATCH = 4
SEQUENCE = 64
LLAMA = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 192,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "vocab_size": 509, "tie_word_embeddings": False}
EXPERTS = {**LLAMA, "model_type": "mixtral", "intermediate_size": 64, "num_local_experts": 4,
           "num_experts_per_tok": 2}
# Keys within a window: shorter than a chunk of cp 2, longer than one of cp 4.
WINDOWS = {**LLAMA, "model_type": "mistral", "sliding_window": 10}
COMPARED = {"loss": "losses", "gradient_norm": "gradient_norms"}  # as results name them
# In fp8 a layout rounds other factors than the next one, on the host too: their results may be as far
# from each other as a GPU's may be from the host's (kFp8Tolerance in tools/validate/case.h).
FP8_APART = {"loss": 1.1e-2, "gradient_norm": 3.7e-2}
# For the host backend.
NARROW = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "vocab_size": 96}
NARROW_WINDOWS = {**NARROW, "sliding_window": 5}

TP = {"tp": 2, "sequence_parallel": True}
RING = {"cp": 2, "cp_method": "ring"}
GATHER = {"cp": 2, "cp_method": "all_gather"}
PP = {"pp": 2, "schedule": "1f1b"}
VPP = {"pp": 2, "vpp": 2, "schedule": "interleaved_1f1b"}
ZERO_BUBBLE = {"pp": 2, "schedule": "zb_h1"}


def dp(zero, size=2, **more):
    return {"dp": size, "zero": zero, **more}


DENSE = [{}, {**TP, **PP}, {**TP, **VPP}, {**TP, **ZERO_BUBBLE}, {**TP, **RING}, {**TP, **GATHER},
         {"tp": 2, "sequence_parallel": False, **PP},
         *({**TP, **dp(zero)} for zero in range(4)), *({**PP, **dp(zero)} for zero in range(4)),
         {**VPP, **dp(1)}, {**ZERO_BUBBLE, **dp(1)}, {**RING, **dp(1)}, {**RING, **dp(3)},
         {**GATHER, **dp(2)}, {**PP, **RING}, {**PP, **GATHER}, {**VPP, **RING},
         {"pp": 4, "schedule": "1f1b"}, {"cp": 4, "cp_method": "ring"}, dp(3, 4, dp_replicate=2),
         # Three dimensions
         {**TP, **RING, **PP}, *({**TP, **PP, **dp(zero)} for zero in (1, 2, 3)),
         {**TP, **VPP, **dp(1)}, {**TP, **ZERO_BUBBLE, **dp(1)}, {**TP, **RING, **dp(3)},
         {**GATHER, **PP, **dp(2)}, {**TP, **dp(3, 4, dp_replicate=2)}]
MIXED = [{}, {"ep": 2, **dp(1)}, {"ep": 2, **dp(1, 4)}, {"ep": 4, **dp(1, 4)}, {"ep": 2, **TP},
         {"ep": 2, **TP, **dp(1)}, {"ep": 2, "etp": 2, **TP, **dp(1)}, {"ep": 2, **PP, **dp(1)},
         {"ep": 2, **RING, **dp(1)}, {"ep": 2, **RING, **PP},
         # Four and five dimensions
         {"ep": 2, **TP, **PP, **dp(1)}, {"ep": 4, **TP, **PP, **dp(1)},
         {"ep": 2, **RING, **PP, **dp(1)}, {"ep": 2, **TP, **RING, **PP},
         {"ep": 2, **TP, **RING, **dp(1)}, {"ep": 2, **TP, **dp(1, 4)}]
WINDOWED = [{}, {**RING, **dp(1)}, {**GATHER, **dp(1)}, {"cp": 4, "cp_method": "ring"},
            {"cp": 4, "cp_method": "all_gather"}, {**TP, **RING}, {**TP, **GATHER}, {**PP, **RING},
            {**TP, **RING, **dp(3)}]


@contextlib.contextmanager
def running(command, **options):
    """A process and what it starts, in a session of their own: however the block ends, so do they."""
    process = subprocess.Popen(list(map(str, command)), start_new_session=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def name_of(plan):
    words = [f"{key} {plan[key]}" for key in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp")
             if plan.get(key, 1) > 1]
    words += [f"zero {plan['zero']}"] if "zero" in plan else []
    words += ["replicas"] if "dp_replicate" in plan else []
    words += [plan[key] for key in ("schedule", "cp_method") if key in plan]
    return ", ".join(words + (["no sp"] if plan.get("sequence_parallel") is False else [])) or "one"


def ranks_of(plan):
    return plan.get("tp", 1) * plan.get("cp", 1) * plan.get("pp", 1) * plan.get("dp", 1)


def case(kind, model, plan, gpu, sequence, precision):
    """The same tokens whatever the plan: at least two microbatches and one for every stage."""
    ranks, copies, stages = ranks_of(plan), plan.get("dp", 1), plan.get("pp", 1)
    room = {"moe_buffer_factor": plan.get("ep", 1)} if kind == "experts" else {}
    return {"schema": 1, "id": f"{kind} {ranks}: {name_of(plan)}", "framework": "native",
            "model": model, "cluster": {"gpu": gpu, "gpus_per_node": ranks, "nodes": 1},
            "training": {"sequence_length": sequence, "precision": precision,
                         "global_batch": GLOBAL_BATCH,
                         "micro_batch": max(1, GLOBAL_BATCH // copies // max(2, stages))},
            "plan": {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "zero": 0, **room, **plan}}


def cases(gpu, backend, precision):
    """Experts have no fp8. Its products take multiples of 16 tokens: those of half a chunk of cp."""
    on_host = backend == "host"
    kinds = [("dense", LLAMA, NARROW, DENSE), ("windows", WINDOWS, NARROW_WINDOWS, WINDOWED),
             ("experts", EXPERTS, NARROW, MIXED)]
    if precision == "fp8":
        kinds, sequence = kinds[:1], 2 * SEQUENCE
    else:
        sequence = SEQUENCE // 2 if on_host else SEQUENCE
    return [case(kind, {**model, **(narrow if on_host else {})}, plan, gpu, sequence, precision)
            for kind, model, narrow, plans in kinds for plan in plans]


def environments(gpus):
    """As torchrun would set them on hosts of as many processes as there are GPUs."""
    here = min(gpus, WORLD)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(here),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "SHARDPLAN_TOKEN": secrets.token_hex(16)}
    if here < WORLD:
        common |= {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    for rank in range(WORLD):
        host = {"NCCL_HOSTID": f"host {rank // here}"} if here < WORLD else {}
        yield {**common, **host, "RANK": str(rank), "LOCAL_RANK": str(rank % here)}


def launch(check, name, lines, options):
    """What rank 0 answers in the time that is left; all processes are gone afterwards."""
    path, answer = check.out / f"{name}.jsonl", check.out / f"{name}.results.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    command = [check.program("shardplan-validate"), "validate", str(path), "--journal",
               str(check.out / f"{name}.journal.jsonl"), "--resume", "--check-against-host",
               "--steps", "2", "--warmup", "0", "--format", "json", *options]
    with (open(answer, "w") as results, open(check.out / f"{name}.log", "a") as log,
          contextlib.ExitStack() as stack, contextlib.suppress(subprocess.TimeoutExpired)):
        processes = [stack.enter_context(running(command, env=environment, stderr=log,
                                                 stdout=log if rank else results))
                     for rank, environment in enumerate(environments(check.gpus))]
        for process in processes:
            process.wait(timeout=max(0.1, check.left()))
    return [json.loads(line) for line in answer.read_text().splitlines() if line.endswith("}")]


def median_step_s(runs):
    steps = sorted(step for run in runs for step in run["step_times_s"])
    return steps[len(steps) // 2]


def apart(values):
    """The largest relative difference, step by step, of lists of the same length."""
    return max(max(step) / min(step) - 1 for step in zip(*values))


def judge(check, name, lines, results):
    """All ran, near to what the float64 host backend has and to each other."""
    by_kind = {"dense": [], "windows": [], "experts": []}
    for result in results:
        measured = result["measured"]
        if measured["status"] == "ok" and all(
                measured[f"{what}_error"] <= measured[f"{what}_tolerance"] for what in COMPARED):
            by_kind[result["id"].split()[0]].append(measured)
        else:
            check.row(f"{name} {result['id']}", False,
                      f"{measured['status']} {measured.get('reason', '')} "
                      f"{measured.get('failed', '')} " + ", ".join(
                          f"{what} {measured.get(f'{what}_error', 0):.1e}" for what in COMPARED))
    for kind, runs in by_kind.items():
        wanted = sum(one["id"].startswith(kind) for one in lines)
        if not runs:
            if wanted:
                check.row(f"{name}, {kind}", False, f"none of {wanted} layouts")
            continue
        spread = {what: apart([run[field] for run in runs]) for what, field in COMPARED.items()}
        holds = all(spread[what] <= (FP8_APART[what] if name == "fp8" else
                                     runs[0][f"{what}_tolerance"]) for what in COMPARED)
        check.row(f"{name}, {kind}", len(runs) == wanted and holds,
                  f"{len(runs)} of {wanted} layouts; from the float64 host's and from each other: "
                  + ", ".join(f"{what} {max(run[f'{what}_error'] for run in runs):.1e} and "
                              f"{spread[what]:.1e}" for what in COMPARED)
                  + f"; median step {median_step_s(runs):.2f} s")


def part_ranks(check, gpu, backend, only):
    on = ["--backend", "host"] if backend == "host" else []
    for name, precision, options in (("fp32", "bf16", ["--fp32"]), ("bf16", "bf16", []),
                                     ("fp8", "fp8", [])):
        lines = [one for one in cases(gpu, backend, precision)
                 if re.search(only, f"{name} {one['id']}")]
        if not lines:
            continue
        results = launch(check, f"ranks_{name}", lines, options + on)
        judge(check, name, lines, results)
        if len(results) < len(lines):
            check.run_out()
