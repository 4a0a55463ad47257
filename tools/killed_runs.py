"""Small batches of shardplan for check_kills, run, killed and held against undisturbed ones."""
import collections
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

OK, NEGATIVE, INPUT, ENVIRONMENT, BUG, DEAD_RANK = range(6)  # exit codes
TIMEOUT_S = 120

VALIDATE = ["--backend", "host", "--steps", "1", "--warmup", "0", "--format", "json"]
MODEL = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96,
         "tie_word_embeddings": False}
PLANS = [(1, {"tp": 1}), (2, {"tp": 2, "sequence_parallel": True}),
         (2, {"pp": 2, "schedule": "1f1b"}), (2, {"dp": 2, "zero": 3})]


def batch_line(number):
    return {"schema": 1, "id": f"b{number}", "framework": "megatron", "model": "llama3-8b",
            "cluster": "1x8-h200",
            "training": {"sequence_length": 1024 * (number + 1), "micro_batch": 1,
                         "num_microbatches": 8, "precision": "bf16"},
            "plan": {"tp": 2, "pp": 2, "dp": 2, "zero": 1}}


def validate_line(number):
    gpus, plan = PLANS[number % len(PLANS)]
    return {"schema": 1, "id": f"v{number}", "framework": "native", "model": MODEL,
            "cluster": {"gpu": "h200", "gpus_per_node": gpus, "nodes": 1},
            "training": {"sequence_length": 16, "micro_batch": 1, "num_microbatches": 2,
                         "precision": "bf16"}, "plan": plan}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lasting(result):
    """Of a result line what every run gives again: neither times nor what it was called with."""
    line = json.loads(result)
    measured = line["measured"]
    return [line["id"], measured["status"], measured.get("losses"), measured.get("gradient_norms"),
            [rank["peak_allocated"] for rank in measured.get("ranks", [])]]


def ended(code, *allowed):
    """Whether a process that signals may end at any moment ended as README.md says."""
    return code in allowed or any(code in (-number, 128 + number) for number in allowed
                                  if isinstance(number, signal.Signals))


class Runs:
    """Programs of one build, what they may not do, and what has been done to them."""

    def __init__(self, build, seed, kills, folder):
        self.build = Path(build).resolve()
        self.random = random.Random(seed)
        self.kills = kills
        self.folder = folder
        self.mark = "SHARDPLAN_CHECK_KILLS=" + secrets.token_hex(8)
        self.broken, self.skipped, self.count = [], [], collections.Counter()

    def fresh(self, name):
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def require(self, holds, text):
        if not holds:
            self.broken.append(text)
            print("BROKEN:", text, flush=True)
        return holds

    def skip(self, text):
        self.skipped.append(text)

    def start(self, words, stdout=subprocess.PIPE, before=None):
        name, _, value = self.mark.partition("=")
        program = self.build / ("shardplan-validate" if words[0] == "validate" else "shardplan")
        return subprocess.Popen([program, *map(str, words)], stdin=subprocess.DEVNULL, stdout=stdout,
                                stderr=subprocess.PIPE, text=True, preexec_fn=before,
                                env={**os.environ, "OMP_NUM_THREADS": "2", name: value})

    def end_of(self, process):
        """Exit code, or minus the signal; standard output and error."""
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.require(False, f"hangs: {process.args}")
        self.require(process.returncode not in (BUG, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS),
                     f"{process.returncode}: {process.args}: {err}")
        return process.returncode, out or "", err

    def run(self, words, **options):
        return self.end_of(self.start(words, **options))

    def processes(self):
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and self.mark.encode() in (
                        folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def require_no_process(self, what):
        end = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.01)
        self.require(not left, f"{what}: processes {left} are left")

    def num_kills(self):
        return sum(count for name, count in self.count.items() if name.startswith("SIG"))

    def killed_at(self, process, seconds, number):
        """A signal after so long, if it still runs then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
            self.count["was over"] += 1
        if process.returncode is None:
            process.send_signal(number)
            self.count[number.name] += 1
        return self.end_of(process)


class Journaled:
    """A batch of validate with a journal, and what an undisturbed run gives."""

    def __init__(self, check, name, count):
        self.check, self.folder, self.count = check, check.fresh(name), count
        self.cases, self.journal = self.folder / "cases.jsonl", self.folder / "journal"
        self.out = self.folder / "out.json"
        write_lines(self.cases, map(validate_line, range(count)))
        begin = time.monotonic()
        code, _, err = check.run(self.words())
        self.usual_s = time.monotonic() - begin
        check.require(code == OK, f"{name}: undisturbed: {code} {err}")
        self.whole = self.journal.read_text()
        self.results = [lasting(line) for line in self.out.read_text().splitlines()]
        self.reset()

    def words(self, *more):
        return ["validate", self.cases, *VALIDATE, "--journal", self.journal, "--out", self.out,
                *more]

    def reset(self):
        self.journal.unlink(missing_ok=True)
        self.out.unlink(missing_ok=True)

    def require_whole(self, what):
        results = [lasting(line) for line in self.out.read_text().splitlines()]
        self.check.require(results == self.results, f"{what}: {results} instead of {self.results}")

    def require_resumed(self, what):
        """Whatever the journal holds: the rest runs, and all is there once."""
        code, _, err = self.check.run(self.words("--resume"))
        if self.check.require(code == OK, f"{what}: resumed: {code} {err}"):
            self.require_whole(what)
