#include "data/arguments/trainer.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/arguments/trainer_kernels.h"
#include "data/arguments/trainer_objective.h"
#include "data/arguments/trainer_offload.h"
#include "data/arguments/trainer_optimizers.h"
#include "data/arguments/trainer_tuning.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;

constexpr std::array<const char*, 6> kLengths = {
    "cutoff_len", "sequence_len", "max_seq_length", "model_max_length", "max_length", "block_size"};

void note(RunReading& run, const TrainerFile& trainer, const char* name, const std::string& taken) {
  run.notes.emplace_back(trainer.arguments.error(name, taken).what());
}

// Sequences that texts fill, or that are padded to their full length.
bool is_full(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  const bool packs_by_default = trainer.defaults.project == TrainerProject::kFactory &&
                                arguments.text_or("stage", "sft") == "pt" &&
                                !arguments.has("packing");
  return packs_by_default || arguments.has("block_size") ||
         first_on(arguments,
                  {"packing", "sample_packing", "neat_packing", "pad_to_sequence_len"}) != nullptr;
}

// A run that is silent has its program's length. ms-swift's is what the model has positions for,
// which bounds its samples (3602360 swift/template/base.py, init_processor; utils/hf_config.py,
// get_max_model_len).
void take_default_length(const TrainerFile& trainer, RunReading& run) {
  const ProjectDefaults& defaults = trainer.defaults;
  const bool is_bound = defaults.length == 0 && defaults.length_is_positions;
  run.job.sequence_length = is_bound ? run.job.model.max_sequence_length : defaults.length;
  if (run.job.sequence_length == 0) {
    return;
  }
  run.notes.push_back(
      trainer.file + ": " + std::string(defaults.length_name) + ": found nothing, took " +
      std::to_string(run.job.sequence_length) +
      (is_bound
           ? ", the positions of " + run.job.model.name +
                 ", which bound a sample; --sequence-length N of the longest says otherwise"
           : ", " + std::string(defaults.name) + "'s default; --sequence-length says otherwise"));
}

void read_length(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  const auto* const name =
      std::ranges::find_if(kLengths, [&](const char* each) { return arguments.has(each); });
  if (name == kLengths.end()) {
    take_default_length(trainer, run);
    return;
  }
  run.job.sequence_length = arguments.integer(*name, 1, kMaxCount).value();
  if (!is_full(trainer)) {
    note(run, trainer, *name,
         "found " + arguments.text_or(*name, "") +
             ", took all sequences to be as long; --sequence-length says otherwise");
  }
}

// What says whether layers are computed again, and what it says: "true", "false" or another word.
std::string recompute_word(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  if (is_on(arguments, "fsdp_config.activation_checkpointing")) {
    return "true";
  }
  if (trainer.defaults.project == TrainerProject::kFactory) {
    return is_on(arguments, "disable_gradient_checkpointing") ? "false" : "true";
  }
  if (trainer.defaults.project == TrainerProject::kFactoryV1) {
    return arguments.text_or("enable_activation_checkpointing", "true");
  }
  return arguments.text_or("gradient_checkpointing",
                           trainer.defaults.recomputes ? "true" : "false");
}

void read_recompute(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  const std::string word = recompute_word(trainer);
  const bool is_trl = trainer.defaults.project == TrainerProject::kTrl;
  if (is_trl && word == "true" && !arguments.has("gradient_checkpointing") &&
      !is_on(arguments, "fsdp_config.activation_checkpointing")) {
    run.notes.push_back(trainer.file +
                        ": gradient_checkpointing: found nothing, took true, TRL's default; "
                        "--recompute none says otherwise");
  }
  run.plan.offload.activations = offloads_activations(trainer);
  const bool is_of_axolotl = word == "offload" || word == "offload_disk";
  if (word == "true" || (is_of_axolotl && run.plan.offload.activations)) {
    run.plan.recompute = {.granularity = RecomputeGranularity::kFull};
  } else if (word != "false") {
    refuse(run, "gradient_checkpointing " + word + ": true and false are described");
  }
}

struct OptimizerName {
  std::string_view name;
  OptimizerKind kind = OptimizerKind::kAdamW;
};
// transformers 5.17 training_args.py OptimizerNames; axolotl utils/schemas/enums.py.
constexpr std::array kOptimizers = std::to_array<OptimizerName>({
    {.name = "adamw_torch"},
    {.name = "adamw_torch_fused"},
    {.name = "adamw_hf"},
    {.name = "adamw_apex_fused"},
    {.name = "adamw"},
    {.name = "adamw_bnb_8bit", .kind = OptimizerKind::kAdamW8bit},
    {.name = "adamw_8bit", .kind = OptimizerKind::kAdamW8bit},
    {.name = "paged_adamw", .kind = OptimizerKind::kPagedAdamW},
    {.name = "paged_adamw_32bit", .kind = OptimizerKind::kPagedAdamW},
    {.name = "paged_adamw_8bit", .kind = OptimizerKind::kPagedAdamW8bit},
    {.name = "adamw_torch_8bit", .kind = OptimizerKind::kTorchaoAdamW8bit},
    {.name = "adamw_torch_4bit", .kind = OptimizerKind::kTorchaoAdamW4bit},
    {.name = "adafactor", .kind = OptimizerKind::kAdafactor},
    {.name = "sgd", .kind = OptimizerKind::kSgd},
    {.name = "lion_32bit", .kind = OptimizerKind::kLion},
    {.name = "lion_8bit", .kind = OptimizerKind::kLion8bit},
    {.name = "paged_lion_32bit", .kind = OptimizerKind::kPagedLion},
    {.name = "paged_lion_8bit", .kind = OptimizerKind::kPagedLion8bit},
});

const char* optimizer_setting(const RunArguments& arguments) {
  return arguments.has("optimizer") ? "optimizer" : "optim";
}

void read_optimizer(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  if (is_on(arguments, "use_8bit_optimizer")) {
    run.job.optimizer = OptimizerKind::kAdamW8bit;
    return;
  }
  if (read_program_optimizer(trainer, run)) {
    return;
  }
  if (uses_muon(trainer)) {
    run.job.optimizer = OptimizerKind::kMuon;
    return;
  }
  const char* const setting = optimizer_setting(arguments);
  const std::string word = arguments.text_or(setting, "adamw_torch_fused");
  const auto* const found = std::ranges::find(kOptimizers, word, &OptimizerName::name);
  if (found == kOptimizers.end()) {
    refuse(run, shown_setting(arguments, setting) +
                    ": Adam, AdamW, Lion, Adafactor and SGD of PyTorch, bitsandbytes and torchao "
                    "are described");
    return;
  }
  run.job.optimizer = found->kind;
}

}  // namespace

// LLaMA-Factory ff6d4d1 src/llamafactory/train/trainer_utils.py _create_muon_optimizer,
// v1/plugins/trainer_plugins/optimizers/optimizer.py; ms-swift 3602360 swift/optimizers/muon.py.
bool uses_muon(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  switch (trainer.defaults.project) {
    case TrainerProject::kFactory: return is_on(arguments, "use_muon");
    case TrainerProject::kFactoryV1: return arguments.text_or("optim_config.name", "") == "muon";
    case TrainerProject::kSwift: return arguments.text_or("optimizer", "") == "muon";
    default: return false;
  }
}

std::span<const char* const> length_settings() {
  return kLengths;
}

bool is_on(const RunArguments& arguments, const char* name) {
  const std::string word = in_lower_case(arguments.text_or(name, "false"));
  return word == "true" || word == "1";
}

const char* first_on(const RunArguments& arguments, std::initializer_list<const char*> names) {
  const auto* const found =
      std::ranges::find_if(names, [&](const char* name) { return is_on(arguments, name); });
  return found == names.end() ? nullptr : *found;
}

const char* first_set(const RunArguments& arguments, std::initializer_list<const char*> names) {
  const auto* const found =
      std::ranges::find_if(names, [&](const char* name) { return arguments.has(name); });
  return found == names.end() ? nullptr : *found;
}

std::string shown_setting(const RunArguments& arguments, const char* name) {
  return std::string(name) + " " + shown(arguments.text_or(name, ""), Encoding::kUnchecked);
}

bool says_sequence_length(const RunSettings& settings, const Library& library) {
  const bool is_named = std::ranges::any_of(settings.arguments, [](const Setting& each) {
    return std::ranges::find(kLengths, each.name) != kLengths.end();
  });
  const ProjectDefaults& defaults = defaults_of(settings.trainer);
  return is_named || defaults.length > 0 ||
         (defaults.length_is_positions && !settings.model.empty() &&
          library.model(settings.model).model.max_sequence_length > 0);
}

std::optional<std::int64_t> micro_batch_of(const TrainerFile& trainer) {
  for (const char* const name : {"per_device_train_batch_size", "micro_batch_size"}) {
    if (trainer.arguments.has(name)) {
      return trainer.arguments.integer(name, 1, kMaxCount).value() * sequences_of_sample(trainer);
    }
  }
  return std::nullopt;
}

// ms-swift fills up to 16 sequences a step (swift/trainers/arguments.py); axolotl divides
// batch_size (utils/config, normalize_config), LLaMA-Factory's version 1 global_batch_size
// (core/utils/batching.py).
std::int64_t steps_of(const TrainerFile& trainer, std::int64_t micro_batch, std::int64_t ranks) {
  constexpr std::int64_t kSwiftBatch = 16;
  const char* const name = "gradient_accumulation_steps";
  const RunArguments& arguments = trainer.arguments;
  if (arguments.has(name) && arguments.text_or(name, "") != "auto") {
    return arguments.integer_or(name, 1, 1, kMaxCount);
  }
  if (trainer.defaults.project == TrainerProject::kSwift) {
    const std::int64_t sequences = micro_batch * ranks;
    return std::max<std::int64_t>(1, (kSwiftBatch + sequences - 1) / sequences);
  }
  if (trainer.defaults.project == TrainerProject::kFactoryV1) {
    const std::int64_t sequences = micro_batch * ranks;
    return std::max<std::int64_t>(
        1, arguments.integer_or("global_batch_size", sequences, 1, kMaxCount) / sequences);
  }
  if (trainer.defaults.project == TrainerProject::kAxolotl && arguments.has("batch_size")) {
    return std::max<std::int64_t>(1, arguments.integer_or("batch_size", 1, 1, kMaxCount) *
                                         sequences_of_sample(trainer) / micro_batch);
  }
  return 1;
}

// v1/plugins/trainer_plugins/batching.py: a row of up to as many tokens as the microbatch has
// sequences of cutoff_len.
void read_rows(const TrainerFile& trainer, RunReading& run, const Library& library) {
  if (trainer.defaults.project != TrainerProject::kFactoryV1) {
    return;
  }
  const RunArguments& arguments = trainer.arguments;
  const std::string word =
      arguments.word_or("batching_strategy", "normal",
                        {"normal", "padding_free", "dynamic_batching", "dynamic_padding_free"});
  if (!word.ends_with("padding_free") || run.job.sequence_length == 0) {
    return;
  }
  const std::int64_t rows = run.plan.micro_batch;
  run.job.sequence_length *= rows;
  run.job.global_batch /= rows;
  run.plan.micro_batch = 1;
  note(run, trainer, "batching_strategy",
       "found " + word + ", took microbatches of one row of " +
           std::to_string(run.job.sequence_length) + " tokens, and attention to be over all of it");
  if (!uses_flash_attention(arguments)) {
    want(run, "packed_sequences", "true", library);
  }
}

namespace {

// LLaMA-Factory ff6d4d1 train/fp8_utils.py asks for fp8 by the environment, which transformers 5
// reads before: it gives accelerate the type that bf16 or fp16 names (5.8 trainer.py
// _build_accelerator_args). Transformer Engine alone is asked for otherwise
// (patch_accelerator_for_fp8).
bool asks_for_fp8_in_vain(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kFactory &&
         trainer.arguments.text_or("fp8_backend", "auto") != "te";
}

}  // namespace

std::string why_no_training(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  if (is_on(arguments, "fp8") && !asks_for_fp8_in_vain(trainer)) {
    return "unsupported: " + shown_setting(arguments, "fp8") +
           ": products in fp8, whose converted inputs and weights are not described; those in bf16 "
           "and fp32 are";
  }
  if (const std::string refused = arguments.first_refused(); !refused.empty()) {
    return refused;
  }
  if (const std::string why = why_no_objective(trainer); !why.empty()) {
    return why;
  }
  RunReading reading;
  read_optimizer(trainer, reading);
  if (in_lower_case(arguments.text_or("accelerate.mixed_precision", "no")) == "fp8") {
    refuse(reading, "accelerate.mixed_precision fp8: no, bf16 and fp16 are described");
  }
  read_tuning(trainer, reading);
  read_kernels(trainer, reading);
  return reading.unsupported;
}

void read_trainer(const TrainerFile& trainer, RunReading& run) {
  if (const std::string reason = why_no_training(trainer);
      run.unsupported.empty() && !reason.empty()) {
    run.unsupported = reason;
  }
  if (is_on(trainer.arguments, "fp8") && asks_for_fp8_in_vain(trainer)) {
    note(run, trainer, "fp8",
         "found true, took products in the type that bf16 or fp16 names: transformers 5 gives "
         "accelerate that one, before LLaMA-Factory asks for fp8 by the environment");
  }
  read_recompute(trainer, run);
  read_length(trainer, run);
  read_optimizer(trainer, run);
  read_tuning(trainer, run);
  read_objective_tuning(trainer, run);
  read_kernels(trainer, run);
}

}  // namespace shardplan
