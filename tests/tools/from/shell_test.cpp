// Launch scripts with branches, loops, functions and scripts within them.
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

using Words = std::vector<std::string>;

// The words of all commands, one command a line.
std::string commands_of(const std::string& text, const ShellGiven& given = {}) {
  std::string all;
  for (const ShellCommand& command : read_shell(text, "x.sh", given).commands) {
    for (const std::string& word : command.launcher) { all += word + " "; }
    all += all.empty() || all.ends_with('\n') ? "" : "| ";
    for (const std::string& word : command.words) { all += word + " "; }
    all += "\n";
  }
  return all;
}

struct Read {
  RunSettings settings;
  Words notes;
};

Read read(const std::string& text, const Words& set = {}, std::int64_t line = 0) {
  Read result;
  result.settings =
      settings_from_shell(text, "run.sh", result.notes, {.set_words = set, .line = line});
  return result;
}

std::string value_of(const Read& run, const std::string& name) {
  const auto found = std::ranges::find(run.settings.arguments, name, &Setting::name);
  return found == run.settings.arguments.end() ? "(none)"
         : found->values.empty()               ? ""
                                               : found->values.front();
}

const std::string kTrain = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 ";

}  // namespace

TEST_CASE("only the branch that holds is run") {
  CHECK(commands_of("A=8b\nif [ $A = 7b ]; then\n a\nelif [[ $A == 8* ]]; then b; else c; fi\n") ==
        "b \n");
  CHECK(commands_of("N=4\nif [ $N -gt 2 ] && ! [ -z \"$N\" ]; then a; fi; (( N > 4 )) || b") ==
        "a \nb \n");
  CHECK(commands_of("case x.y in a|b) a;; x.*) b ;; *) c;; esac; [[ abc =~ ^a(b|c) ]] && d") ==
        "b \nd \n");
  CHECK(commands_of("if false; then a; fi; if true; then if [ a = b ]; then b; else c; fi; fi") ==
        "c \n");
  CHECK(commands_of("A=1\n[ $A = 1 ] && B=x || B=y\nrun $B") == "run x \n");
  CHECK(commands_of("a || b && c; exit 0\nd") == "a \nc \n");  // a program succeeds
}

TEST_CASE("loops run as often as they do, or once where that is not known") {
  CHECK(commands_of("for i in 1 2; do a $i; done; for i in {3..4}; do b $i; done") ==
        "a 1 \na 2 \nb 3 \nb 4 \n");
  CHECK(commands_of("i=0; while [ $i -lt 2 ]; do a $i; i=$((i+1)); done") == "a 0 \na 1 \n");
  CHECK(commands_of("for i in 1 2 3; do [ $i = 2 ] && continue; a $i; [ $i = 3 ] && break; done") ==
        "a 1 \na 3 \n");
  CHECK(commands_of("while read -r h; do a; done < hosts; while [[ $# -gt 0 ]]; do b; done") ==
        "a \n");
  CHECK(commands_of("while :; do a && break; done") == "a \n");
}

TEST_CASE("functions have arguments of their own and variables of their own") {
  CHECK(commands_of("f() {\n local x=$1; shift; run $x $# \"$@\"; }\nx=0\nf 7 a 'b c'; run $x") ==
        "run 7 2 a b c \nrun 0 \n");
  CHECK(commands_of("f() { run $(($1 * 2 + 1)); }\nf 8") == "run 17 \n");
  CHECK(commands_of("function g { return; a; }\ng; b") == "b \n");
  CHECK(commands_of("f() { f; }\na") == "a \n");
  CHECK(message_of([] { commands_of("f() { f; }\nf"); }).find("within each other") !=
        std::string::npos);
}

TEST_CASE("a script in a word, a here-document or a file of this script is run") {
  CHECK(commands_of("f() { a; }\nexport -f f\nsrun -N 2 bash -c 'f; b'") ==
        "srun -N 2 | a \nsrun -N 2 | b \n");
  CHECK(commands_of("X=1\nsrun bash -c \"$(cat <<EOF\nrun $X \\$Y\nEOF\n)\"") ==
        "srun | run 1 $Y \n");
  CHECK(commands_of("sbatch -J x --wrap 'srun a 1'\nsbatch --wrap=\"b\"") ==
        "sbatch -J x | srun a 1 \nsbatch | b \n");
  CHECK(commands_of("sbatch <<'EOF'\n#!/bin/bash\nN=2\nrun $N\nEOF\nb") == "sbatch | run 2 \nb \n");
  CHECK(commands_of("cat > j.sh <<EOF\nrun \\$1\nEOF\nbash j.sh 3") == "bash | run 3 \n");
  CHECK(commands_of("C='run 1 --x \"a b\"'\neval $C; eval \"$C\"") ==
        "run 1 --x a b \nrun 1 --x a b \n");
  CHECK(commands_of("A=x\nC=\"run $B1 ${25}\"; B1=$A; eval $C",
                    {.values = {{"2", "8b"}}, .choices = {}}) == "run $B1 $25 \n");
  CHECK(commands_of("ssh host 'python x.py --a 1'") == "ssh host | python x.py --a 1 \n");
  CHECK(commands_of("(cd x; A=1; exit 3); run $A") == "cd \nrun $A \n");
}

TEST_CASE("another script beside this one is followed, and its variables count") {
  const ShellGiven given{
      .values = {}, .choices = {}, .read_file = [](const std::string& path) {
        return path.ends_with("model.sh") ? std::optional<std::string>("LAYERS=7\n") : std::nullopt;
      }};
  CHECK(commands_of("source $(dirname $0)/model.sh\nrun $LAYERS", given) == "run 7 \n");
  CHECK(read_shell("source other.sh", "x.sh", given).unread == Words{"x.sh:1: source other.sh"});
}

TEST_CASE("a training in a script within a script is found with its launcher") {
  const Read run = read(
      "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:h100:8\n"
      "train() { torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --num-layers "
      "4; "
      "}\nexport -f train\nsrun bash -c train\n");
  CHECK(value_of(run, "--num-layers") == "4");
  CHECK(run.settings.num_gpus == 16);
  const auto gpus = [](const std::string& text) { return read(text).settings.num_gpus; };
  CHECK(gpus("srun -N 2 --ntasks-per-node 4 bash -c 'python x.py --num-layers 4'") == 8);
  CHECK(gpus("#SBATCH -N 4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
             "srun python launch.py x.py --num-layers 4") == 32);
  CHECK(gpus("mpirun -np 16 python x.py --num-layers 4") == 16);
  CHECK(gpus("torchrun --nproc_per_node 8 --nnodes $N x.py --num-layers 4") == 0);  // not stated
}

TEST_CASE("what a script prints, copies or kills is no training") {
  const Read run = read("echo python pretrain_gpt.py --num-layers 9 x y z\n" + kTrain +
                        "\npkill -f 'pretrain_gpt.py --num-layers 8 1 2 3 4 5'\n");
  CHECK(value_of(run, "--num-layers") == "4");
}

TEST_CASE("a program's argument that a program makes is no script") {
  CHECK(commands_of("A=\"$(python3 x.py -p 1)\"\nsrun bash -c \"python y.py --a 1 --d $A\"") ==
        "srun | python y.py --a 1 --d $(python3 x.py -p 1) \n");
}

TEST_CASE("a variable that nothing sets, in front of all arguments, is empty as for a shell") {
  const Read run = read("python pretrain_gpt.py $EXTRA --num-layers 4");
  CHECK(value_of(run, "--num-layers") == "4");
  CHECK(run.notes.size() == 1);
}

TEST_CASE("a launcher in Python is not the program") {
  CHECK(value_of(read("python wrap.py pretrain_gpt.py --num-layers 4"), "--num-layers") == "4");
}

TEST_CASE("a program that trains no GPT is refused by name, one of another name is said") {
  const auto found = [](const std::string& program) {
    return message_of([&] { read("\ntorchrun " + program + " --num-layers 4 --seq-length 8"); });
  };
  for (const std::string name :
       {"evaluate_megatron_llama.py", "a/convert.py", "hf2mcore_qwen2.py", "tools/mcore2hf.py",
        "pp_checkpoint_converter.py", "quantize.py", "preprocess_data.py", "run_grpo_math.py"}) {
    CHECK(
        found(name).starts_with("run.sh:2: found " + name.substr(name.find('/') + 1) + ", which "));
  }
  for (const std::string name : {"tasks/main.py", "../../tasks/msdp/main.py"}) {
    CHECK(found(name).starts_with("run.sh:2: found main.py, which runs a task"));
  }
  CHECK(read(kTrain).notes.empty());
  for (const std::string name : {"main.py", "a/train_and_evaluate.py", "pretrain_llama.py"}) {
    const Read run = read("\ntorchrun " + name + " --num-layers 4");
    CHECK(run.notes == Words{"run.sh:2: " + name.substr(name.find('/') + 1) +
                             " is taken for Megatron-LM's pretrain_gpt.py"});
  }
}

TEST_CASE("a program without an argument of Megatron-LM is said to be another's") {
  const std::string script =
      "\naccelerate launch train.py --my_model a --bf16 --per_device_train_batch_size "
      "1\n";
  CHECK(
      message_of([&] { read(script); }) ==
      "run.sh:2: found train.py without an argument of Megatron-LM, expected a program with "
      "--num-layers and its like, a Trainer of transformers with --model_name_or_path or a .yaml, "
      "or torchtitan with --job.config_file");
  CHECK(value_of(read("torchrun train.py $MODEL_ARGS --bf16"), "--bf16").empty());
  CHECK(value_of(read(script, {"num_layers=4"}), "--my_model") == "a");
}

TEST_CASE("a Trainer's script without DeepSpeed is a run of transformers") {
  const Read run = read(
      "torchrun --nproc_per_node 8 src/train_bash.py --stage sft --model_name_or_path ${model} "
      "--per_device_train_batch_size 1\n");
  CHECK(run.settings.format == RunFormat::kTransformers);
  CHECK(run.settings.trainer == TrainerProject::kFactory);
  CHECK(run.settings.num_gpus == 8);
}

TEST_CASE("commands of other trainers are told by name, and what to give instead") {
  const auto message = [](const std::string& script) { return message_of([&] { read(script); }); };
  CHECK(
      message("torchrun --nproc_per_node 4 -m torchtitan.train --module qwen3 --config qwen3_8b\n")
          .starts_with("run.sh: found torchtitan.train with --module and --config"));
  CHECK(message("llamafactory-cli webui\n")
            .starts_with("run.sh: found a command of LLaMA-Factory; expected the .yaml"));
  CHECK(message("FORCE_TORCHRUN=1 llamafactory-cli train a.yaml\n") ==
        "run.sh:1: found no file 'a.yaml' beside the script, expected the configuration of its "
        "training");
  CHECK(message("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a\n")
            .starts_with("run.sh: found verl's main_ppo, which trains by reinforcement learning"));
  CHECK(message(kTrain + "--rollout-batch-size 32\n")
            .find("with --rollout-batch-size, which trains by reinforcement learning") !=
        std::string::npos);
}

TEST_CASE("of a script that checks all its arguments one is asked for that can be set") {
  const std::string script =
      "if [[ \"$*\" == *\"--help\"* ]]; then echo usage; exit 0; fi\nMODEL=\"\"\n"
      "if [[ -z \"$MODEL\" ]]; then exit 1; fi\n" +
      kTrain + "--micro-batch-size 1\n";
  const std::string message = message_of([&] { read(script); });
  CHECK(message.find("--set *=") == std::string::npos);
  CHECK(message.find("--set NAME=VALUE of what it checks") != std::string::npos);
  CHECK(value_of(read(script, {"MODEL=a"}), "--micro-batch-size") == "1");
}

TEST_CASE("several trainings are listed, and one is chosen by its line or its variable") {
  const std::string two = kTrain + "--micro-batch-size 1\n" + kTrain + "--micro-batch-size 2\n";
  CHECK(message_of([&] { read(two); }) ==
        "run.sh: found 2 trainings, in lines 1, 2, that differ in --micro-batch-size "
        "(--micro-batch-size 1, or --micro-batch-size 2); expected one: --from run.sh:LINE chooses "
        "it");
  CHECK(value_of(read(two, {}, 2), "--micro-batch-size") == "2");
  const std::string loop = "for m in 1 2; do " + kTrain + "--micro-batch-size $m; done";
  CHECK(message_of([&] { read(loop); }).find("--set NAME=VALUE") != std::string::npos);
  CHECK(value_of(read(loop, {"m=2"}), "--micro-batch-size") == "2");
  // The same training again, with another name for its checkpoints, on every node.
  CHECK(value_of(read("for h in a b; do ssh $h " + kTrain + "--save $h; done"), "--num-layers") ==
        "4");
}

TEST_CASE("an argument that nothing gives is asked for by name where a size depends on it") {
  const std::string script =
      "SIZE=$1\nif [ \"$SIZE\" = 8b ]; then M=2\nelif [ \"$SIZE\" = 70b ]; "
      "then M=1\nfi\n" +
      kTrain + "--micro-batch-size $M\n";
  CHECK(
      message_of([&] { read(script); }) ==
      "run.sh:2: '[ \"$SIZE\" = 8b ]': found that nothing sets $1, and --micro-batch-size depends "
      "on it; expected --set 1=VALUE, or --from a script beside it that starts it with its "
      "arguments");
  CHECK(value_of(read(script, {"1=8b"}), "--micro-batch-size") == "2");
  CHECK(value_of(read(script, {"SIZE=70b"}), "--micro-batch-size") == "1");
}

TEST_CASE("a default that a variable may change is taken and noted, once") {
  const Read run = read("M=1\nif [ -n \"$DEBUG\" ]; then M=4; fi\n[[ -z $DEBUG ]] || M=4\n" +
                        kTrain + "--micro-batch-size $M\n");
  CHECK(value_of(run, "--micro-batch-size") == "1");
  CHECK(run.notes ==
        Words{"run.sh:2: '[ -n \"$DEBUG\" ]': nothing sets $DEBUG, taken as empty, and "
              "--micro-batch-size depends on it; --set DEBUG=VALUE says otherwise"});
}

TEST_CASE("a condition on files or programs is asked for only where a size depends on it") {
  const std::string harmless = "if [ -f last.txt ]; then L=\"--load x\"; fi\n" + kTrain + "$L\n";
  CHECK(read(harmless).notes.empty());
  CHECK(read("[ -f x ] && L=--nobody-knows-it\n" + kTrain + "$L\n").notes.empty());
  const std::string script =
      "if nvidia-smi | grep -q H200; then M=4; else M=2; fi\n" + kTrain + "--micro-batch-size $M\n";
  CHECK(message_of([&] { read(script); }) ==
        "run.sh:1: 'nvidia-smi | grep -q H200': found a condition that cannot be decided here, and "
        "--micro-batch-size depends on it; expected --set M=VALUE");
  CHECK(value_of(read(script, {"M=4"}), "--micro-batch-size") == "4");
}

TEST_CASE(
    "a number of GPUs that the script leaves open is the user's, or the cluster's if it fits") {
  const auto either = [](const std::string& one, const std::string& other) {
    const std::string training = " pretrain_gpt.py --num-layers 4\n";
    return "if grep -q a b; then\n  " + one + training + "else\n  " + other + training + "fi\n";
  };
  const std::string script = either("torchrun --nproc_per_node 8", "torchrun --nproc_per_node 16");
  const auto answer = [&](const std::string& text, std::int64_t num_gpus, std::int64_t cluster) {
    return message_of([&] {
      std::vector<std::string> notes;
      settings_from_shell(text, "run.sh", notes, {.num_gpus = num_gpus, .cluster_gpus = cluster});
    });
  };
  CHECK(answer(script, 0, 32) ==
        "run.sh:1: 'grep -q a b': found a condition that cannot be decided here, and the number of "
        "GPUs depends on it; expected --num-gpus N");
  CHECK(answer(script, 0, 16) == "no error");
  CHECK(answer(script, 8, 16) == "no error");
  CHECK(answer(either("torchrun --nproc_per_node 8", "srun"), 0, 32) == "no error");
  const std::string variable =
      "if grep -q a b; then N=4; else N=8; fi\ntorchrun --nproc_per_node $N pretrain_gpt.py "
      "--num-layers 4";
  CHECK(answer(variable, 0, 16).ends_with("; expected --set N=VALUE or --num-gpus N"));
  CHECK(answer(variable, 16, 0) == "no error");
}

TEST_CASE("a script that exits before it trains says where and what would help") {
  const std::string usage = "if [ $# -lt 1 ]; then echo usage; exit 1; fi\n" + kTrain + "--x $1";
  CHECK(message_of([&] {
          read(usage);
        }).starts_with("run.sh:1: found that the script exits here, before it trains"));
  CHECK(value_of(read(usage, {"1=a"}), "--x") == "a");
  const std::string by_case = "case $SIZE in 8b) N=1;; *) exit 1;; esac\n" + kTrain;
  CHECK(message_of([&] { read(by_case); }).find("nothing sets $SIZE; expected --set SIZE=VALUE") !=
        std::string::npos);
  // What is checked without a meaning for sizes is passed, and said.
  const Read guarded = read("if [ -z \"$DATA\" ]; then exit 1; fi\n" + kTrain + "--d $DATA");
  CHECK(value_of(guarded, "--num-layers") == "4");
  CHECK(guarded.notes.size() == 1);
}

TEST_CASE("exports count as they are when the training starts") {
  const Read run = read("export A=1\nB=2 " + kTrain + "\nexport A=3 C=4\n");
  REQUIRE(run.settings.environment.size() == 2);
  CHECK(run.settings.environment[0].values == Words{"1"});
  CHECK(run.settings.environment[1].name == "B");
}

TEST_CASE("--set of a variable that the script never uses is refused") {
  const TemporaryDirectory directory;
  const std::string script = directory.path() + "/run.sh";
  write_file(script, "M=1\n" + kTrain +
                         "--hidden-size 256 --num-attention-heads 8 --seq-length 512 "
                         "--max-position-embeddings 512 --bf16 --micro-batch-size $M\n");
  const auto run = [&](const std::string& from, const std::string& word) {
    return run_in_full({"estimate", "--cluster", "1x8-h100", "--from", from, "--set", word});
  };
  CHECK(run(script, "M=2").out.find("micro_batch 2") != std::string::npos);
  CHECK(run(script + ":2", "M=2").exit_code == 0);
  CHECK(run(script + ":3", "M=2").err.find("in line 3") != std::string::npos);
  const ProgramRun misspelt = run(script, "MM=2");
  CHECK(misspelt.exit_code == 2);
  CHECK(misspelt.err.find("--set: found 'MM', which neither") != std::string::npos);
}

TEST_CASE("scripts that a shell would not read are refused in one line") {
  for (const auto& [text, message] :
       {std::pair{"if true; then a", "run.sh:1: found 'if' without its 'fi'"},
        std::pair{"\nfor i in 1; do a", "run.sh:2: found 'for' without its 'done'"},
        std::pair{"case a in a) b;;", "run.sh:1: found 'case' without its 'esac'"},
        std::pair{"[[ a", "run.sh:1: found '[[' without an end"},
        std::pair{"( a", "run.sh:1: found '(' without an end"},
        std::pair{"{ a", "run.sh:1: found '{' without its '}'"}}) {
    const std::string script = text;
    const std::string found = message_of([&] { read(script); });
    CHECK_MESSAGE(found.starts_with(message), found);
  }
}

TEST_CASE("a script that starts torchtitan gives its configuration with the command line over it") {
  const TemporaryDirectory directory;
  write_file(directory.path() + "/t.toml",
             "[model]\nflavor = \"8B\"\n[training]\nlocal_batch_size = 4\nseq_len = 8192\n"
             "[compile]\nenable = true\n");
  const std::string script = directory.path() + "/run_train.sh";
  write_file(script,
             "NGPU=${NGPU:-8}\nCONFIG=${CONFIG:-./t.toml}\nif [ -n \"$MODE\" ]; then\n"
             "  python -m torchtitan.train --job.config_file $CONFIG --comm.mode=$MODE\nelse\n"
             "  PYTORCH_ALLOC_CONF=\"expandable_segments:True\" torchrun --nproc_per_node=$NGPU "
             "-m torchtitan.train --job.config_file $CONFIG --training.local-batch-size 1 "
             "--parallelism.tensor_parallel_degree=2 --compile.no-enable \"$@\"\nfi\n");
  std::vector<std::string> notes;
  const RunSettings settings = settings_from_file(script, notes, {}, Library());
  CHECK(settings.format == RunFormat::kTorchtitan);
  CHECK(settings.num_gpus == 8);
  CHECK(settings.environment.front().name == "PYTORCH_ALLOC_CONF");
  const Library library;
  const RunReading run = read_run(settings, library.cluster("1x8-h100"), library);
  CHECK(run.plan.tp == 2);
  CHECK(run.plan.dp == 4);
  CHECK(run.plan.micro_batch == 1);
  CHECK(run.job.sequence_length == 8192);
  CHECK(run.unsupported.empty());
  CHECK(message_of([&] {
          settings_from_file(script, notes, {.set_words = {"CONFIG=u.toml"}}, library);
        }).find("run_train.sh:6: --job.config_file: found no file 'u.toml' beside the script") !=
        std::string::npos);
}

}  // namespace shardplan
