#include "tools/from/megatron_attributes.h"

#include <algorithm>
#include <array>

namespace shardplan {
namespace {

// Attributes whose argument has another name; `switched`: the value that the switch gives, "" where
// it has a value of its own (the `dest` of each).
struct OtherName {
  std::string_view printed;
  std::string_view argument;
  std::string_view switched = "";
};
constexpr std::array<OtherName, 19> kOtherNames = {{
    {"add_bias_linear", "--disable-bias-linear", "False"},
    {"add_position_embedding", "--no-position-embedding", "False"},
    {"apply_rope_fusion", "--no-rope-fusion", "False"},
    {"enable_gloo_process_groups", "--disable-gloo-process-groups", "False"},
    {"barrier_with_L1_time", "--no-barrier-with-level-1-timing", "False"},
    {"bert_binary_head", "--bert-no-binary-head", "False"},
    {"muon_split_qkv", "--muon-no-split-qkv", "False"},
    {"perform_initialization", "--no-initialization", "False"},
    {"use_mamba_mem_eff_path", "--disable-mamba-mem-eff-path", "False"},
    {"overlap_p2p_comm", "--no-overlap-p2p-communication", "False"},
    {"torch_fsdp2_reshard_after_forward", "--torch-fsdp2-no-reshard-after-forward", "False"},
    {"overlap_p2p_comm_warmup_flush", "--overlap-p2p-communication-warmup-flush", "True"},
    {"layernorm_zero_centered_gamma", "--apply-layernorm-1p", "True"},
    {"fp4_param", "--fp4-param-gather", "True"},
    {"nccl_ub", "--use-nccl-ub", "True"},
    {"fp4", "--fp4-format"},
    {"fp8", "--fp8-format"},
    {"layernorm_epsilon", "--norm-epsilon"},
    {"microbatch_group_size_per_vp_stage", "--microbatch-group-size-per-virtual-pipeline-stage"},
}};

}  // namespace

std::string argument_of_attribute(const std::string& name, const std::string& value,
                                  const ArgumentTable& table) {
  const auto* const other = std::ranges::find(kOtherNames, name, &OtherName::printed);
  if (other != kOtherNames.end()) {
    const bool is_given = other->switched.empty() || other->switched == value;
    return is_given ? std::string(other->argument) : "";
  }
  std::string words = name;
  std::ranges::replace(words, '_', '-');
  for (const auto& [beginning, switched] :
       {std::pair{"--", "True"}, std::pair{"--no-", "False"}, std::pair{"--disable-", "False"}}) {
    const ArgumentRow* const row = find_row(table, beginning + words);
    if (row != nullptr) {
      const bool is_given = row->num_values != 0 || value == switched;
      return is_given ? beginning + words : "";
    }
  }
  return value == "False" ? "" : "--" + words;
}

}  // namespace shardplan
