// How a Trainer's run says which kernels run its experts, norms and rotary embeddings.
#include <doctest/doctest.h>

#include "estimator/estimate.h"
#include "tests/data/arguments/trainer_reading.h"

namespace shardplan {
namespace {

using enum TrainerProject;

constexpr const char* kPlugin = "axolotl.integrations.kernels.KernelsPlugin";

bool is_refused(const RunReading& run, const char* reason) {
  return run.unsupported.find(reason) != std::string::npos;
}

}  // namespace

TEST_CASE("axolotl's kernels plugin has ScatterMoE run experts, whatever else is said") {
  const TrainerWords words = {{"plugins", kPlugin}, {"use_scattermoe", "true"}};
  const auto with = [&](const std::string& name, const std::string& value) {
    TrainerWords more = words;
    more.push_back({name, value});
    return read_trainer_run(kAxolotl, more, "qwen3-30b-a3b");
  };
  for (const RunReading& run :
       {read_trainer_run(kAxolotl, words, "qwen3-30b-a3b"),
        with("experts_implementation", "scattermoe"), with("experts_implementation", "grouped_mm"),
        with("moe_dequant_chunk_size", "16"), with("moe_bnb_fast", "true")}) {
    CHECK(run.unsupported.empty());
    CHECK(run.job.profile.expert_kernels == ExpertKernels::kScatterMoe);
    CHECK_FALSE(run.job.profile.eager_experts);
    CHECK(run.job.profile.liger_kernel == LigerKernel::kNorms);  // the plugin sets use_kernels
  }
  CHECK(is_refused(with("moe_bnb_fast", "false"), "unpacked by chunks"));
  CHECK(is_refused(read_trainer_run(kAxolotl, {{"use_scattermoe", "true"}}, "qwen3-30b-a3b"),
                   "use_scattermoe true: axolotl's KernelsPlugin reads it"));
  CHECK(is_refused(
      read_trainer_run(kAxolotl, {{"plugins", kPlugin}, {"use_sonicmoe", "true"}}, "qwen3-30b-a3b"),
      "use_sonicmoe true"));
}

TEST_CASE("axolotl's kernels plugin without kernels has experts run one after the other") {
  const RunReading run = read_trainer_run(kAxolotl, {{"plugins", kPlugin}}, "qwen3-30b-a3b");
  CHECK(run.unsupported.empty());
  CHECK(run.job.profile.eager_experts);
  CHECK(run.job.profile.expert_kernels == ExpertKernels::kGrouped);
  const RunReading plain = read_trainer_run(kAxolotl, {}, "qwen3-30b-a3b");
  CHECK_FALSE(plain.job.profile.eager_experts);
  CHECK(plain.job.profile.liger_kernel == LigerKernel::kOff);
}

TEST_CASE("use_kernels takes norms from the Hub where Liger has not, and gpt-oss's experts") {
  const TrainerWords words = {{"use_kernels", "true"}};
  const RunReading dense = read_trainer_run(kAxolotl, words);
  CHECK(dense.unsupported.empty());
  CHECK(dense.job.profile.liger_kernel == LigerKernel::kNorms);
  CHECK(dense.job.profile.expert_kernels == ExpertKernels::kGrouped);
  const RunReading mixture = read_trainer_run(kAxolotl, words, "gpt-oss-20b");
  CHECK(mixture.job.profile.expert_kernels == ExpertKernels::kMegablocks);
  TrainerWords with_liger = words;
  for (const char* const name : {"liger_rope", "liger_rms_norm", "liger_glu_activation"}) {
    with_liger.push_back({name, "true"});
  }
  CHECK(read_trainer_run(kAxolotl, with_liger).job.profile.liger_kernel ==
        LigerKernel::kThrough082);
  TrainerWords on_the_host = words;
  for (const auto& [name, value] :
       TrainerWords{{"fsdp_version", "2"},
                    {"fsdp_config.offload_params", "true"},
                    {"fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP"}}) {
    on_the_host.push_back({name, value});
  }
  const RunReading offloaded = read_trainer_run(kAxolotl, on_the_host, "gpt-oss-20b");
  CHECK(offloaded.plan.offload.parameters);
  CHECK(offloaded.job.profile.expert_kernels == ExpertKernels::kGrouped);
  CHECK(offloaded.job.profile.liger_kernel == LigerKernel::kOff);
  CHECK(has_note(offloaded, "took its own operators"));
  CHECK(read_trainer_run(kAxolotl, {{"use_kernels", "false"}}).job.profile.liger_kernel ==
        LigerKernel::kOff);
}

TEST_CASE("Liger's kernels of Qwen3.5 are axolotl's, with its gated norms") {
  TrainerWords words;
  for (const char* const name : {"liger_rope", "liger_rms_norm", "liger_glu_activation"}) {
    words.push_back({name, "true"});
  }
  CHECK(is_refused(read_trainer_run(kAxolotl, words, "qwen3.5-35b-a3b"),
                   "of Qwen3.5 liger_rms_norm is described with liger_rms_norm_gated"));
  words.push_back({"liger_rms_norm_gated", "true"});
  const RunReading run = read_trainer_run(kAxolotl, words, "qwen3.5-35b-a3b");
  CHECK(run.unsupported.empty());
  CHECK(run.job.profile.liger_kernel == LigerKernel::kThrough082);
  CHECK(is_refused(read_trainer_run(kFactory, {{"enable_liger_kernel", "true"}}, "qwen3.5-35b-a3b"),
                   "Liger's kernels of qwen3_5_moe_text: axolotl's"));
}

}  // namespace shardplan
