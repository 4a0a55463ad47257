// Worked examples of the Megatron profile, integers computed by hand formulas outside this code:
//   N = L/p*((2h^2 + 2hkd + 3hf)/t + 2h) + ends; optimizer 12N/(D*c); kept activations
//   F*T*(12h + 4hk/a + 6f + 4a + 8 [+ 2h with context parallelism by all-to-all])/t per layer;
//   cached dummy gradients 2*(V*h [last] + 3fh + h^2(1+2k/a) + h^2)/t.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/plan/in_flight.h"

namespace shardplan::megatron {
namespace {

struct Example {
  const char* model;
  std::int64_t tp, pp, vpp, cp, dp, sequence_length, microbatches;
  bool full_recompute;
  std::int64_t stage, parameters, optimizer_bytes, dummy_bytes, activation_bytes;
};

constexpr Example kExamples[] = {
    {"llama3-8b", 1, 1, 1, 1, 8, 4096, 16, false, 0, 8030261248, 12045391872, 1486880768,
     18271436800},
    {"llama3-8b", 2, 1, 1, 1, 4, 4096, 16, false, 0, 4015263744, 12045791232, 743440384,
     9135718400},
    {"llama3-8b", 4, 1, 1, 1, 2, 4096, 16, false, 0, 2008289280, 12049735680, 372244480,
     4567859200},
    {"llama3-8b", 2, 2, 1, 1, 2, 4096, 8, false, 0, 2007629824, 12045778944, 218103808, 9135718400},
    {"llama3-8b", 2, 2, 1, 1, 2, 4096, 8, false, 1, 2007633920, 12045803520, 743440384, 4567859200},
    {"llama3-8b", 2, 1, 1, 1, 4, 8192, 16, false, 0, 4015263744, 12045791232, 743440384,
     18271436800},
    {"llama3-8b", 1, 1, 1, 2, 4, 8192, 16, false, 0, 8030261248, 12045391872, 1486880768,
     19345178624},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, false, 0, 2271543296, 13629259776, 213909504,
     11251548160},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, false, 1, 2139422720, 12836536320, 213909504,
     8438661120},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, false, 2, 2139422720, 12836536320, 213909504,
     5625774080},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, false, 3, 2271551488, 13629308928, 478150656,
     2812887040},
    {"llama3-70b", 8, 4, 5, 1, 2, 4096, 16, false, 0, 2271543296, 13629259776, 213909504,
     12939280384},
    {"llama3-70b", 8, 4, 5, 1, 2, 4096, 16, false, 1, 2139422720, 12836536320, 213909504,
     11814125568},
    {"llama3-70b", 8, 4, 5, 1, 2, 4096, 16, false, 2, 2139422720, 12836536320, 213909504,
     10688970752},
    {"llama3-70b", 8, 4, 5, 1, 2, 4096, 16, false, 3, 2271551488, 13629308928, 478150656,
     9563815936},
    {"llama3-70b", 8, 8, 1, 1, 1, 4096, 16, false, 0, 1201831936, 14421983232, 213909504,
     11251548160},
    {"llama3-70b", 8, 8, 1, 1, 1, 4096, 16, false, 7, 1201840128, 14422081536, 478150656,
     1406443520},
    {"llama3-70b", 4, 8, 1, 1, 2, 4096, 16, false, 0, 2402451456, 14414708736, 427819008,
     22503096320},
    {"llama3-70b", 4, 8, 1, 1, 2, 4096, 16, false, 7, 2402459648, 14414757888, 954204160,
     2812887040},
    {"llama3-70b", 8, 2, 1, 2, 2, 8192, 16, false, 0, 4410966016, 13232898048, 213909504,
     11251548160},
    {"llama3-70b", 8, 2, 1, 2, 2, 8192, 16, false, 1, 4410974208, 13232922624, 478150656,
     5625774080},
    {"llama3-70b", 8, 4, 1, 1, 16, 8192, 16, false, 0, 2271543296, 1703657472, 213909504,
     22503096320},
    {"llama3-70b", 8, 4, 1, 1, 16, 8192, 16, false, 1, 2139422720, 1604567040, 213909504,
     16877322240},
    {"llama3-70b", 8, 4, 1, 1, 16, 8192, 16, false, 2, 2139422720, 1604567040, 213909504,
     11251548160},
    {"llama3-70b", 8, 4, 1, 1, 16, 8192, 16, false, 3, 2271551488, 1703663616, 478150656,
     5625774080},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, true, 0, 2271543296, 13629259776, 213909504, 671088640},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, true, 1, 2139422720, 12836536320, 213909504, 503316480},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, true, 2, 2139422720, 12836536320, 213909504, 335544320},
    {"llama3-70b", 8, 4, 1, 1, 2, 4096, 16, true, 3, 2271551488, 13629308928, 478150656, 167772160},
};

Job job_of(const Library& library, const Example& example) {
  Job job;
  job.model = library.model(example.model).model;
  job.cluster = library.cluster("1x8-h200");
  job.cluster.gpus_per_node = example.tp * example.pp * example.cp * example.dp;
  job.profile = library.framework("megatron");
  job.sequence_length = example.sequence_length;
  job.global_batch = example.microbatches * example.dp;
  return job;
}

Plan plan_of(const Example& example) {
  Plan plan;
  plan.tp = example.tp;
  plan.pp = example.pp;
  plan.vpp = example.vpp;
  plan.cp = example.cp;
  // Ring where one kv head per rank leaves nothing for an all-to-all to split.
  plan.cp_method = example.tp == 8 ? CpMethod::kRing : CpMethod::kA2a;
  plan.sequence_parallel = example.tp > 1;
  plan.zero = 1;
  plan.schedule = example.pp == 1    ? Schedule::kNone
                  : example.vpp == 1 ? Schedule::k1F1B
                                     : Schedule::kInterleaved1F1B;
  if (example.full_recompute) {
    plan.recompute.granularity = RecomputeGranularity::kFull;
  }
  return plan;
}

std::int64_t bytes_starting_with(const StageMemory& stage, const std::string& prefix) {
  std::int64_t bytes = 0;
  for (const Row& row : stage.rows) {
    const bool padding = row.name.find("padding") != std::string::npos;
    bytes += row.name.starts_with(prefix) && !padding ? row.bytes : 0;
  }
  return bytes;
}

// What transformer layers keep of all microbatches at the fullest state of the schedule, the
// running one included; under full recompute the inputs of the groups.
std::int64_t kept_by_layers(const Job& job, const Plan& plan, std::int64_t stage) {
  const PlanPieces whole = plan_pieces(job, plan);
  const BlockSet& blocks = whole.blocks;
  const StagePieces& pieces = whole.stages[static_cast<std::size_t>(stage)];
  const BlockSummary& layer = blocks[static_cast<std::size_t>(BlockKind::kDenseLayer)].summary;
  const bool full = plan.recompute.granularity == RecomputeGranularity::kFull;
  const std::int64_t layers_per_chunk = div_exact(pieces.layout.num_layers, plan.vpp);
  std::int64_t most = 0;
  for (const InFlightState& state : pieces.schedule) {
    std::int64_t chunks = 1;
    for (const std::int64_t saved : state.saved) { chunks += saved; }
    most = std::max(most, chunks);
  }
  return most * layers_per_chunk * (full ? layer.input_bytes : layer.kept_bytes);
}

TEST_CASE("worked examples are reproduced to the byte") {
  const Library library;
  for (const Example& example : kExamples) {
    const Job job = job_of(library, example);
    const Plan plan = plan_of(example);
    const MemoryEstimate estimate = estimate_memory(job, plan);
    const StageMemory& stage = estimate.stages[static_cast<std::size_t>(example.stage)];
    CAPTURE(example.model);
    CAPTURE(example.tp);
    CAPTURE(example.pp);
    CAPTURE(example.stage);
    CHECK(stage.parameters == example.parameters);
    CHECK(bytes_starting_with(stage, "parameters.") == 2 * example.parameters);
    CHECK(bytes_starting_with(stage, "gradients.") == 4 * example.parameters);
    CHECK(bytes_starting_with(stage, "optimizer.dense.") == example.optimizer_bytes);
    CHECK(bytes_starting_with(stage, "dummy_weight_gradients") == example.dummy_bytes);
    CHECK(kept_by_layers(job, plan, example.stage) == example.activation_bytes);
  }
}

// A layer keeps 139,264 (8B), 274,432 (70B), 520,192 (405B) bytes per token plus 4a + 8 of
// statistics: 544, 1072, 2032 MiB per layer at 4096 tokens.
TEST_CASE("a layer keeps the published bytes per token") {
  const Library library;
  struct Kept {
    const char* model;
    std::int64_t linear_bytes, heads;
  };
  for (const Kept& kept : {Kept{"llama3-8b", 139264, 32}, Kept{"llama3-70b", 274432, 64},
                           Kept{"llama3.1-405b", 520192, 128}}) {
    Job job;
    job.model = library.model(kept.model).model;
    job.cluster = library.cluster("1x8-h200");
    job.profile = library.framework("megatron");
    job.sequence_length = 4096;
    job.global_batch = 8;
    const BlockSet blocks = block_set(job, Plan{.zero = 1});
    CHECK(blocks[static_cast<std::size_t>(BlockKind::kDenseLayer)].summary.kept_bytes ==
          4096 * (kept.linear_bytes + 4 * kept.heads + 8));
  }
}

// 2.35 bytes per logit: the reference's fitted value, chosen through the profile.
TEST_CASE("the bytes per logit of the profile replace those of the loss") {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework("megatron");
  job.profile.cross_entropy_bytes_per_logit = 2.35;
  job.sequence_length = 4096;
  job.global_batch = 8;
  const BlockSet blocks = block_set(job, Plan{.zero = 1});
  std::int64_t bytes = 0;
  for (const BlockRow& row : blocks[static_cast<std::size_t>(BlockKind::kHead)].rows) {
    bytes += row.name.find("logits") != std::string_view::npos ? row.bytes : 0;
  }
  CHECK(bytes == 1234540954);  // 2.35 * 4096 * 128256 = 1,234,540,953.6, rounded up
}

}  // namespace
}  // namespace shardplan::megatron
