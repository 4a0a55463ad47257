#include "tools/export/own_trainer.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "data/arguments/trainer.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/export/trainer_arguments.h"
#include "tools/from/trainer.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

// A program's keys; "" where it has none. Sources: data/arguments/trainer_projects.cpp.
struct ProjectKeys {
  TrainerProject project = TrainerProject::kTransformers;
  const char* micro_batch = "per_device_train_batch_size";
  const char* recompute = "gradient_checkpointing";
  bool recompute_is_off = false;  // the key turns recomputation off
  const char* optimizer = "optim";
  const char* lora_rank = "lora_r";
  const char* lora_dropout = "lora_dropout";
  const char* dora = "use_dora";
  const char* liger = "use_liger_kernel";
  const char* attention = "attn_implementation";
  const char* flash = "flash_attention_2";  // what its attention key calls FlashAttention
  const char* sequence_ranks = "";          // Ulysses' exchanges
};
constexpr std::array kProjectKeys = std::to_array<ProjectKeys>({
    {.project = TrainerProject::kTransformers},
    {.project = TrainerProject::kTrl},
    {.project = TrainerProject::kFactory,
     .recompute = "disable_gradient_checkpointing",
     .recompute_is_off = true,
     .lora_rank = "lora_rank",
     .liger = "enable_liger_kernel",
     .attention = "flash_attn",
     .flash = "fa2"},
    {.project = TrainerProject::kFactoryV1,
     .micro_batch = "micro_batch_size",
     .recompute = "enable_activation_checkpointing",
     .optimizer = "",
     .lora_rank = "",
     .lora_dropout = "",
     .dora = "",
     .liger = "",
     .attention = "flash_attn",
     .sequence_ranks = "cp_size"},
    {.project = TrainerProject::kAxolotl,
     .micro_batch = "micro_batch_size",
     .optimizer = "optimizer",
     .dora = "peft_use_dora",
     .liger = ""},
    {.project = TrainerProject::kSwift,
     .lora_rank = "lora_rank",
     .attention = "attn_impl",
     .flash = "flash_attn",
     .sequence_ranks = "sequence_parallel_size"},
    {.project = TrainerProject::kOpenInstruct},
});

const char* yes_or_no(bool value) {
  return value ? "true" : "false";
}

// The changes of one file, each beside the keys that the file has.
class FileChanges {
 public:
  FileChanges(const std::string& text, const ProjectKeys& keys) : text_(text), keys_(keys) {}

  bool has(const YamlPath& path) const { return has_yaml_key(text_, path); }

  // The key is added where the file has none.
  void set(const char* key, const std::string& value) {
    if (*key != '\0') {
      changes_.push_back({.path = {key}, .value = value, .behind = keys_.micro_batch});
    }
  }

  void set_path(const YamlPath& path, const std::string& value) {
    changes_.push_back({.path = path, .value = value});
  }

  // Only where the file has the key; whether it has.
  bool set_stated(const YamlPath& path, const std::string& value) {
    if (!has(path)) {
      return false;
    }
    changes_.push_back({.path = path, .value = value});
    return true;
  }

  // A key of a section under whichever of two names the file has for it; a section that has neither
  // gets it as its other keys are called. Whether there is such a section.
  bool set_in(const char* section, const std::string& prefix, const std::string& key,
              const std::string& value) {
    if (set_stated({section, prefix + key}, value) || set_stated({section, key}, value)) {
      return true;
    }
    if (!has({section})) {
      return false;
    }
    const bool has_prefix = text_.find("  " + prefix) != std::string::npos;
    changes_.push_back({.path = {section, (has_prefix ? prefix : "") + key}, .value = value});
    return true;
  }

  std::string value_of(const YamlPath& path) const { return yaml_value(text_, path); }
  const std::vector<YamlChange>& changes() const { return changes_; }

 private:
  const std::string& text_;
  const ProjectKeys& keys_;
  std::vector<YamlChange> changes_;
};

bool is_accelerates(const FileChanges& file) {
  return file.has({"compute_environment"}) && file.has({"distributed_type"});
}

// What a program's file counts: a pair of texts is two sequences.
std::int64_t samples_of(const Question& question) {
  return question.plan.micro_batch / (has_pairs(question.job.profile.objective) ? 2 : 1);
}

// ms-swift's steps, and those of LLaMA-Factory's version 1, follow from the microbatch where
// nothing says them.
void change_batch(FileChanges& file, const ProjectKeys& keys, const Question& before,
                  const Question& after) {
  const std::int64_t steps = num_microbatches(after.job, after.plan);
  const bool differs = after.plan.micro_batch != before.plan.micro_batch ||
                       steps != num_microbatches(before.job, before.plan);
  if (after.plan.micro_batch != before.plan.micro_batch) {
    file.set(keys.micro_batch, std::to_string(samples_of(after)));
  }
  if (!differs) {
    return;
  }
  if (keys.project == TrainerProject::kFactoryV1) {
    file.set("global_batch_size", std::to_string(after.job.global_batch));
  } else if (keys.project == TrainerProject::kSwift || file.has({"gradient_accumulation_steps"}) ||
             steps != num_microbatches(before.job, before.plan)) {
    file.set("gradient_accumulation_steps", std::to_string(steps));
  }
}

void change_length(FileChanges& file, TrainerProject project, const Question& before,
                   const Question& after) {
  if (after.job.sequence_length == before.job.sequence_length) {
    return;
  }
  const std::string length = std::to_string(after.job.sequence_length);
  for (const char* const name : length_settings()) {
    if (file.set_stated({name}, length)) {
      return;
    }
  }
  file.set(std::string(defaults_of(project).length_name).c_str(), length);
}

// What accelerate wraps goes before the Trainer's own word.
void change_recompute(FileChanges& file, const ProjectKeys& keys, const Question& before,
                      const Question& after) {
  if (after.plan.recompute == before.plan.recompute) {
    return;
  }
  const bool is_on = after.plan.recompute.granularity == RecomputeGranularity::kFull;
  for (const char* const name : {"fsdp_activation_checkpointing", "activation_checkpointing"}) {
    if (file.value_of({"fsdp_config", name}) == "true") {
      file.set_stated({"fsdp_config", name}, yes_or_no(is_on));
      return;
    }
  }
  file.set(keys.recompute, yes_or_no(is_on != keys.recompute_is_off));
  const bool reenters = after.job.profile.reentrant_checkpoint;
  if (is_on && reenters != defaults_of(keys.project).reentrant) {
    file.set_path({"gradient_checkpointing_kwargs", "use_reentrant"}, yes_or_no(reenters));
  }
}

void change_optimizer(FileChanges& file, const ProjectKeys& keys, const Question& before,
                      const Question& after) {
  const std::string name = trainer_optimizer(after.job);
  if (name == trainer_optimizer(before.job)) {
    return;
  }
  const bool says_other = file.has({"optimizer"}) || file.has({"optim"});
  if (!says_other || !(file.set_stated({"optimizer"}, name) || file.set_stated({"optim"}, name))) {
    file.set(keys.optimizer, name);
  }
}

void change_adapters(FileChanges& file, const ProjectKeys& keys, const Question& before,
                     const Question& after) {
  const Adapters& old = before.job.adapters;
  const Adapters& adapters = after.job.adapters;
  if (old.rank == 0 || adapters.rank == 0) {
    return;
  }
  if (adapters.rank != old.rank) {
    file.set(keys.lora_rank, std::to_string(adapters.rank));
  }
  if (adapters.dropout != old.dropout) {
    file.set(keys.lora_dropout, exact_text(adapters.dropout));
  }
  if (adapters.decomposes_weights != old.decomposes_weights) {
    file.set(keys.dora, yes_or_no(adapters.decomposes_weights));
  }
}

void change_kernels(FileChanges& file, const ProjectKeys& keys, const Question& before,
                    const Question& after) {
  const FrameworkProfile& old = before.job.profile;
  const FrameworkProfile& profile = after.job.profile;
  if (profile.liger_kernel != old.liger_kernel && profile.liger_kernel != LigerKernel::kNorms) {
    file.set(keys.liger, yes_or_no(profile.liger_kernel != LigerKernel::kOff));
  }
  const bool is_flash = profile.attention_backend == AttentionBackend::kFlash;
  if (profile.attention_backend == old.attention_backend) {
    return;
  }
  if (!file.set_stated({"flash_attention"}, yes_or_no(is_flash))) {
    file.set(keys.attention, is_flash ? keys.flash : "sdpa");
  }
}

// One word among those of a value, "full_shard auto_wrap offload".
void change_word(FileChanges& file, const YamlPath& path, const std::string& from,
                 const std::string& to) {
  std::string words = file.value_of(path);
  const std::size_t at = words.find(from);
  if (at != std::string::npos) {
    file.set_path(path, words.replace(at, from.size(), to));
  }
}

// FULL_SHARD and SHARD_GRAD_OP are 1 and 2 as well (accelerate 1.15 utils/constants.py,
// FSDP_SHARDING_STRATEGY, counted from 1).
void change_sharding(FileChanges& file, const Question& before, const Question& after) {
  constexpr const char* kSection = "fsdp_config";
  const Plan& plan = after.plan;
  const bool is_sharded = before.plan.zero > 0 && plan.zero > 0;
  if (is_sharded && plan.zero != before.plan.zero) {
    const bool is_whole = plan.zero == 3;
    const char* const word = is_whole ? "FULL_SHARD" : "SHARD_GRAD_OP";
    const bool is_said =
        file.set_stated({kSection, "fsdp_sharding_strategy"}, word) ||
        file.set_stated({kSection, "sharding_strategy"}, word) ||
        file.set_in(kSection, "fsdp_", "reshard_after_forward", yes_or_no(is_whole));
    if (!is_said) {
      change_word(file, {"fsdp"}, is_whole ? "shard_grad_op" : "full_shard",
                  is_whole ? "full_shard" : "shard_grad_op");
    }
  }
  if (is_sharded && plan.offload.parameters != before.plan.offload.parameters) {
    file.set_in(kSection, "fsdp_", "offload_params", yes_or_no(plan.offload.parameters));
  }
}

// accelerate 1.15 commands/config: DeepSpeed's settings stand in deepspeed_config.
void change_deepspeed(FileChanges& file, const Question& before, const Question& after) {
  const Plan& plan = after.plan;
  const auto set = [&](const char* key, const std::string& value) {
    file.set_in("deepspeed_config", "", key, value);
  };
  if (plan.zero != before.plan.zero) {
    set("zero_stage", std::to_string(plan.zero));
  }
  if (plan.offload.optimizer != before.plan.offload.optimizer) {
    set("offload_optimizer_device", plan.offload.optimizer > 0 ? "cpu" : "none");
  }
  if (plan.offload.parameters != before.plan.offload.parameters) {
    set("offload_param_device", plan.offload.parameters ? "cpu" : "none");
  }
  file.set_stated({"deepspeed_config", "gradient_accumulation_steps"},
                  std::to_string(num_microbatches(after.job, plan)));
}

// How many processes accelerate starts, and whether FSDP divides the model over them.
void change_launcher(FileChanges& file, const Question& before, const Question& after) {
  const ClusterSpec& cluster = after.job.cluster;
  const std::string ranks = std::to_string(cluster.world_size());
  if (file.value_of({"num_processes"}) != ranks) {
    file.set("num_processes", ranks);
    file.set_stated({"num_machines"}, std::to_string(cluster.nodes));
  }
  if (after.plan.zero == 0 && before.plan.zero > 0) {
    file.set_stated({"distributed_type"}, cluster.world_size() > 1 ? "MULTI_GPU" : "'NO'");
  }
}

const ProjectKeys& keys_of(TrainerProject project) {
  const auto* const found = std::ranges::find(kProjectKeys, project, &ProjectKeys::project);
  if (found == kProjectKeys.end()) {
    throw std::logic_error("keys_of: unknown project");
  }
  return *found;
}

}  // namespace

std::vector<YamlChange> trainer_changes(const std::string& text, const std::string& file,
                                        const Question& before, const Question& after) {
  std::vector<std::string> variables;
  const TrainerProject project = project_of(trainer_file(text, file, {}, variables));
  const ProjectKeys& keys = keys_of(project);
  FileChanges changes(text, keys);
  const bool is_deepspeed = before.job.profile.memory_model == MemoryModel::kDeepspeed;
  if (is_accelerates(changes)) {
    change_launcher(changes, before, after);
  } else {
    change_batch(changes, keys, before, after);
    change_length(changes, project, before, after);
    change_recompute(changes, keys, before, after);
    change_optimizer(changes, keys, before, after);
    change_adapters(changes, keys, before, after);
    change_kernels(changes, keys, before, after);
    if (after.plan.cp != before.plan.cp) {
      changes.set(keys.sequence_ranks, std::to_string(after.plan.cp));
    }
  }
  if (is_deepspeed) {
    change_deepspeed(changes, before, after);
  } else {
    change_sharding(changes, before, after);
  }
  return changes.changes();
}

Options with_words_beside(Options beside, const Options& options, const std::string& text,
                          const Question& question) {
  if (given(options, "model")) {
    beside.values["model"] = options.values.at("model");
  }
  const ProjectKeys& keys = keys_of(TrainerProject::kTransformers);
  if (!is_accelerates(FileChanges(text, keys))) {
    return beside;
  }
  const bool is_full = question.plan.recompute.granularity == RecomputeGranularity::kFull;
  beside.values["sequence-length"] = {std::to_string(question.job.sequence_length)};
  beside.values["micro-batch"] = {std::to_string(question.plan.micro_batch)};
  beside.values["global-batch"] = {std::to_string(question.job.global_batch)};
  beside.values["recompute"] = {is_full ? "full" : "none"};
  if (given(options, "optimizer")) {
    beside.values["optimizer"] = options.values.at("optimizer");
  }
  return beside;
}

}  // namespace shardplan
