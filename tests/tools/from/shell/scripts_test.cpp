// What bash makes of a script: arguments, lists, patterns, processes.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/data/message_of.h"
#include "tests/tools/run_program.h"
#include "tools/from/file.h"
#include "tools/from/shell.h"
#include "tools/from/shell/read_shell.h"
#include "tools/from/shell/words.h"

namespace shardplan {
namespace {

// The words of `run`'s commands, as bash prints them.
std::string runs(const std::string& text, const ShellGiven& given = {}) {
  std::string all;
  for (const ShellCommand& command : read_shell(text, "x.sh", given).commands) {
    if (command.words.front() != "run") {
      continue;
    }
    for (std::size_t i = 1; i < command.words.size(); ++i) {
      all += (i > 1 ? " " : "") + command.words[i];
    }
    all += ";";
  }
  return all;
}

struct Script {
  std::string text;
  std::string printed;
};

void check(const std::vector<Script>& scripts) {
  for (const Script& script : scripts) {
    CHECK_MESSAGE(runs(script.text) == script.printed, script.text);
  }
}

RunSettings read(const std::string& text, std::vector<std::string>& notes,
                 const ScriptRequest& request = {}) {
  return settings_from_shell(text, "run.sh", notes, request);
}

}  // namespace

TEST_CASE("shift drops as many arguments as it says, or none") {
  check({
      {"set -- 1 2 4; shift 2; run $1 $#", "4 1;"},
      {"set -eo pipefail 1 2; shift; run \"$@\"", "2;"},
      {"set -- 1 2; shift 3 || run none; run $#", "none;2;"},
      {"f() { [ $# -lt 1 ] && run none; }; f \"$@\"; f 1", "none;"},
      {"set -- a b; shift $(cat n); run $1", "$a;"},
      {"set -- --tp 4 --mb 2\nwhile [ $# -gt 0 ]; do case $1 in --tp) T=$2; shift 2;; --mb) M=$2; "
       "shift 2;; esac; done\nrun $T $M",
       "4 2;"},
  });
}

TEST_CASE("getopts takes the options of the arguments") {
  const std::string loop = "while getopts ':p:x' o \"$@\"; do run $o ${OPTARG-}; done; run $OPTIND";
  check({
      {"set -- -p 4 rest; " + loop, "p 4;3;"},
      {"set -- -xp4 -- -x; " + loop, "x;p 4;3;"},
      {"set -- -q -p; " + loop, "? q;: p;3;"},
      {"set -- -p 4 a; while getopts p: o; do :; done; shift $((OPTIND - 1)); run $o $1", "? a;"},
      {"f() { local OPTIND; getopts p: o; run $OPTARG; }; f -p 1; f -p 4", "1;4;"},
      {"P=2; f() { while getopts p: o; do P=$OPTARG; done; }; f \"$@\"; run $P", "2;"},
      {"set -- -p 4; getopts $(cat options) o; run $o", "$o;"},
  });
}

TEST_CASE("--set gives any argument to a script that takes them all") {
  const std::string train = "\ntorchrun pretrain_gpt.py --num-layers 4 --micro-batch-size $P";
  for (const std::string take : {"for a in \"$@\"; do P=$a; done", "shift 2; P=$1",
                                 "while getopts a:p: o; do P=$OPTARG; done"}) {
    std::vector<std::string> notes;
    const RunSettings run = read(take + train, notes, {.set_words = {"1=-a", "2=1", "3=-p4"}});
    CHECK(run.arguments.back().values.front().find('4') != std::string::npos);
    CHECK(std::ranges::find(run.variables, "3") != run.variables.end());
  }
}

TEST_CASE("an entry of a list or a map is the last that was stored in it") {
  check({
      {"X=(a 1); X[1]=4; X[2]=b; X[1]+=2; run ${X[@]}", "a 42 b;"},
      {"X=(a b c d); unset 'X[1]'; X[1+6]=e; X+=(f); run ${X[@]} ${#X[@]} ${X[7]} ${X[-1]}",
       "a c d e f 5 e f;"},
      {"X=1; X[1]=2; run ${X[*]}; unset X; run ${X[@]-none}", "1 2;none;"},
      {"X=([2]=c d [0]=a); run \"${X[@]}\" ${X[3]}", "a c d d;"},
      {"declare -A M; M[8b]=2; M['a b']=3; M[8b]=4; K='a b'; run ${M[8b]} ${M[$K]} ${#M[@]}",
       "4 3 2;"},
      {"declare -A M=([x]=1 [y]='2 3'); M+=([x]=4); run \"${M[@]}\" ${M[z]:-none}", "4 2 3 none;"},
      {"f() { local X=(1 2); X[0]=3; run ${X[@]}; }; X=(7 8); f; run ${X[@]}", "3 2;7 8;"},
      {"X=(1 2); X[$(date)]=3; run ${X[@]}", "$X $X;"},
      {"X=($(cat list)); run ${X[1]:-none}", "${X[1]};"},
  });
}

TEST_CASE("what is quoted in a pattern matches itself only") {
  check({
      {"M='a b'; case \"$M\" in \"a b\") run 1;; *) run 2;; esac", "1;"},
      {"case 'a b' in x|a\\ b) run 1;; *) run 2;; esac", "1;"},
      {"case 7b in '7*'|\"7?\") run 1;; 7*) run 2;; esac", "2;"},
      {"case 'a)' in \"a)\") run 1;; esac; P='7*'; case 7b in $P) run 2;; esac", "1;2;"},
      {"[[ 7b == \"7*\" ]] && run 1; [[ 7b == 7\"b\" ]] && run 2; [[ 7b != 7* ]] || run 3", "2;3;"},
      {"[ 7b = '7*' ] && run 1; [ '7*' = '7*' ] && run 2", "2;"},
      {"[[ 'a 7b' =~ \"a 7\" ]] && run 1; [[ a7 =~ a\\.7 || a7 =~ 'a.' ]] || run 2", "1;2;"},
      {"A='4*8*'; run ${A%\"*8*\"} ${A%8*}", "4 4*;"},
  });
}

TEST_CASE("a branch of case may go on with the next, or with the next that matches") {
  check({
      {"case a in a) run 1;& b) run 2;; c) run 3;; esac", "1;2;"},
      {"case ab in a*) run 1;;& b) run 2;; *b) run 3;; *) run 4;; esac", "1;3;"},
  });
}

TEST_CASE("a process has variables of its own, and sees those that are exported") {
  check({
      {"P=2; P=4 run $P; run $P", "2;2;"},
      {"P=2; env P=4 run $P; f() { run $P; }; P=4 f; run $P", "4;2;"},
      {"P=2; f() { P=4; run $P; }; f | tee log; run $P; f & wait; run $P", "4;2;4;2;"},
      {"P=2; a | { P=4; }; run $P; true && P=4 & run $P; (P=4); run $P", "2;2;2;"},
      {"f() { run 1; exit; run 2; }; f | tee log; run 3", "1;3;"},
      {"A=1; export B=2; set -a; C=3; set +a; D=4 bash -c 'run $A $B $C $D'", "$A 2 3 4;"},
      {"set -- 7; bash -c 'run $1 $#'; bash -c 'run $1 $#' name 8", "$1 0;8 1;"},
      {"cat > j.sh <<'EOF'\nrun ${M:-1}\nEOF\nM=2; bash j.sh; M=3 bash j.sh; sbatch "
       "--export=ALL,M=4 j.sh; . j.sh",
       "1;3;4;2;"},
      {"P=2; f() { local P; run ${P:-4}; declare -g Q=5; }; f; run $P $Q", "4;2 5;"},
  });
}

TEST_CASE("cut takes a field of what is known") {
  check({
      {"run $(echo a:b:c | cut -d: -f2) $(echo a:b | cut -d ':' -f 1) $(echo ab | cut -d: -f 2)",
       "b a ab;"},
      {"run \"$(echo a:b | cut -d: -f 3)\" $(hostname | cut -f 1)", " $(hostname | cut -f 1);"},
      {"run $(echo a b | while read x; do echo $x; done)", "a b;"},
      {"run $(cat f | while read x; do echo 4; done)", "$(cat f | while read x; do echo 4; done);"},
  });
}

TEST_CASE("only a shell reads a file that the script writes") {
  const std::string write = "echo 'import sys\nif len(sys.argv) < 2: exit()' > m.py\n";
  CHECK(runs(write + "A=$(python m.py log); run 1; srun m.py") == "1;");
  CHECK(runs("cat > job <<'EOF'\nrun 1\nEOF\nbash job; ./job; sbatch job") == "1;1;");
  CHECK(runs("cat > ./job <<'EOF'\n#!/usr/bin/env python3\nif a:\nEOF\n./job; run 1") == "1;");
  CHECK(runs("srun python - <<EOF\nif a: b\nEOF\nrun 1") == "1;");
}

TEST_CASE("a variable may grow for long, but not without end") {
  std::string script = "D=''\n";
  for (int i = 0; i < 400; ++i) { script += "D=\"${D} 1 " + std::string(116, 'x') + "\"\n"; }
  CHECK(runs(script + "run 1") == "1;");
  std::string doubled = "D=x\n";
  for (int i = 0; i < 40; ++i) { doubled += "D=$D$D\n"; }
  CHECK(message_of([&] { runs(doubled); }).find(": $D: found more than 2097152 bytes, expected") !=
        std::string::npos);
}

TEST_CASE("a number of ranks that is not known is said, and 'gpu' means those of a node") {
  const auto ranks = [](const std::string& launcher, std::string& note) {
    std::vector<std::string> notes;
    const RunSettings run =
        read(launcher + " pretrain_gpt.py --num-layers 4", notes, {.node_gpus = 8});
    note = notes.empty() ? "" : notes.front();
    return run.num_gpus;
  };
  std::string note;
  CHECK(ranks("torchrun --nproc_per_node=gpu --nnodes 2", note) == 16);
  CHECK(ranks("torchrun --nproc-per-node auto", note) == 8);
  CHECK(ranks("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nmpirun python", note) == 8);
  CHECK(ranks("#SBATCH -N 2\nmpirun -npernode 4 python", note) == 8);
  CHECK(ranks("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
              "N=$(echo $SLURM_TASKS_PER_NODE | cut -d '(' -f 1)\n"
              "mpirun -np $((SLURM_JOB_NUM_NODES * N)) python",
              note) == 16);
  CHECK(note == "");
  CHECK(ranks("mpirun -np $((2 * N)) python", note) == 0);
  CHECK(note ==
        "run.sh:1: -np $((2 * N)): the number of ranks is not known here, the cluster's GPUs are "
        "assumed; --num-gpus says otherwise");
  CHECK(ranks("torchrun --nproc_per_node 8 --nnodes $N", note) == 0);
  CHECK(note.find(": --nnodes $N: the number of ranks is not known") != std::string::npos);
}

TEST_CASE("ranks that are no whole nodes are those of the launcher, not of an option") {
  const TemporaryDirectory directory;
  const std::string script = directory.path() + "/run.sh";
  write_file(script,
             "torchrun --nnodes 3 --nproc_per_node 4 pretrain_gpt.py --num-layers 4 "
             "--hidden-size 256 --num-attention-heads 8 --seq-length 512 "
             "--max-position-embeddings 512 --micro-batch-size 1 --bf16\n");
  const ProgramRun run = run_in_full({"estimate", "--cluster", "4x8-h100", "--from", script});
  CHECK(run.exit_code == 2);
  CHECK(run.err.find(script + ": found a launcher that starts 12 ranks, expected a multiple of the "
                              "8 GPUs of a node") != std::string::npos);
}

TEST_CASE("trainings that differ by an argument that only the first has name it") {
  const std::string loop =
      "for m in '--recompute-activations' ''; do torchrun pretrain_gpt.py --num-layers 4 $m; done";
  CHECK(message_of([&] {
          std::vector<std::string> notes;
          read(loop, notes);
        }).find("differ in --recompute-activations (--recompute-activations, or not given)") !=
        std::string::npos);
}

}  // namespace shardplan
