"""What PyTorch's allocator did in a run of the Trainer: a list of events, with marks where its parts begin.

The file: {"case", "frames": [text], "events": [[kind, bytes, stream, address, [frame, ..]]], "marks": [[event, name]]}.
kind: "a" alloc, "f" free (completed: the block can be used again), "r" a free that was asked for and completed only later
(other streams used the block), "S" and "s" a segment taken from the driver and given back, "o" out of memory.
bytes are those asked for. frame: an index into frames, innermost first, of allocations alone; a frame is FILE:LINE FUNCTION.
A mark stands before the event of its index. Marks of autograd's nodes are named "node NAME".
"""
import gzip
import json
import re

import torch
import transformers

MAX_EVENTS = 4_000_000
KINDS = {"alloc": "a", "free_completed": "f", "free_requested": "r", "segment_alloc": "S", "segment_free": "s",
         "segment_map": "S", "segment_unmap": "s", "oom": "o"}  # fmt: skip
FRAMES = 3
# Files whose frames stand between a module and its forward function, and say nothing.
WRAPPERS = ("torch/nn/modules/module.py", "torch/utils/_contextlib.py", "torch/_dynamo/eval_frame.py", "torch/_compile.py")
# A C++ function that says which operator or which node of autograd allocates.
NATIVE = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)|autograd::(?:generated::)?(\w+)::apply\(|(AccumulateGrad)::apply")


def graph_nodes(root):
    """The nodes of autograd that a backward pass from the root visits."""
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(after for after, _ in node.next_functions)
    return seen


class Trace:
    def __init__(self, on_cuda, native):
        self.on_cuda, self.native = on_cuda, native
        self.marks, self.entries = [], None

    def start(self):
        if self.on_cuda:
            stacks = "all" if self.native else "python"
            torch.cuda.memory._record_memory_history("all", context="alloc", stacks=stacks, max_entries=MAX_EVENTS)
            self.before = self.requests()

    def requests(self):
        """Allocations and frees asked for so far, which count the events up to now."""
        stats = torch._C._cuda_memoryStats(torch.cuda.current_device())["allocation"]["all"]
        return stats["allocated"] + stats["freed"]

    def mark(self, name):
        if self.entries is None:
            self.marks.append((self.requests() - self.before if self.on_cuda else 0, name))

    def mark_nodes(self, loss):
        """A node's mark is set before the node runs, when nothing of its own is allocated yet.

        A node that accumulates a gradient gets none: it takes the tensor over where nobody else holds it.
        """
        for node in graph_nodes(loss.grad_fn):
            if not node.name().endswith("AccumulateGrad"):
                name = "node " + node.name()
                node.register_prehook(lambda gradients, name=name: self.mark(name))

    def stop(self):
        if self.entries is None:
            self.entries = []
            if self.on_cuda:
                torch.cuda.synchronize()
                device = torch.cuda.current_device()
                self.entries = torch.cuda.memory._snapshot()["device_traces"][device]
                torch.cuda.memory._record_memory_history(None)

    def frames_of(self, entry):
        """The innermost frames; before them, of those of C++, the operators and nodes."""
        python, native = [], []
        for frame in entry.get("frames", []):
            if frame["filename"].endswith(".py"):
                file = frame["filename"].split("site-packages/")[-1].split("/dist-packages/")[-1]
                if file not in WRAPPERS:
                    python.append(f"{file}:{frame['line']} {frame['name']}")
            elif found := NATIVE.search(frame["name"]):
                named = next(group for group in found.groups() if group)
                if named not in native:
                    native.append(named)
        return native[:FRAMES] + python[:FRAMES]

    def compact(self):
        """(frames, events, marks), an index of each mark found by counting the requests before it."""
        numbers, events, marks, requests = {}, [], [], 0
        waiting = sorted(self.marks, key=lambda mark: mark[0])
        begun = 0
        for position, entry in enumerate(self.entries):
            kind = KINDS.get(entry["action"])
            while kind not in (None, "f") and begun < len(waiting) and waiting[begun][0] <= requests:
                marks.append((len(events), waiting[begun][1]))
                begun += 1
            requests += kind in ("a", "r")
            if kind is None or (kind == "r" and self.completes(position)):
                continue
            frames = self.frames_of(entry) if kind == "a" else []
            indices = [numbers.setdefault(frame, len(numbers)) for frame in frames]
            events.append([kind, entry["size"], entry.get("stream", 0), entry.get("addr", 0)] + ([indices] if indices else []))
        marks += [(len(events), name) for _, name in waiting[begun:]]
        return list(numbers), events, marks

    def completes(self, position):
        """Whether the free that is asked for here is completed at once."""
        if position + 1 == len(self.entries):
            return False
        after = self.entries[position + 1]
        return after["action"] == "free_completed" and after["addr"] == self.entries[position]["addr"]

    def write(self, path, case):
        self.stop()
        frames, events, marks = self.compact()
        with gzip.open(path, "wt") as file:
            json.dump({"case": case, "frames": frames, "events": events, "marks": marks}, file, separators=(",", ":"))


class StepMarks(transformers.TrainerCallback):
    """Marks around a step's parts that the Trainer tells; the trace ends with the second step."""

    def __init__(self, trace):
        self.trace = trace

    def on_train_begin(self, args, state, control, **others):
        self.trace.mark("train")

    def on_step_begin(self, args, state, control, **others):
        self.trace.mark(f"step {state.global_step + 1}")

    def on_pre_optimizer_step(self, args, state, control, **others):
        self.trace.mark("optimizer")

    def on_optimizer_step(self, args, state, control, **others):
        self.trace.mark("zero_grad")

    def on_step_end(self, args, state, control, **others):
        self.trace.mark("step end")
        if state.global_step == 2:
            self.trace.stop()


def traced(trainer, trace):
    """The Trainer's class with marks before and after its forward and backward passes."""

    class Traced(trainer):
        def training_step(self, *inputs, **others):
            trace.mark("training_step")
            loss = super().training_step(*inputs, **others)
            trace.mark("backward end")
            return loss

        def compute_loss(self, *inputs, **others):
            trace.mark("forward")
            loss = super().compute_loss(*inputs, **others)
            trace.mark("backward")
            if trace.entries is None:
                trace.mark_nodes(loss)
            return loss

    return Traced
