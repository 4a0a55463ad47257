#include "tools/export/accelerate_file.h"

#include <utility>
#include <vector>

#include "data/frameworks/profile_fields.h"
#include "tools/export/savings.h"
#include "tools/export/script.h"

namespace shardplan {
namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

const char* yes_or_no(bool value) {
  return value ? "true" : "false";
}

// accelerate 1.15 utils/constants.py and utils/dataclasses.py, FullyShardedDataParallelPlugin: the
// two versions have words of their own.
Keys fsdp_keys(const FrameworkProfile& profile, const Plan& plan) {
  Keys keys = {{"fsdp_version", std::to_string(profile.fsdp_version)},
               {"fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
               {"fsdp_offload_params", yes_or_no(plan.offload.parameters)},
               {"fsdp_cpu_ram_efficient_loading", "false"}};
  if (profile.fsdp_version == 2) {
    keys.emplace_back("fsdp_reshard_after_forward", yes_or_no(plan.zero == 3));
    keys.emplace_back("fsdp_state_dict_type", "SHARDED_STATE_DICT");
    return keys;
  }
  const std::string prefetch = profile_field_text(profile, "fsdp_prefetch");
  keys.emplace_back("fsdp_sharding_strategy", plan.zero == 3 ? "FULL_SHARD" : "SHARD_GRAD_OP");
  keys.emplace_back("fsdp_backward_prefetch", prefetch == "backward_pre"    ? "BACKWARD_PRE"
                                              : prefetch == "backward_post" ? "BACKWARD_POST"
                                                                            : "NO_PREFETCH");
  keys.emplace_back("fsdp_state_dict_type", "SHARDED_STATE_DICT");
  keys.emplace_back("fsdp_sync_module_states", "false");
  keys.emplace_back("fsdp_use_orig_params", "true");
  return keys;
}

const char* mixed_precision(const FrameworkProfile& profile, const Plan& plan) {
  if (!profile.autocast || plan.precision == Precision::kFp32) {
    return "no";
  }
  return plan.precision == Precision::kFp16 ? "fp16" : "bf16";
}

}  // namespace

ExportedFile accelerate_file_of(const ExportRequest& request) {
  const ClusterSpec& cluster = request.job().cluster;
  const Plan& plan = request.plan();
  const bool is_sharded = plan.zero > 0;
  std::string text = opening_comment(request, "accelerate's file for transformers");
  text += "compute_environment: LOCAL_MACHINE\n";
  text += std::string("distributed_type: ") +
          (is_sharded                  ? "FSDP"
           : cluster.world_size() == 1 ? "'NO'"
                                       : "MULTI_GPU") +
          "\n";
  if (is_sharded) {
    text += "fsdp_config:\n";
    for (const auto& [key, value] : fsdp_keys(request.job().profile, plan)) {
      text += "  " + key + ": " + value + "\n";
    }
  }
  text += std::string("mixed_precision: '") + mixed_precision(request.job().profile, plan) + "'\n";
  text += "num_machines: " + std::to_string(cluster.nodes) + "\n";
  text += "num_processes: " + std::to_string(cluster.world_size()) + "\n";
  text += "machine_rank: 0\nmain_training_function: main\nrdzv_backend: static\n";
  text += "same_network: true\nuse_cpu: false\ndebug: false\ndowncast_bf16: 'no'\n";
  return {.name = "accelerate.yaml", .text = text};
}

}  // namespace shardplan
