#include "tools/shell_program.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/input_error.h"

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
    {.part = "pretrain_mamba", .what = "trains a hybrid of Mamba layers"},
    {.part = "train_rl", .what = "trains by reinforcement learning"},
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

std::string file_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

const OtherProgram* other_program(const std::string& word) {
  const std::string path = "/" + word;
  const std::string name = path.substr(path.rfind('/'));
  const auto* const other = std::ranges::find_if(kOtherPrograms, [&](const OtherProgram& each) {
    return name.find(each.part) != std::string::npos && path.find(each.folder) != std::string::npos;
  });
  return other == kOtherPrograms.end() ? nullptr : other;
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

void check_arguments(const Launch& launch, const std::vector<std::string>& set_words) {
  std::vector<std::string> words = launch.arguments;
  for (std::string word : set_words) {
    std::ranges::replace(word, '_', '-');
    words.push_back(word.starts_with("--") ? word : "--" + word);
  }
  if (!has_training_argument(words) && std::ranges::any_of(words, [](const std::string& word) {
        return word.starts_with("--model_name_or_path");
      })) {
    throw InputError(launch.place + ": found " + file_name(launch.program) +
                     " with --model_name_or_path, an argument of transformers' Trainer, expected "
                     "its DeepSpeed configuration (the .json behind --deepspeed) with --model, "
                     "--sequence-length and --micro-batch of per_device_train_batch_size");
  }
  const bool is_open =
      std::ranges::any_of(words, [](const std::string& word) { return word.starts_with('$'); });
  if (!is_open && !has_training_argument(words)) {
    throw InputError(launch.place + ": found " + file_name(launch.program) +
                     " without an argument of Megatron-LM, expected a program with --num-layers "
                     "and its like, or torchtitan with --job.config_file");
  }
}

void note_program(const Launch& launch, const RunSettings& settings,
                  std::vector<std::string>& notes) {
  const std::string name = file_name(launch.program);
  if (settings.format == RunFormat::kMegatron && !name.empty() &&
      !name.starts_with("pretrain_gpt")) {
    notes.push_back(launch.place + ": " + name + " is taken for Megatron-LM's pretrain_gpt.py");
  }
}

}  // namespace shardplan
