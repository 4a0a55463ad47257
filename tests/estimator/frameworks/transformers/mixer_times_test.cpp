// What mixers' kernels are counted as, against those of data/measured/mixer_kernels_h200.json. What
// was not measured is counted beside it.
#include <doctest/doctest.h>

#include <vector>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/huggingface/mixers/package_kernels.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/block_work.h"
#include "tests/estimator/host_costs.h"
#include "tests/estimator/layer_kernels.h"

namespace shardplan::huggingface {
namespace {

struct Microseconds {
  double forward = 0;
  double backward = 0;
};

struct Measured {
  std::int64_t batch;
  std::int64_t tokens;
  Microseconds kernels;
};

constexpr std::int64_t kWidth = 2048;  // 16 heads of 128

Job job_of_tokens(const Measured& run) {
  Job job = job_of(MemoryModel::kTransformers);
  job.cluster.gpus_per_node = 1;
  job.cluster.gpu = measured_h200();
  job.cluster.gpu.num_sms = 132;
  job.cluster.gpu.bf16_flops_per_s = 989e12;
  job.profile.mixer_kernels = true;
  job.profile.convolution_kernels = true;
  job.sequence_length = run.tokens;
  job.global_batch = run.batch;
  job.model.hidden = kWidth;
  job.model.layers.resize(1);
  return job;
}

Job rule_of(const char* family, MixerKind mixer, const Measured& run) {
  Job job = job_of_tokens(run);
  job.model.family = family;
  job.model.layers[0].mixer = mixer;
  job.model.delta = {.key_heads = 16,
                     .value_heads = 16,
                     .key_head_dim = 128,
                     .value_head_dim = 128,
                     .convolution = 4};
  return job;
}

Microseconds in_microseconds(const BlockTime& took) {
  return {.forward = took.forward_s * 1e6,
          .backward = (took.backward_input_s + took.backward_weight_s) * 1e6};
}

BlockContext context_of(const Job& job) {
  return block_context(job, {.micro_batch = job.global_batch});
}

// Copies of queries, keys and values in front of a rule, in bf16; and Kimi's decays by operators.
constexpr Passes kQueryAndKey = {.forward = {.streamed = 8}, .backward = {.streamed = 8}};
constexpr Passes kValue = {.forward = {.streamed = 4}, .backward = {}};
constexpr Passes kForgetGate = {.forward = {.streamed = 58, .converted = 6},
                                .backward = {.streamed = 78, .converted = 6}};

// Of 8192 channels and of norms of 32 heads that the file has, per token.
constexpr Microseconds kConvolution = {.forward = 85.0 / 8192, .backward = 176.9 / 8192};
constexpr Microseconds kGatedNorm = {.forward = 820.6 / 8192, .backward = 1614.9 / 8192};

// What a mixer takes: what was measured, and bytes of what was not.
Microseconds around_rule(const Measured& run, const BlockContext& context, const Passes& counted) {
  const double tokens = static_cast<double>(run.batch * run.tokens);
  constexpr double kChannels = 3.0 * kWidth / 8192;
  constexpr double kHeads = 16.0 / 32;
  const Microseconds beside =
      in_microseconds(memory_bound(context, tokens * kWidth, kQueryAndKey + kValue + counted));
  return {.forward = run.kernels.forward + beside.forward +
                     tokens * (kConvolution.forward * kChannels + kGatedNorm.forward * kHeads),
          .backward = run.kernels.backward + beside.backward +
                      tokens * (kConvolution.backward * kChannels + kGatedNorm.backward * kHeads)};
}

void check_within(const Microseconds& counted, const Microseconds& measured, double share) {
  CAPTURE(counted.forward);
  CAPTURE(measured.forward);
  CAPTURE(counted.backward);
  CAPTURE(measured.backward);
  CHECK(counted.forward == doctest::Approx(measured.forward).epsilon(share));
  CHECK(counted.backward == doctest::Approx(measured.backward).epsilon(share));
}

TEST_CASE("a gated delta net takes what its kernels were measured to take") {
  const std::vector<Measured> runs = {{1, 2048, {103.6, 261.1}},
                                      {1, 4096, {180.4, 497.8}},
                                      {1, 8192, {354.4, 971.5}},
                                      {1, 16384, {699.1, 1909.3}},
                                      {4, 2048, {280.0, 750.4}}};
  for (const Measured& run : runs) {
    CAPTURE(run.tokens);
    const Job job = rule_of("qwen3_5_text", MixerKind::kGatedDelta, run);
    const BlockContext context = context_of(job);
    check_within(in_microseconds(package_delta_time(context)), around_rule(run, context, {}), 0.09);
  }
}

TEST_CASE("Kimi delta attention takes what its kernels were measured to take") {
  const std::vector<Measured> runs = {{1, 2048, {200.7, 608.8}},
                                      {1, 4096, {357.4, 1181.2}},
                                      {1, 8192, {690.6, 2310.6}},
                                      {1, 16384, {1332.7, 4612.3}},
                                      {4, 2048, {594.9, 2121.2}}};
  for (const Measured& run : runs) {
    CAPTURE(run.tokens);
    const Job job = rule_of("kimi_linear", MixerKind::kKimiDelta, run);
    const BlockContext context = context_of(job);
    check_within(in_microseconds(package_kimi_time(context)),
                 around_rule(run, context, kForgetGate), 0.06);
  }
}

// The output's product, which the function runs, is not among them.
TEST_CASE("Mamba-2's function takes what its kernels were measured to take") {
  const std::vector<Measured> runs = {{1, 2048, {217.6, 859.6}},
                                      {1, 4096, {418.0, 1577.7}},
                                      {1, 8192, {816.2, 3047.6}},
                                      {2, 4096, {815.5, 3092.5}}};
  for (const Measured& run : runs) {
    CAPTURE(run.tokens);
    Job job = job_of_tokens(run);
    job.model.family = "bamba";
    job.model.layers[0].mixer = MixerKind::kMamba2;
    job.model.mamba = {.num_heads = 128,
                       .head_dim = 64,
                       .inner = 8192,
                       .state = 128,
                       .groups = 8,
                       .convolution = 4,
                       .chunk = 128};
    check_within(in_microseconds(combined_scan_time(context_of(job))), run.kernels, 0.08);
  }
}

// What steps of data/measured/trainer_kernels_h200.jsonl took over layers with attention.
TEST_CASE("mixers cost the host more than attention") {
  for (const MemoryModel framework : {MemoryModel::kTransformers, MemoryModel::kDeepspeed}) {
    Job job;
    set_measured_framework(job.profile, framework);
    job.cluster.host_slowdown = kMachine;
    job.profile.mixer_kernels = true;
    const auto added_ms = [&](const LayerSpec& layer) {
      return 1e3 * (both(host_cost(job, {}, layer)) - both(host_cost(job, {}, {})));
    };
    const double gated = added_ms({.mixer = MixerKind::kGatedDelta});
    CHECK(gated == doctest::Approx(2.07));
    CHECK(added_ms({.mixer = MixerKind::kKimiDelta}) == doctest::Approx(1.2 * gated));
    const double mamba = added_ms({.mixer = MixerKind::kMamba2});
    CHECK(mamba == doctest::Approx(2.65));
    CHECK(added_ms({.has_mamba_beside = true}) == mamba);
    job.profile.mixer_kernels = false;
    CHECK(added_ms({.mixer = MixerKind::kGatedDelta}) == gated);
    CHECK(added_ms({.mixer = MixerKind::kMamba2}) == 0);
  }
}

}  // namespace
}  // namespace shardplan::huggingface
