#include "tools/from/shell/program.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/read/input_error.h"
#include "tools/from/launch.h"
#include "tools/from/slime.h"
#include "tools/from/swift.h"
#include "tools/from/trainer_command.h"

namespace shardplan {
namespace {

// A program that trains no GPT decoder, by a part of its name and of its path.
struct OtherProgram {
  std::string_view part;
  std::string_view folder = "";
  std::string_view what;
};

// Programs of Megatron-LM and its forks that train no GPT decoder, by a part of their names or,
// with a '/' in front, by its beginning. Others, such as a user's own, are taken for a
// pretrain_gpt.py.
constexpr std::array kOtherPrograms = std::to_array<OtherProgram>({
    {.part = "pretrain_bert", .what = "trains a BERT"},
    {.part = "pretrain_t5", .what = "trains a T5"},
    {.part = "pretrain_ict", .what = "trains a retriever"},
    {.part = "pretrain_retro", .what = "trains a retrieval model"},
    {.part = "sft_retro", .what = "trains a retrieval model"},
    {.part = "pretrain_vision", .what = "trains a vision model"},
    {.part = "pretrain_vlm", .what = "trains a vision and language model"},
    {.part = "train_rl", .what = "trains by reinforcement learning"},
    {.part = "megatron rlhf", .what = "trains by preferences or by reinforcement learning"},
    {.part = "megatron export", .what = "converts a checkpoint"},
    {.part = "/rlhf.py", .what = "trains by preferences or by reinforcement learning"},
    {.part = "trl rloo", .what = "trains by reinforcement learning"},
    {.part = "/dpo", .what = "trains on pairs of preferences"},
    {.part = "/run_dpo", .what = "trains on pairs of preferences"},
    {.part = "/orpo", .what = "trains on pairs of preferences"},
    {.part = "/cpo", .what = "trains on pairs of preferences"},
    {.part = "/tpo", .what = "trains on pairs of preferences"},
    {.part = "/mpo", .what = "trains on pairs of preferences"},
    {.part = "/kto", .what = "trains by preferences"},
    {.part = "/bco", .what = "trains by preferences"},
    {.part = "/xpo", .what = "trains by preferences"},
    {.part = "/nash_md", .what = "trains by preferences"},
    {.part = "online_dpo", .what = "trains by preferences"},
    {.part = "/reward", .what = "trains a model of rewards"},
    {.part = "/prm", .what = "trains a model of rewards"},
    {.part = "/ppo", .what = "trains by reinforcement learning"},
    {.part = "/rloo", .what = "trains by reinforcement learning"},
    {.part = "/gspo", .what = "trains by reinforcement learning"},
    {.part = "/gkd", .what = "trains on the outputs of another model"},
    {.part = "/gold", .what = "trains on the outputs of another model"},
    {.part = "/distillation", .what = "trains on the outputs of another model"},
    {.part = "/sdft", .what = "trains on the outputs of another model"},
    {.part = "/sdpo", .what = "trains on the outputs of another model"},
    {.part = "/ssd", .what = "trains on the outputs of another model"},
    {.part = "grpo", .what = "trains by reinforcement learning"},
    {.part = "chatlearn", .what = "trains by reinforcement learning"},
    {.part = "generat", .what = "generates text"},
    {.part = "inference", .what = "runs inference"},
    {.part = "/evaluat", .what = "evaluates a model"},
    {.part = "/eval_", .what = "evaluates a model"},
    {.part = "/main.py", .folder = "tasks/", .what = "runs a task on a trained model"},
    {.part = "convert", .what = "converts a checkpoint"},
    {.part = "hf2", .what = "converts a checkpoint"},
    {.part = "2hf", .what = "converts a checkpoint"},
    {.part = "quantize", .what = "quantizes a model"},
    {.part = "/preprocess", .what = "prepares data"},
});

// Commands of other trainers, by two words of them that follow each other (of the first a part, of
// the second its beginning), and what to give instead.
struct OtherTrainer {
  std::string_view word;
  std::string_view next = "";
  std::string_view found;
  std::string_view expected;
};
constexpr std::string_view kItsYaml =
    "expected the .yaml or .yml behind it: --from with that file, and beside it the "
    "configurations that it names";
constexpr std::string_view kByOptions =
    "what its rollouts and log-probabilities hold is not described; expected the training of its "
    "actor by options: --framework megatron with --model, --sequence-length, --tp, --pp and so on";
constexpr std::array kOtherTrainers = std::to_array<OtherTrainer>({
    {.word = "torchtitan.train",
     .next = "--module",
     .found = "torchtitan.train with --module and --config, configurations in Python of a newer "
              "torchtitan than v0.2.2",
     .expected = "expected a .toml of v0.2.2 (--job.config_file), or options: --framework "
                 "torchtitan with --model, --sequence-length, --tp and so on"},
    {.word = "llamafactory-cli", .found = "a command of LLaMA-Factory", .expected = kItsYaml},
    {.word = "axolotl", .found = "a command of axolotl", .expected = kItsYaml},
    {.word = "swift",
     .found = "a command of ms-swift that does not train",
     .expected = "expected swift sft, swift pt, swift rlhf, megatron sft or megatron pt"},
    {.word = "openrlhf.cli.train_sft",
     .found = "OpenRLHF's train_sft, a trainer of its own around DeepSpeed",
     .expected = "expected options: --framework deepspeed with --model, --sequence-length, --zero "
                 "and so on"},
    {.word = "openrlhf.cli",
     .found = "a command of OpenRLHF, which trains by preferences or by reinforcement learning",
     .expected = "expected a training of the next token"},
    {.word = "verl.trainer.main_ppo",
     .found = "verl's main_ppo, which trains by reinforcement learning",
     .expected = kByOptions},
    {.word = "verl.trainer.sft_trainer",
     .found = "verl's sft_trainer, whose settings are no arguments of Megatron-LM",
     .expected = "expected options: --framework megatron with --model, --sequence-length, --tp and "
                 "so on"},
});

std::string file_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

const OtherProgram* other_program(const std::string& word) {
  if (trains_by_preferences(word)) {
    return nullptr;
  }
  const std::string path = "/" + word;
  const std::string name = path.substr(path.rfind('/'));
  const auto* const other = std::ranges::find_if(kOtherPrograms, [&](const OtherProgram& each) {
    return name.find(each.part) != std::string::npos && path.find(each.folder) != std::string::npos;
  });
  return other == kOtherPrograms.end() ? nullptr : other;
}

// Megatron-LM's programs of hybrids of Mamba-2, the later of core_v0.17.0.
bool trains_hybrid(const std::string& name) {
  return name.starts_with("pretrain_mamba") || name.starts_with("pretrain_hybrid");
}

}  // namespace

bool is_other_program(const std::string& program) {
  return other_program(program) != nullptr;
}

void check_program(const Launch& launch) {
  if (const OtherProgram* const other = other_program(launch.program)) {
    throw InputError(launch.place + ": found " + file_name(launch.program) + ", which " +
                     std::string(other->what) +
                     ", expected a program that trains a GPT decoder, such as pretrain_gpt.py");
  }
}

std::string other_trainer(const ShellScript& script) {
  for (const ShellCommand& command : script.commands) {
    for (std::size_t i = 0; i < command.words.size(); ++i) {
      const std::string next = i + 1 < command.words.size() ? command.words[i + 1] : "";
      const auto* const other = std::ranges::find_if(kOtherTrainers, [&](const auto& each) {
        return command.words[i].starts_with(each.word) && next.starts_with(each.next);
      });
      if (other != kOtherTrainers.end()) {
        return std::string(other->found) + "; " + std::string(other->expected);
      }
    }
  }
  return "";
}

void check_arguments(const Launch& launch, const std::vector<std::string>& set_words) {
  std::vector<std::string> words = launch.arguments;
  for (std::string word : set_words) {
    std::ranges::replace(word, '_', '-');
    words.push_back(word.starts_with("--") ? word : "--" + word);
  }
  for (const std::string& word : launch.arguments) {  // slime, miles
    if (word.starts_with("--rollout-batch-size") && !is_supervised_slime(launch.arguments)) {
      throw InputError(launch.place + ": found " + file_name(launch.program) +
                       " with --rollout-batch-size, which trains by reinforcement learning; " +
                       std::string(kByOptions));
    }
  }
  const auto says_layers = [](const std::string& word) {
    return word.starts_with("--spec") || word.starts_with("--hybrid-");
  };
  if (trains_hybrid(file_name(launch.program)) && std::ranges::none_of(words, says_layers)) {
    throw InputError(
        launch.place + ": found " + file_name(launch.program) +
        " without --spec, expected --spec megatron.core.models.mamba.mamba_layer_specs "
        "mamba_stack_spec and a pattern or ratios of layers");
  }
  const bool is_open =
      std::ranges::any_of(words, [](const std::string& word) { return word.starts_with('$'); });
  const bool is_configured = is_swift_program(launch.program) || starts_trainer(launch) ||
                             !configuration_of(launch).empty();
  if (!is_open && !has_training_argument(words) && !is_configured) {
    throw InputError(
        launch.place + ": found " + file_name(launch.program) +
        " without an argument of Megatron-LM, expected a program with --num-layers "
        "and its like, a Trainer of transformers with --model_name_or_path or a .yaml, "
        "or torchtitan with --job.config_file");
  }
}

void note_program(const Launch& launch, const RunSettings& settings,
                  std::vector<std::string>& notes) {
  const std::string name = file_name(launch.program);
  if (settings.format == RunFormat::kMegatron && !name.empty() &&
      !name.starts_with("pretrain_gpt") && !trains_hybrid(name) &&
      !is_swift_program(launch.program) && !is_supervised_slime(launch.arguments)) {
    notes.push_back(launch.place + ": " + name + " is taken for Megatron-LM's pretrain_gpt.py");
  }
}

}  // namespace shardplan
