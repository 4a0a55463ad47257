// Sources: axolotl 067b021 core/builders/rl.py, core/builders/causal.py, train.py
// setup_reference_model, loaders/model.py _load_adapters, with TRL 1.8.0; LLaMA-Factory ff6d4d1
// src/llamafactory/train/tuner.py, dpo/workflow.py, kto/workflow.py, rm/workflow.py; ms-swift
// 3602360 swift/arguments/rlhf_args.py, swift/rlhf_trainers, with TRL 0.29.1; TRL f2cd577
// trl/cli/commands, trl/scripts.
#include "data/arguments/trainer_objective.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/read/json_message.h"

namespace shardplan {
namespace {

struct ObjectiveRow {
  std::string_view word;       // of the program
  std::string_view objective;  // of the profile
};
constexpr std::array kOfAxolotl = std::to_array<ObjectiveRow>({
    {.word = "dpo", .objective = "dpo"},
    {.word = "ipo", .objective = "dpo"},
    {.word = "kto", .objective = "kto"},
    {.word = "orpo", .objective = "orpo"},
    {.word = "simpo", .objective = "simpo"},
});
constexpr std::array kStages = std::to_array<ObjectiveRow>({
    {.word = "sft", .objective = "next_token"},
    {.word = "pt", .objective = "next_token"},
    {.word = "rm", .objective = "reward"},
    {.word = "dpo", .objective = "dpo"},
    {.word = "kto", .objective = "kto"},
});

// CPO's loss keeps what SimPO's does: the loss of the chosen, and log-probabilities of all.
constexpr std::array kOfSwift = std::to_array<ObjectiveRow>({
    {.word = "dpo", .objective = "dpo"},
    {.word = "kto", .objective = "kto"},
    {.word = "orpo", .objective = "orpo"},
    {.word = "simpo", .objective = "simpo"},
    {.word = "cpo", .objective = "simpo"},
    {.word = "rm", .objective = "reward"},
});
constexpr std::array kOfTrl = std::to_array<ObjectiveRow>({
    {.word = "dpo", .objective = "dpo"},
    {.word = "kto", .objective = "kto"},
    {.word = "orpo", .objective = "orpo"},
    {.word = "cpo", .objective = "simpo"},
    {.word = "reward", .objective = "reward"},
});

template <std::size_t size>
std::string objective_named(const std::array<ObjectiveRow, size>& rows, const std::string& word) {
  const auto* const found = std::ranges::find(rows, word, &ObjectiveRow::word);
  return found == rows.end() ? "" : std::string(found->objective);
}

bool is_axolotl(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kAxolotl;
}
bool is_factory(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kFactory;
}
bool is_swift(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kSwift;
}
bool is_trl(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kTrl;
}

// The profile's word; "" where none is described.
std::string objective_word(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  if (is_factory(trainer)) {
    const std::string word = objective_named(kStages, arguments.text_or("stage", "sft"));
    const std::string loss = arguments.text_or("pref_loss", "sigmoid");
    return word == "dpo" && (loss == "orpo" || loss == "simpo") ? loss : word;
  }
  if (is_swift(trainer) && arguments.has("rlhf_type")) {
    return objective_named(kOfSwift, arguments.text_or("rlhf_type", ""));
  }
  if (is_trl(trainer) && arguments.has("trl_task")) {
    return objective_named(kOfTrl, arguments.text_or("trl_task", ""));
  }
  const bool has_rl = arguments.has("rl") && arguments.text_or("rl", "") != "false";
  if (!is_axolotl(trainer)) {
    const bool is_other =
        has_rl || first_set(arguments, {"rlhf_type", "trl_task"}) != nullptr ||
        first_on(arguments, {"reward_model", "process_reward_model"}) != nullptr ||
        objective_named(kStages, arguments.text_or("stage", "sft")) != "next_token";
    return is_other ? "" : "next_token";
  }
  if (has_rl) {
    return objective_named(kOfAxolotl, arguments.text_or("rl", ""));
  }
  return is_on(arguments, "reward_model")           ? "reward"
         : is_on(arguments, "process_reward_model") ? "token_labels"
                                                    : "next_token";
}

// The setting that says it.
const char* objective_setting(const TrainerFile& trainer) {
  return is_factory(trainer)
             ? "stage"
             : first_set(trainer.arguments, {"rlhf_type", "trl_task", "rl", "reward_model",
                                             "process_reward_model", "stage"});
}

// What ms-swift's trainers and TRL's own take beside an objective.
std::string why_no_setting(const TrainerFile& trainer, const std::string& word) {
  const RunArguments& arguments = trainer.arguments;
  const auto refused = [&](const char* name, const std::string& text) {
    return "unsupported: " + shown_setting(arguments, name) + ": " + text;
  };
  if (const char* const rows = first_on(arguments, {"padding_free", "packing"})) {
    return refused(rows, "texts of pairs behind each other in one row; padded ones are described");
  }
  if (arguments.number_or("router_aux_loss_coef", 0, 0, 1) > 0 && is_swift(trainer)) {
    return refused("router_aux_loss_coef", "the loss that balances experts; 0 is described");
  }
  if (word == "simpo" && arguments.number_or("cpo_alpha", 1, 0, 1e9) == 0) {
    return refused("cpo_alpha",
                   "pairs without the loss of the chosen, beside which they are "
                   "described");
  }
  if (is_trl(trainer)) {
    if (is_on(arguments, "use_weighting")) {
      return refused("use_weighting",
                     "weights of pairs from all logits; DPO without them is "
                     "described");
    }
    if (is_on(arguments, "use_liger_kernel")) {
      return refused("use_liger_kernel",
                     "Liger's fused losses of preferences; those of their "
                     "logits are described");
    }
    if (arguments.text_or("loss_type", "").find("sft") != std::string::npos) {
      return refused("loss_type",
                     "the loss of the chosen beside that of pairs; losses of pairs "
                     "alone are described");
    }
  }
  return "";
}

bool is_pair(const std::string& objective) {
  return objective == "reward" || objective == "dpo" || objective == "orpo" || objective == "simpo";
}

}  // namespace

bool has_own_objective(const TrainerFile& trainer) {
  return objective_word(trainer) != "next_token";
}

std::int64_t sequences_of_sample(const TrainerFile& trainer) {
  return is_pair(objective_word(trainer)) ? 2 : 1;
}

std::string why_no_objective(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  const std::string word = objective_word(trainer);
  if (word.empty()) {
    return "unsupported: " + shown_setting(arguments, objective_setting(trainer)) +
           ": another training than of the next token, by pairs of texts (dpo, orpo, simpo, "
           "rewards) or by good and bad ones (kto)";
  }
  if (word == "next_token" && arguments.integer_or("num_labels", 0, 0, 1 << 20) > 0) {
    return "unsupported: " + shown_setting(arguments, "num_labels") +
           " without reward_model or process_reward_model: another training than of the next token";
  }
  if (word == "next_token") {
    return "";
  }
  if (const char* const name = first_on(
          arguments, {"dpo_use_liger_kernel", "dpo_use_weighting", "rl_adapter_ref_model"})) {
    const std::string_view what = name;
    return "unsupported: " + shown_setting(arguments, name) + ": " +
           (what == "dpo_use_liger_kernel" ? "Liger's fused loss of pairs; the loss of their logits"
            : what == "dpo_use_weighting"  ? "weights of pairs from all logits; DPO without them"
                                           : "a second model beside adapters; adapters that are "
                                             "turned off for the reference") +
           " is described";
  }
  if (is_swift(trainer) || is_trl(trainer)) {
    if (std::string why = why_no_setting(trainer, word); !why.empty()) {
      return why;
    }
  }
  if (arguments.text_or("dpo_loss_type", "").find("sft") != std::string::npos) {
    return "unsupported: " + shown_setting(arguments, "dpo_loss_type") +
           ": the loss of the chosen beside that of pairs; losses of pairs alone are described";
  }
  const char* const other = first_set(
      arguments, {"ref_model", "ref_model_adapters", "ref_adapters", "ref_model_quantization_bit"});
  return other == nullptr ? ""
                          : "unsupported: " + shown_setting(arguments, other) +
                                ": a reference of another model; the same model, or the adapters "
                                "turned off, is described";
}

// Dropout is turned off in all but LLaMA-Factory's reward models (disable_dropout). Adapters that
// TRL puts on quantized weights are bf16: axolotl leaves that to it for DPO and KTO alone.
void read_objective_tuning(const TrainerFile& trainer, RunReading& run) {
  const std::string word = objective_word(trainer);
  if (word == "next_token" || (is_factory(trainer) && word == "reward")) {
    return;
  }
  Adapters& adapters = run.job.adapters;
  adapters.dropout = 0;
  if (is_axolotl(trainer) && (word == "dpo" || word == "kto") &&
      run.job.quantized.kind != Quantization::kNone) {
    adapters.dtype = DType::kBf16;
    adapters.copies_dtype = DType::kBf16;
  }
}

void read_objective(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  const std::string word = objective_word(trainer);
  if (word.empty() || word == "next_token") {
    return;
  }
  if (!takes_word(run, "objective", word, library)) {
    refuse(run, shown_setting(arguments, objective_setting(trainer)) +
                    ": another training than of the next token is not described by this profile");
    return;
  }
  want(run, "objective", word, library);
  want(run, "objective_trainer",
       is_factory(trainer) ? "llamafactory"
       : is_swift(trainer) ? "ms_swift"
                           : "trl",
       library);
  // ms-swift asks the reference whatever it is told (its dataloaders are its own).
  if (is_on(arguments, "precompute_ref_log_probs") && !is_swift(trainer) &&
      (word == "dpo" || (word == "kto" && is_trl(trainer)))) {
    want(run, "precomputes_reference", "true", library);
  }
  if (is_axolotl(trainer) && (word == "reward" || word == "token_labels")) {
    const std::int64_t by_default = word == "reward" ? 1 : 2;
    want(run, "num_labels",
         std::to_string(arguments.integer_or("num_labels", by_default, 1, 1 << 20)), library);
  }
  if (is_axolotl(trainer) && word == "dpo") {  // core/trainers/dpo/trainer.py training_step
    run.notes.push_back(trainer.file +
                        ": rl: axolotl gives cached memory back behind every microbatch of DPO, "
                        "which is not counted: reserved memory is a bound");
  }
  if (is_pair(word)) {
    run.notes.push_back(trainer.file + ": " + shown_setting(arguments, objective_setting(trainer)) +
                        ": samples are pairs, took micro_batch and global batch to be sequences, "
                        "two of each pair");
  }
}

}  // namespace shardplan
