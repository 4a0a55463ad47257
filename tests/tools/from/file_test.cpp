#include "tools/from/file.h"
#include "tests/data/message_of.h"
#include "tests/tools/run_program.h"
#include "tools/from/shell.h"
#include "tools/from/shell/read_shell.h"
#include "tools/from/toml.h"
#include "tools/from/yaml.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace shardplan {
namespace {

constexpr const char* kScript = R"sh(#!/bin/bash
#SBATCH --nodes=2
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8; NODES=${NODES:-2}
WORLD=$(($GPUS * $NODES))   # not read
LAUNCHER=(--nproc_per_node $GPUS --nnodes $NODES)
MODEL=(
  --num-layers 4  # layers
  --hidden-size 256
  --num-attention-heads 8 --max-position-embeddings 512
)
TRAINING="--micro-batch-size 1 \
  --bf16"
TRAINING+=" --seq-length 512"
NCCL_DEBUG=INFO torchrun ${LAUNCHER[@]} pretrain_gpt.py "${MODEL[@]}" ${TRAINING} \
  --data-path "$DATA" --hidden-dropout=0 2>&1 | tee run.log
)sh";

RunSettings of_shell(const std::string& text) {
  std::vector<std::string> notes;
  return settings_from_shell(text, "run.sh", notes);
}

std::vector<std::string> values_of(const RunSettings& settings, const std::string& name) {
  const auto found = std::ranges::find(settings.arguments, name, &Setting::name);
  REQUIRE_MESSAGE(found != settings.arguments.end(), name);
  return found->values;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a launch script gives its arguments, its exports and its number of GPUs") {
  const RunSettings settings = of_shell(kScript);
  CHECK(values_of(settings, "--num-layers") == Words{"4"});
  CHECK(values_of(settings, "--num-attention-heads") == Words{"8"});
  CHECK(values_of(settings, "--seq-length") == Words{"512"});
  CHECK(values_of(settings, "--bf16").empty());
  CHECK(values_of(settings, "--hidden-dropout") == Words{"0"});
  CHECK(values_of(settings, "--data-path") == Words{"$DATA"});  // nobody set it
  CHECK(settings.arguments.size() == 9);                        // "2>&1" and tee are none
  CHECK(settings.num_gpus == 16);
  REQUIRE(settings.environment.size() == 2);
  CHECK(settings.environment[0].name == "CUDA_DEVICE_MAX_CONNECTIONS");
  CHECK(settings.environment[0].values == Words{"1"});
  CHECK(settings.environment[1].name == "NCCL_DEBUG");
}

TEST_CASE("quotes, defaults and arithmetic mean what they mean to a shell") {
  const auto words = [](const std::string& text) {
    return read_shell(text, "x.sh").commands.back().words;
  };
  CHECK(words("A='1 2'\nrun $A \"$A\" '$A'") == Words{"run", "1", "2", "1 2", "$A"});
  CHECK(words("run ${B:-7} ${C-x}y \\$D") == Words{"run", "7", "xy", "$D"});
  CHECK(words("N=4\nrun $((N*(2+1)/2)) $((N*Q))") == Words{"run", "6", "$((N*Q))"});
  CHECK(words("A=(a 'b c'\n d)\nrun \"${A[@]}\" $A") == Words{"run", "a", "b c", "d", "a"});
  CHECK(words("run a \\\n  b # c\n") == Words{"run", "a", "b"});
  CHECK(words("if [ -n x ]; then run a; fi") == Words{"run", "a"});
  CHECK(words("A=(a (b <c;d\ne)\nrun ${A[@]}") == Words{"run", "a", "b", "c", "d", "e"});
  CHECK(words("cat <<EOF\n--x\nEOF\nrun b") == Words{"run", "b"});
  CHECK(words("N=4\nrun $(( (N > 2) ? 1 : 0 )) $((N % 3 == 1 && N < 4))") ==
        Words{"run", "1", "0"});
  CHECK(words("A=(a 'b c')\nB=\"x ${A[@]} y\"\nC=${A[*]}\nrun $B $C") ==
        Words{"run", "x", "a", "b", "c", "y", "a", "b", "c"});
  CHECK(words("A=(a b)\nA=x\nA+=y\nA+=(z)\nrun ${A[@]}") == Words{"run", "xy", "b", "z"});
  CHECK(words("A=$((2 * Q))\nB=\"$(hostname -f) x\"\nrun $A $B") ==
        Words{"run", "$((2 * Q))", "$(hostname -f)", "x"});
  CHECK(words("run $(hostname -f) > log 2>&1") == Words{"run", "$(hostname -f)"});
  CHECK(words("A='1 '\nrun $A 2 $A") == Words{"run", "1", "2", "1"});  // no empty words
  CHECK(words("A=()\nrun \"${A[@]}\" ${A[@]} x\"${A[@]}\" \"\"") == Words{"run", "x", ""});
  CHECK(words("A=(a '')\nrun \"${A[@]}\" ${A[@]}") == Words{"run", "a", "", "a"});
  CHECK(words("A=1\nrun ${A:?not set} ${A:+--a $A} ${B:+--b}") == Words{"run", "1", "--a", "1"});
  CHECK(words("A=a/b.c.sh\nrun ${A%.sh} ${A##*/} ${A%%.*} ${A/b/x} ${A^^}") ==
        Words{"run", "a/b.c", "b.c.sh", "a/b", "a/x.c.sh", "A/B.C.SH"});
  CHECK(words("A=(a b)\nrun ${#A[@]} ${A[1]} $# ${A[7]:-none}") ==
        Words{"run", "2", "b", "0", "none"});
  CHECK(words("declare -A M=([8b]=32 [70b]=80)\nS=70b\nrun ${M[$S]} ${M[8b]}") ==
        Words{"run", "80", "32"});
  CHECK(words(": ${A:=7}\nB=$A\nrun $B ${C-} ${D:+x}y $1") == Words{"run", "7", "y", "$1"});
  CHECK(words("run $(basename /a/b.sh) $(echo a b) $(expr 2 + 3) `seq 2`") ==
        Words{"run", "b.sh", "a", "b", "5", "1", "2"});
}

TEST_CASE("what the caller of a script adds is noted, not taken for a value") {
  const std::string script = "python pretrain_gpt.py --num-layers 4 --bf16 ";
  for (const char* callers : {"$@", "\"$@\"", "${@:2}", "$*"}) {
    std::vector<std::string> notes;
    const RunSettings settings = settings_from_shell(script + callers, "run.sh", notes);
    CHECK(values_of(settings, "--bf16").empty());
    REQUIRE(notes.size() == 1);
    CHECK(notes.front().starts_with("run.sh:1: $"));
  }
  CHECK(message_of([] { of_shell("python pretrain_gpt.py $ARGS"); }) ==
        "run.sh:1: found '$ARGS' behind the program's name, a variable that nothing in this file "
        "sets, expected an argument such as --bf16");
}

TEST_CASE("a script without a training command is refused in one line") {
  CHECK(message_of([] {
          of_shell("echo hello\n");
        }).starts_with("run.sh: found no command that starts a .py file with arguments"));
  CHECK(message_of([] { of_shell("A=(1 2\n"); }) ==
        "run.sh:1: found a list without an end, expected ')'");
  CHECK(message_of([] { of_shell("run 'x\n"); }) ==
        "run.sh:1: found a quotation without an end, expected '");
}

TEST_CASE("variables that grow without end are refused, and so are defaults that nest") {
  const auto times = [](int count, const std::string& text) {
    std::string all;
    for (int i = 0; i < count; ++i) { all += text; }
    return all;
  };
  for (const std::string& script :
       {"A=xx\n" + times(40, "A=$A$A\n"), "A=xx\n" + times(40, "A=\"$A$A\"\n"),
        "A=xx\n" + times(40, "A+=$A\n"), "A=(x x)\n" + times(40, "A=(\"${A[@]}\" ${A[@]})\n"),
        "A=('' '')\n" + times(40, "A+=(\"${A[@]}\")\n")}) {
    CHECK(message_of([&] { of_shell(script); }).find(": $A: found more than ") !=
          std::string::npos);
  }
  CHECK(message_of([&] { of_shell("A=" + times(17, "${A:-") + "x" + times(17, "}") + "\n"); }) ==
        "run.sh:1: found more than 16 expansions within each other, expected fewer");
}

TEST_CASE("no beginning of a launch script crashes the reader") {
  const std::string script = kScript;
  for (std::size_t length = 0; length < script.size(); ++length) {
    message_of([&] { of_shell(script.substr(0, length)); });
  }
}

TEST_CASE("a test configuration gives MODEL_ARGS and ENV_VARS") {
  const RunSettings settings = settings_from_yaml(
      "ENV_VARS:\n  NCCL_ALGO: Ring\nMODEL_ARGS:\n  --num-layers: 12\n  --bf16: true\n"
      "  --fp16: false\n  --recompute-modules: \"[mlp moe]\"\n  --moe-layer-freq: \"[0]*1\"\n",
      "c.yaml");
  CHECK(values_of(settings, "--num-layers") == Words{"12"});
  CHECK(values_of(settings, "--bf16").empty());
  CHECK(values_of(settings, "--recompute-modules") == Words{"mlp", "moe"});
  CHECK(values_of(settings, "--moe-layer-freq") == Words{"[0]*1"});
  CHECK(settings.arguments.size() == 4);  // false is not given
  CHECK(settings.arguments.front().place == "c.yaml:4: --num-layers: ");
  CHECK(settings.environment.front().values == Words{"Ring"});
  const RunSettings capital =
      settings_from_yaml("MODEL_ARGS:\n  --bf16: True\n  --fp16: FALSE\n", "c.yaml");
  CHECK(capital.arguments.size() == 1);
  CHECK(values_of(capital, "--bf16").empty());
  CHECK(message_of([] {
          settings_from_yaml("a: 1\n", "c.yaml");
        }).starts_with("c.yaml: found no run in it, expected MODEL_ARGS"));
  CHECK(message_of([] { settings_from_yaml("a: \"\\\xdd\"\n", "c.yaml"); }) ==
        "c.yaml:1: found no YAML here: unknown escape character: ?");
  CHECK(message_of([] { settings_from_yaml("a: [1\n", "c.yaml"); }).find("found no YAML here") !=
        std::string::npos);
}

TEST_CASE("a test configuration is read as its runner reads it: merged, escaped for a shell") {
  const RunSettings settings = settings_from_yaml(
      "MODE: pretraining\nBASE: &base\n  --num-layers: 12\n  --bf16: true\nMODEL_ARGS:\n"
      "  <<: *base\n  --num-layers: 6\n"
      "  --pipeline-model-parallel-layout: Et*3\\\\|\\\\(tt\\\\|\\\\)*6mL\n",
      "c.yaml");
  CHECK(settings.arguments.size() == 4);
  CHECK(settings.arguments[2].values == Words{"6"});  // the last counts
  CHECK(values_of(settings, "--pipeline-model-parallel-layout") == Words{"Et*3|(tt|)*6mL"});
  CHECK(
      message_of([] { settings_from_yaml("MODE: inference\nMODEL_ARGS: {}\n", "c.yaml"); }) ==
      "c.yaml:1: MODE: found \"inference\", expected pretraining: steps of training are estimated");
}

TEST_CASE("a mapping merged into itself is refused") {
  CHECK(message_of([] {
          settings_from_yaml("MODEL_ARGS: &a\n  --num-layers: 2\n  <<: *a\n", "c.yaml");
        }) == "c.yaml:1: found more than 16 merges (<<) within each other, expected fewer");
}

TEST_CASE("a program that trains no GPT decoder is refused by its name") {
  CHECK(message_of([] { of_shell("torchrun /x/pretrain_t5.py --num-layers 4"); }) ==
        "run.sh:1: found pretrain_t5.py, which trains a T5, expected a program that trains a GPT "
        "decoder, such as pretrain_gpt.py");
  CHECK(message_of([] {
          of_shell("python tools/run_text_generation_server.py --num-layers 4");
        }).find("generates text") != std::string::npos);
  CHECK(of_shell("python my_training.py --num-layers 4").arguments.size() == 1);
}

TEST_CASE("a file of arguments without a command gives the variable that holds them, with a note") {
  std::vector<std::string> notes;
  const RunSettings settings = settings_from_shell(
      "OTHER='--lr 1'\nMODEL_ARGS=\" \\\n --num-layers 36 \\\n --bf16 \\\n\"\n", "m.sh", notes);
  CHECK(values_of(settings, "--num-layers") == Words{"36"});
  CHECK(settings.arguments.size() == 2);
  REQUIRE(notes.size() == 1);
  CHECK(
      notes.front().starts_with("m.sh: no command starts a .py file: the arguments in MODEL_ARGS"));
}

TEST_CASE("configurations that are too deep or too long for any run are refused in one line") {
  const auto deep = [](int levels) {
    std::string text = "a";
    for (int i = 1; i < levels; ++i) { text += ".a"; }
    return text + " = 1\n";
  };
  CHECK(settings_from_toml(deep(8), "t.toml").arguments.size() == 1);
  CHECK(message_of([&] {
          settings_from_toml(deep(9), "t.toml");
        }).starts_with("t.toml:1: found tables more than 8 deep"));
  CHECK(message_of([&] {
          settings_from_toml(deep(9000), "t.toml");
        }).starts_with("t.toml:1: found tables more than 8 deep"));
  CHECK(message_of([&] {
          settings_from_toml(deep(200'000), "t.toml");
        }).starts_with("t.toml: found 400004 bytes, expected a configuration of at most"));
}

TEST_CASE("a torchtitan configuration gives its settings by path") {
  const RunSettings settings = settings_from_toml(
      "[training]\nseq_len = 8192\n[model]\nconverters = []\n[compile]\nenable=true\n"
      "components = [\"model\", \"loss\"]\n",
      "t.toml");
  CHECK(settings.format == RunFormat::kTorchtitan);
  CHECK(values_of(settings, "training.seq_len") == Words{"8192"});
  CHECK(values_of(settings, "compile.enable") == Words{"true"});
  CHECK(values_of(settings, "compile.components") == Words{"model", "loss"});
  CHECK(settings.arguments.size() == 3);  // an empty list sets nothing
  CHECK(message_of([] {
          settings_from_toml("x = \n", "t.toml");
        }).starts_with("t.toml:1: found no TOML here"));
}

TEST_CASE("arguments in JSON may stand alone or beside an environment") {
  CHECK(settings_from_json(R"({"--bf16": true})", "a.json").arguments.size() == 1);
  CHECK(settings_from_json(R"(["--tp", 2])", "a.json").arguments.size() == 1);
  CHECK(settings_from_json(R"({"arguments": [], "environment": {"A": 1}})", "a.json")
            .environment.size() == 1);
  CHECK(message_of([] { settings_from_json("3", "a.json"); }) ==
        "a.json:1: found integer 3, expected the arguments of a run as an object or a list");
}

TEST_CASE("estimate --from says how every setting was taken, and --set changes one") {
  const TemporaryDirectory directory;
  const std::string script = directory.path() + "/run.sh";
  write_file(script, kScript);
  const auto run = [&](Words more) {
    Words words = {"estimate", "--cluster", "2x8-h100",           "--from",
                   script,     "--set",     "attention-dropout=0"};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words);
  };
  const ProgramRun plain = run({"--set", "micro_batch=2"});
  CHECK(plain.exit_code == 0);
  CHECK(plain.out.find("12 settings, 9 read") != std::string::npos);
  CHECK(plain.out.find("micro_batch 2") != std::string::npos);
  const ProgramRun changed = run({"--set", "num-layers=x"});
  CHECK(changed.exit_code == 2);
  CHECK(changed.err.find("--set num-layers=x: found \"x\", expected an integer") !=
        std::string::npos);
  const ProgramRun unsupported = run({"--set=--perform-rl-step"});
  CHECK(unsupported.exit_code == 2);
  CHECK(unsupported.out.find("UNSUPPORTED  --perform-rl-step") != std::string::npos);
  CHECK(run({"--set=--perform-rl-step", "--set", "perform-rl-step=false"}).exit_code == 2);
  std::string refused = kScript;
  refused.replace(refused.find("--bf16"), 6, "--bf16 --perform-rl-step");
  write_file(script, refused);
  CHECK(run({}).exit_code == 2);
  CHECK(run({"--set", "perform-rl-step=false"}).exit_code == 0);
  CHECK(run({"--set", "perform-rl-step="}).exit_code == 0);
}

TEST_CASE("--set with a name that neither the framework nor the file has is refused") {
  const TemporaryDirectory directory;
  const std::string script = directory.path() + "/run.sh";
  write_file(script, std::string(kScript) + "  --my-own 3\n");
  const auto run = [&](const std::string& word) {
    return run_in_full({"estimate", "--cluster", "2x8-h100", "--from", script, "--set", word});
  };
  const ProgramRun misspelt = run("seq-lenght=4096");
  CHECK(misspelt.exit_code == 2);
  CHECK(misspelt.err.find("--set: found 'seq-lenght', which neither megatron core_v0.16.1 nor " +
                          script + " has") != std::string::npos);
  CHECK(misspelt.err.find("did you mean \"seq-length\"?") != std::string::npos);
  CHECK(run("my-owm=false").exit_code == 2);
  // Not in the file, but an argument; with underscores; without any.
  for (const char* word : {"recompute-granularity=selective", "num_layers=8", "bf16"}) {
    CHECK_MESSAGE(run(word).exit_code == 0, word);
  }
}

TEST_CASE("--set takes torchtitan's names in both spellings, and its lists") {
  const ArgumentTable table = argument_table(Library(), "torchtitan");
  RunSettings settings = settings_from_toml("[compile]\ncomponents = [\"model\"]\n", "t.toml");
  CHECK(argument_named(settings, table, "training.local-batch-size") ==
        "training.local_batch_size");
  CHECK(argument_named(settings, table, "training.local_batch_sise").empty());
  override_setting(settings, table,
                   {.name = "compile.components", .values = {"model,loss"}, .place = ""});
  CHECK(settings.arguments.back().values == Words{"model", "loss"});
  override_setting(settings, table, {.name = "compile.components", .values = {""}, .place = ""});
  CHECK(settings.arguments.empty());
}

TEST_CASE("a changed tp of a torchtitan run leaves what it leaves to data parallelism") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/t.toml";
  write_file(file, "[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\n");
  const ProgramRun run =
      run_in_full({"estimate", "--cluster", "1x8-h200", "--from", file, "--set", "tp=4"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("tp 4  pp 1  dp 2") != std::string::npos);
  CHECK(run.out.find("batch        2 sequences") != std::string::npos);
}

TEST_CASE(
    "a torchtitan configuration is launched as torchtitan's own script does, and that is said") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/t.toml";
  write_file(file, "[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\n");
  const auto out = [&](const std::string& from, Words more) {
    Words words = {"estimate", "--cluster", "1x8-h200", "--from", from};
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words).out;
  };
  const std::string said =
      "allocator: caching_expandable, as torchtitan's own run_train.sh sets it";
  CHECK(out(file, {}).find(said) != std::string::npos);
  CHECK(out(file, {"--set", "allocator=caching"}).find(said) == std::string::npos);
  // A launcher that sets nothing leaves PyTorch's own allocator.
  const std::string script = directory.path() + "/run.sh";
  write_file(script, "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file t.toml\n");
  CHECK(out(script, {}).find("FITS") == 0);
  CHECK(out(script, {}).find(said) == std::string::npos);
  const auto table = [](const std::string& text) {
    const std::size_t start = text.find("\nMemory of one GPU");
    return text.substr(start, text.find("step time") - start);
  };
  CHECK(table(out(script, {})) != table(out(file, {})));
  CHECK(table(out(script, {})) == table(out(file, {"--set", "allocator=caching"})));
}

TEST_CASE("a changed tp leaves the batch of a pipelined torchtitan run as its own sizes make it") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/t.toml";
  write_file(file,
             "[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 4\n"
             "[parallelism]\npipeline_parallel_degree = 2\n");
  for (const char* tp : {"1", "2", "4"}) {
    const ProgramRun run =
        run_in_full({"estimate", "--cluster", "2x8-h100", "--from", file, "--tp", tp});
    CHECK_MESSAGE(run.out.find("batch        32 sequences") != std::string::npos, tp);  // 4 x 8
  }
}

TEST_CASE(
    "a changed tp of a Megatron run turns on the sequence parallelism that its file asks for") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/run.sh";
  write_file(file,
             "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 "
             "--num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
             "--micro-batch-size 1 --bf16 --sequence-parallel\n");
  const auto out = [&](const std::string& tp) {
    return run_in_full({"estimate", "--cluster", "1x8-h100", "--from", file, "--tp", tp}).out;
  };
  CHECK(out("1").find("sequence_parallel off") != std::string::npos);
  CHECK(out("4").find("sequence_parallel on") != std::string::npos);
}

}  // namespace shardplan
