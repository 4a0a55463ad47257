// Hosts that launch DeepSpeed's hooks around Hugging Face's layers.
#include "estimator/frameworks/deepspeed/host.h"

#include <doctest/doctest.h>

#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/host_costs.h"
#include "tests/measured_host.h"

namespace shardplan::deepspeed {
namespace {

TEST_CASE("ZeRO-3 costs the host more for weights that it divides, and for more ranks") {
  Job job;
  set_measured_framework(job.profile, MemoryModel::kDeepspeed);
  job.cluster.host_slowdown = kMachine;
  job.model.hidden = 256;
  job.model.ffn = 512;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 4;
  job.model.head_dim = 64;
  const auto hooks_ms = [&](std::int64_t ranks) {
    job.cluster.gpus_per_node = ranks;
    return 1e3 * (both(host_cost(job, {.zero = 3}, {})) - both(host_cost(job, {.zero = 1}, {})));
  };
  const double small = hooks_ms(1);
  CHECK(small == doctest::Approx(6.9).epsilon(0.01));  // ds-host-z3-l2 and -l6 less ds-host-z1
  job.model.hidden = 4096;
  job.model.ffn = 14336;
  job.model.num_heads = 32;
  job.model.head_dim = 128;
  // Python's time on a CPU, collectives that move nothing, over that of the small model.
  CHECK(hooks_ms(1) / small == doctest::Approx(1.20).epsilon(0.02));
  CHECK(hooks_ms(2) / small == doctest::Approx(1.31).epsilon(0.02));
  CHECK(hooks_ms(8) / small == doctest::Approx(1.43).epsilon(0.06));
  // Ranks cost less where more weights are gathered alone.
  const double together = hooks_ms(512);
  job.profile.prefetch_bucket_elements = 1;
  CHECK(hooks_ms(512) < together / 2);
  CHECK(hooks_ms(512) == hooks_ms(2));
}

// data/measured/deepspeed_h200.jsonl, ds-host-...: four microbatches of a model 256 wide.
TEST_CASE("DeepSpeed's layers and hooks cost the host what small models took") {
  Job job;
  set_measured_framework(job.profile, MemoryModel::kDeepspeed);
  job.cluster.host_slowdown = kMachine;
  const auto step_s = [&](std::int64_t zero, double layers) {
    const Plan plan{.zero = zero};
    return 4 * (layers * both(host_cost(job, plan, {})) + both(host_cost_of_ends(job, plan)));
  };
  CHECK(step_s(1, 2) == doctest::Approx(0.038).epsilon(0.06));
  CHECK(step_s(1, 6) == doctest::Approx(0.079).epsilon(0.06));
  CHECK(step_s(2, 2) == doctest::Approx(0.049).epsilon(0.06));
  CHECK(step_s(2, 6) == doctest::Approx(0.116).epsilon(0.06));
  CHECK(step_s(3, 2) == doctest::Approx(0.150).epsilon(0.06));
  CHECK(step_s(3, 6) == doctest::Approx(0.300).epsilon(0.06));
}

// tools/measure/trainer_steps.py: an adapter is a tenth of a plain layer, a chunk of 256 tokens
// 0.6.
TEST_CASE("adapters and chunks of the loss take the host's time, and hooks look at their modules") {
  Job job;
  job.cluster.host_slowdown = kMachine;
  job.model.hidden = 256;
  job.model.ffn = 512;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 4;
  job.model.head_dim = 64;
  job.model.layers.resize(1);
  Job adapted = job;
  adapted.adapters.rank = 16;
  adapted.adapters.targets.fill(true);
  const auto added_ms = [&](MemoryModel framework, std::int64_t zero) {
    set_measured_framework(job.profile, framework);
    set_measured_framework(adapted.profile, framework);
    const Plan plan{.zero = zero};
    return 1e3 * (both(host_cost(adapted, plan, {})) - both(host_cost(job, plan, {})));
  };
  constexpr double kAdaptersMs = 7 * 0.25;
  CHECK(added_ms(MemoryModel::kTransformers, 0) == doctest::Approx(kAdaptersMs));
  CHECK(added_ms(MemoryModel::kDeepspeed, 1) == doctest::Approx(kAdaptersMs));
  // 14 gradients in place of 9; 28 more modules beside 13.
  CHECK(added_ms(MemoryModel::kDeepspeed, 2) ==
        doctest::Approx(kAdaptersMs + 1.7 * (14.0 / 9 - 1)));
  CHECK(added_ms(MemoryModel::kDeepspeed, 3) == doctest::Approx(kAdaptersMs + 5.82 * 28 / 13));

  set_measured_framework(job.profile, MemoryModel::kTransformers);
  job.sequence_length = 1000;
  const double whole_s = both(host_cost_of_ends(job, {}));
  job.profile.head_loss = HeadLoss::kChunked;
  CHECK(both(host_cost_of_ends(job, {})) == doctest::Approx(whole_s + 4 * 1.5e-3));
}

}  // namespace
}  // namespace shardplan::deepspeed
