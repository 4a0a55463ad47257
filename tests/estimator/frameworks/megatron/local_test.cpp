// Megatron-core's local layer spec: hand counts of what a layer keeps, and which moment wins.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/estimate.h"
#include "estimator/ledger/block_memory.h"

namespace shardplan::megatron {
namespace {

// Sizes of Llama-3.2-1B: h 2048, 32 query and 8 kv heads of 64, f 8192, 16 layers.
Job small_llama(std::int64_t gpus) {
  const Library library;
  Job job;
  job.profile = library.framework("megatron-core-local");
  job.model = library.model("llama3.2-1b").model;
  job.model.tied_embeddings = false;
  job.cluster.gpu = library.gpu("h200");
  job.cluster.gpus_per_node = gpus;
  job.sequence_length = 4096;
  job.global_batch = 8;
  return job;
}

std::int64_t kept_bytes(const MemoryEstimate& estimate, const std::string& prefix) {
  std::int64_t bytes = 0;
  for (const Row& row : estimate.stages.front().rows) {
    const bool is_kept = row.component == Component::kActivations;
    bytes += is_kept && row.name.starts_with(prefix) ? row.bytes : 0;
  }
  return bytes;
}

std::int64_t layer_bytes(const Job& job, std::string_view name) {
  std::int64_t bytes = 0;
  const BlockSet blocks = block_set(job, Plan{});
  for (const BlockRow& row : blocks[static_cast<std::size_t>(BlockKind::kDenseLayer)].rows) {
    bytes += row.name == name ? row.bytes : 0;
  }
  return bytes;
}

bool has_row(const MemoryEstimate& estimate, const std::string& name) {
  return std::ranges::any_of(estimate.stages.front().rows,
                             [&](const Row& row) { return row.name == name; });
}

}  // namespace

// Per token: two residuals and two norm outputs 8h; rotated q and attention output 4h; packed qkv
// 2h + 4k*d; rotated k 2k*d; log-sum-exp 4a; gate, up and product 6f; two fp32 statistics 8; cos
// and sin for q and for k 8d; and 1 KiB of random state.
TEST_CASE("a layer under the local spec keeps 14h + 6kd + 6f and what goes with it") {
  const MemoryEstimate estimate = estimate_memory(small_llama(1), Plan{});
  const std::int64_t per_token = 14 * 2048 + 6 * 8 * 64 + 4 * 32 + 6 * 8192 + 8 + 8 * 64;
  CHECK(kept_bytes(estimate, "layer.dense.") == 4096 * per_token + 1024);
}

// q copied out of the packed groups 2h, else forgotten when attention has returned, and an fp32
// statistic for every head of q and of k. With as many kv heads as heads q stays where it is.
TEST_CASE("norms of q and k keep q as it was projected and one value a head") {
  for (const auto& row : {std::pair{8, 2048}, std::pair{32, 0}}) {
    const auto& kv_heads = row.first;
    const auto& copied = row.second;
    CAPTURE(kv_heads);
    Job job = small_llama(1);
    job.model.num_kv_heads = kv_heads;
    const std::int64_t without = kept_bytes(estimate_memory(job, Plan{}), "layer.dense.");
    job.model.qk_norm = true;
    const std::int64_t with = kept_bytes(estimate_memory(job, Plan{}), "layer.dense.");
    CHECK(with - without == 4096 * (2 * copied + 4 * (32 + kv_heads)));
  }
}

// Traced on one H200, 32 and 8 heads of 128, 4096 tokens: forward 32 MiB for q, 32 for its norm, 8
// and 8 for k's view made contiguous and its norm; backward 8 and 8 for k, 32 for q and 1 for sums
// over 32 of its 131,072 rows, of which k has too few.
TEST_CASE("norms of q and k make the tensors that were traced") {
  Job job = small_llama(1);
  job.model.head_dim = 128;
  job.model.qk_norm = true;
  const auto mebibytes = [&](std::string_view name) {
    return static_cast<double>(layer_bytes(job, name)) / (1 << 20);
  };
  CHECK(mebibytes("attention.query_copy") == 32);
  CHECK(mebibytes("attention.contiguous_query") == 0);
  CHECK(mebibytes("attention.query_norm_output") == 32);
  CHECK(mebibytes("attention.contiguous_key") == 8);
  CHECK(mebibytes("attention.key_norm_output") == 8);
  CHECK(mebibytes("attention.contiguous_key_again") == 8);
  CHECK(mebibytes("attention.key_norm_input_gradient") == 8);
  CHECK(mebibytes("attention.key_norm_weight_parts") == 0);
  CHECK(mebibytes("attention.query_norm_input_gradient") == 32);
  CHECK(mebibytes("attention.query_norm_weight_parts") == 1);
}

TEST_CASE("recompute of mlp drops gate, up and product, core_attn the softmax statistics") {
  Job job = small_llama(1);
  job.sequence_length = 16384;
  Plan plan;
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  plan.recompute.modules.mlp = true;
  const std::int64_t none = estimate_memory(job, Plan{}).stages.front().allocated_bytes;
  const std::int64_t mlp = estimate_memory(job, plan).stages.front().allocated_bytes;
  // At the loss, the peak, all 16 layers are kept.
  CHECK(none - mlp == 16 * std::int64_t{16384} * 6 * 8192);
  plan.recompute.modules = {.core_attn = true};
  const std::int64_t core = estimate_memory(job, plan).stages.front().allocated_bytes;
  CHECK(none - core == 16 * (std::int64_t{16384} * 4 * 32 + 1024));
}

// Measured: 15 GB of state and 10 bytes a parameter after start-up, 18 between steps, 22 in torch's
// unfused AdamW.
TEST_CASE("the optimizer step holds 22 bytes a parameter") {
  Job job = small_llama(1);
  job.sequence_length = 256;
  const MemoryEstimate estimate = estimate_memory(job, Plan{});
  const StageMemory& stage = estimate.stages.front();
  CHECK(stage.peak_moment() == "optimizer step");
  const double per_parameter =
      static_cast<double>(stage.allocated_bytes) / static_cast<double>(stage.parameters);
  CHECK(per_parameter == doctest::Approx(22).epsilon(0.005));
}

TEST_CASE("gathered inputs of products stay in one buffer on every stage") {
  Plan plan;
  plan.tp = 2;
  CHECK_FALSE(has_row(estimate_memory(small_llama(2), plan), "sequence_gather_buffer"));
  plan.sequence_parallel = true;
  CHECK(has_row(estimate_memory(small_llama(2), plan), "sequence_gather_buffer"));
}

TEST_CASE("what the local spec does not have is refused by name") {
  Job job = small_llama(2);
  Plan plan;
  plan.cp = 2;
  CHECK(why_invalid(job, plan)->rule == "unsupported: cp");
  plan = Plan{};
  plan.zero = 2;
  CHECK(why_invalid(job, plan)->rule == "unsupported: zero");
  plan = Plan{};
  plan.precision = Precision::kFp8;
  CHECK(why_invalid(job, plan)->rule == "unsupported: precision");
}

}  // namespace shardplan::megatron
