#include "tools/export/deepspeed_file.h"

#include <utility>
#include <vector>

#include "data/read/json_message.h"

namespace shardplan {
namespace {

using Members = std::vector<std::pair<std::string, std::string>>;  // names and JSON

std::string object_text(const Members& members, const std::string& indent) {
  std::string text = "{";
  for (const auto& [name, value] : members) {
    text += (text.size() > 1 ? ",\n" : "\n") + indent + "  \"" + name + "\": " + value;
  }
  return text + "\n" + indent + "}";
}

const char* json_bool(bool value) {
  return value ? "true" : "false";
}

void add_offload(Members& zero, const FrameworkProfile& profile, const Plan& plan) {
  const std::string pins = json_bool(profile.offload_pin_memory);
  if (plan.offload.optimizer > 0) {
    Members members = {{"device", "\"cpu\""}, {"pin_memory", pins}};
    if (plan.offload.optimizer < 1) {
      members.emplace_back("ratio", exact_text(plan.offload.optimizer));
    }
    zero.emplace_back("offload_optimizer", object_text(members, "    "));
  }
  if (plan.offload.parameters) {
    zero.emplace_back("offload_param",
                      object_text({{"device", "\"cpu\""}, {"pin_memory", pins}}, "    "));
  }
}

// DeepSpeed 0.19.6 runtime/zero/config.py.
Members zero_members(const FrameworkProfile& profile, const Plan& plan) {
  Members members = {{"stage", std::to_string(plan.zero)}};
  if (profile.overlap_comm != OverlapComm::kDefault) {
    members.emplace_back("overlap_comm", json_bool(profile.overlap_comm == OverlapComm::kOn));
  }
  members.emplace_back("reduce_bucket_size", std::to_string(profile.reduce_bucket_elements));
  if (plan.zero == 3) {
    members.emplace_back("stage3_prefetch_bucket_size",
                         std::to_string(profile.prefetch_bucket_elements));
    members.emplace_back("stage3_max_live_parameters", std::to_string(profile.max_live_parameters));
    members.emplace_back("stage3_param_persistence_threshold",
                         std::to_string(profile.persistent_elements));
  }
  add_offload(members, profile, plan);
  return members;
}

// Gradients are summed in the type of the weights unless another is asked for.
std::string sums_of(const Plan& plan) {
  const DType own = plan.precision == Precision::kBf16   ? DType::kBf16
                    : plan.precision == Precision::kFp16 ? DType::kFp16
                                                         : DType::kFp32;
  return plan.grad_dtype == own ? "" : std::string(name_of(plan.grad_dtype));
}

}  // namespace

ExportedFile deepspeed_file_of(const ExportRequest& request) {
  const Job& job = request.job();
  const Plan& plan = request.plan();
  Members members = {
      {"train_micro_batch_size_per_gpu", std::to_string(plan.micro_batch)},
      {"gradient_accumulation_steps", std::to_string(num_microbatches(job, plan))},
      {"gradient_clipping", "1.0"},
      {"bf16", object_text({{"enabled", json_bool(plan.precision == Precision::kBf16)}}, "  ")},
      {"fp16", object_text({{"enabled", json_bool(plan.precision == Precision::kFp16)}}, "  ")}};
  if (const std::string sums = sums_of(plan); !sums.empty()) {
    members.emplace_back("data_types", object_text({{"grad_accum_dtype", '"' + sums + '"'}}, "  "));
  }
  members.emplace_back("zero_optimization", object_text(zero_members(job.profile, plan), "  "));
  members.emplace_back("zero_allow_untested_optimizer", "true");
  return {.name = "deepspeed.json", .text = object_text(members, "") + "\n"};
}

}  // namespace shardplan
