// Attention over keys that an indexer chooses, as Megatron-LM core_v0.16.1 runs it. What its
// functions keep was seen by torch's saved_tensors_hooks on the CPU (torch 2.11): of 64 tokens, 4
// heads of 24 and values of 16, an indexer of 8 heads of 16.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/estimate.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/parameters.h"
#include "estimator/price/price.h"
#include "tests/estimator/broken_plans.h"

namespace shardplan::megatron {
namespace {

Job sparse_job(const char* cluster = "1x1-h200") {
  const Library library;
  Job job;
  job.model = library.model("deepseek-v3.2").model;
  job.model.layers.resize(4);
  job.model.num_mtp_layers = 0;
  job.model.moe.num_experts = 16;
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.profile.rope_fusion = false;
  job.sequence_length = 512;
  job.global_batch = 8;
  return job;
}

Job small_job() {
  Job job = sparse_job();
  ModelSpec& model = job.model;
  model.num_heads = 4;
  model.num_kv_heads = 4;
  model.mla = {.q_lora_rank = 32,
               .kv_lora_rank = 32,
               .qk_nope_head_dim = 16,
               .qk_rope_head_dim = 8,
               .v_head_dim = 16};
  model.indexer = {.num_heads = 8, .head_dim = 16, .topk = 32};
  job.sequence_length = 64;
  return job;
}

std::int64_t row_bytes(const Job& job, std::string_view name, const Plan& plan = {}) {
  const BlockSet blocks = block_set(job, plan);
  std::int64_t bytes = 0;
  for (const BlockRow& row : blocks[static_cast<std::size_t>(BlockKind::kDenseLayer)].rows) {
    bytes += row.name == name ? row.bytes : 0;
  }
  return bytes;
}

TEST_CASE("the indexer, attention and the indexer's loss keep what torch's hooks saw") {
  const Job job = small_job();
  CHECK(row_bytes(job, "indexer.fp32_query_key") == 32'768 + 4096);
  CHECK(row_bytes(job, "indexer.scores") == 131'072);
  CHECK(row_bytes(job, "attention.fp32_query_key") == 24'576 + 24'576);
  CHECK(row_bytes(job, "attention.probabilities") == 65'536);
  CHECK(row_bytes(job, "attention.cast_probabilities") == 32'768);
  CHECK(row_bytes(job, "indexer.loss") == 3 * 16'384);
}

TEST_CASE("tensor parallelism divides attention's pairs, not the indexer's") {
  const Job job = sparse_job("1x2-h200");
  const Plan plan = {.tp = 2, .ep = 2, .sequence_parallel = true};
  REQUIRE(!why_invalid(job, plan));
  CHECK(2 * row_bytes(job, "attention.probabilities", plan) ==
        row_bytes(job, "attention.probabilities"));
  CHECK(row_bytes(job, "indexer.scores", plan) == row_bytes(job, "indexer.scores"));
  CHECK(row_bytes(job, "indexer.gathered_input") == 0);
  CHECK(row_bytes(job, "indexer.gathered_input", plan) == 2 * 512 * (7168 + 1536));
}

// Queries of the compressed queries, one key and a weight a head from the hidden states, and a
// LayerNorm of keys.
TEST_CASE("an indexer's parameters are whole on every rank") {
  const Job job = sparse_job("1x2-h200");
  Job without = job;
  for (LayerSpec& layer : without.model.layers) { layer.has_indexer = false; }
  constexpr std::int64_t kIndexer = 1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64;
  for (const std::int64_t tp : {1, 2}) {
    const Plan plan = {.tp = tp, .ep = 2, .sequence_parallel = tp > 1};
    CHECK(block_parameters(job, plan, BlockKind::kDenseLayer).dense -
              block_parameters(without, plan, BlockKind::kDenseLayer).dense ==
          kIndexer);
  }
}

TEST_CASE("memory of sparse attention grows with the square of the sequence, as its time") {
  Job job = sparse_job();
  const auto scores = [&](std::int64_t length) {
    job.sequence_length = length;
    return row_bytes(job, "attention.probabilities") + row_bytes(job, "indexer.scores");
  };
  CHECK(scores(1024) == 4 * scores(512));
  job.sequence_length = 512;
  const double seconds = estimate_step_time(job, {}).total_s;
  Job dense = job;
  for (LayerSpec& layer : dense.model.layers) { layer.has_indexer = false; }
  CHECK(seconds > estimate_step_time(dense, {}).total_s);
}

TEST_CASE("prices of sparse attention equal their estimates") {
  const Job job = sparse_job("1x4-h200");
  PriceTable table = build_price_table(job);
  const Recompute full = {.granularity = RecomputeGranularity::kFull};
  const std::vector<Plan> plans = {{.ep = 4},
                                   {.tp = 2, .ep = 2, .zero = 1, .sequence_parallel = true},
                                   {.ep = 4, .micro_batch = 2, .recompute = full}};
  for (const Plan& plan : plans) {
    REQUIRE(!why_invalid(job, plan));
    const MemoryEstimate memory = estimate_memory(job, plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    const Price priced = price(table, plan);
    CHECK(priced.allocated_bytes == largest->allocated_bytes);
    CHECK(priced.step_time_s == estimate_step_time(job, plan).total_s);
  }
}

TEST_CASE("what Megatron-LM refuses of indexers, and what is not described of them") {
  check_refused(
      sparse_job("1x2-h200"),
      {{"indexers_need_cp_1", [](Job&, Plan& plan) { plan.cp = 2; }, {"cp 2", "deepseek_v32"}},
       {"indexers_need_plain_rotary_kernels",
        [](Job& spoiled, Plan&) { spoiled.profile.rope_fusion = true; },
        {"rope_fusion true", "rope_fusion false"}},
       {"indexers_replay_layers",
        [](Job&, Plan& plan) {
          plan.recompute = {.granularity = RecomputeGranularity::kSelective,
                            .modules = {.core_attn = true}};
        },
        {"core_attn", "full"}},
       {"indexers_stand_alone", [](Job&, Plan& plan) { plan.zero = 3; }, {"zero above 1"}},
       {"unsupported: model.layers",
        [](Job& spoiled, Plan&) { spoiled.model.layers.back().has_indexer = false; },
        {"an indexer (deepseek_v32)", "every layer"}}});
}

}  // namespace
}  // namespace shardplan::megatron
