#include "estimator/estimate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "estimator/answer/allocator_totals.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

bool is_fujii(const RandomCase& drawn) {
  return drawn.job.profile.memory_model == MemoryModel::kFujii2024;
}

bool rows_add_up(const StageMemory& stage) {
  std::array<std::int64_t, kNumComponents> components{};
  std::int64_t allocated = 0;
  std::int64_t outside = 0;
  bool sane = true;
  for (const Row& row : stage.rows) {
    sane = sane && row.copies >= 0 && row.bytes >= row.elements * bytes_of(row.dtype);
    components[static_cast<std::size_t>(row.component)] += row.total_bytes();
    (row.in_allocator ? allocated : outside) += row.total_bytes();
  }
  return sane && allocated == stage.allocated_bytes && outside == stage.outside_bytes &&
         components == stage.components;
}

bool totals_are_ordered(const StageMemory& stage) {
  const bool sorted =
      std::ranges::is_sorted(stage.moments, std::ranges::greater{}, &Moment::allocated_bytes);
  return sorted && stage.moments.front().allocated_bytes == stage.allocated_bytes &&
         stage.first_step_bytes <= stage.allocated_bytes &&
         stage.steady_bytes <= stage.allocated_bytes && stage.state_bytes <= stage.steady_bytes &&
         stage.built_bytes <= stage.state_bytes && stage.allocated_bytes <= stage.required_bytes &&
         stage.required_bytes <= stage.reserved_bytes &&
         stage.device_used_bytes == stage.reserved_bytes + stage.outside_bytes;
}

RandomCase next_with_rows(RandomJobs& random) {
  RandomCase drawn = random.next();
  while (is_fujii(drawn)) { drawn = random.next(); }
  return drawn;
}

TEST_CASE("rows add up to the totals of every stage, for 3,000 random jobs and plans") {
  const Library library;
  RandomJobs random(library, 2);
  int failures = 0;
  for (int i = 0; i < 3000; ++i) {
    const RandomCase drawn = next_with_rows(random);
    const PlanPieces pieces = plan_pieces(drawn.job, drawn.plan);
    for (const StagePieces& stage : pieces.stages) {
      const StageMemory memory = stage_memory(drawn.job, drawn.plan, pieces.blocks, stage);
      failures += rows_add_up(memory) && totals_are_ordered(memory) ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("a stage without layers, in the middle of a pipeline, holds nothing of the model") {
  Job job;
  job.model.hidden = 64;
  job.model.ffn = 128;
  job.model.vocab = 1000;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 4;
  job.model.head_dim = 16;
  job.model.layers.resize(4);
  job.cluster.gpus_per_node = 4;
  job.cluster.nodes = 1;
  set_framework(job.profile, MemoryModel::kMegatron);
  job.sequence_length = 128;
  job.global_batch = 8;
  Plan plan{.pp = 4, .schedule = Schedule::k1F1B};
  plan.layers_per_chunk = {2, 0, 1, 1};
  const PlanPieces pieces = plan_pieces(job, plan);
  const StageMemory memory = stage_memory(job, plan, pieces.blocks, pieces.stages[1]);
  CHECK(memory.parameters == 0);
  CHECK(memory.components[static_cast<std::size_t>(Component::kActivations)] == 0);
}

TEST_CASE("replayed totals are ordered and the fullest device is the worst stage") {
  const Library library;
  RandomJobs random(library, 12);
  int failures = 0;
  for (int i = 0; i < 300; ++i) {
    const RandomCase drawn = random.next();
    const MemoryEstimate estimate = estimate_memory(drawn.job, drawn.plan);
    const std::int64_t worst =
        estimate.stages[static_cast<std::size_t>(estimate.worst_stage)].device_used_bytes;
    for (const StageMemory& stage : estimate.stages) {
      const bool ordered = is_fujii(drawn) || totals_are_ordered(stage);
      failures += rows_add_up(stage) && ordered && stage.device_used_bytes <= worst ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("a plan fits where the device holds it and does not where its tensors exceed it") {
  const Library library;
  RandomJobs random(library, 13);
  int failures = 0;
  for (int i = 0; i < 80; ++i) {
    RandomCase drawn = next_with_rows(random);
    const MemoryEstimate estimate = estimate_memory(drawn.job, drawn.plan);
    const StageMemory& worst = estimate.stages[static_cast<std::size_t>(estimate.worst_stage)];
    drawn.job.cluster.memory_limit_bytes = worst.device_used_bytes;
    failures += estimate_memory(drawn.job, drawn.plan).fit == Fit::kFits ? 0 : 1;
    drawn.job.cluster.memory_limit_bytes = worst.device_used_bytes - 1;
    failures += estimate_memory(drawn.job, drawn.plan).fit != Fit::kFits ? 0 : 1;
    drawn.job.cluster.memory_limit_bytes = worst.allocated_bytes + worst.outside_bytes - 1;
    failures += estimate_memory(drawn.job, drawn.plan).fit == Fit::kDoesNotFit ? 0 : 1;
  }
  CHECK(failures == 0);
}

TEST_CASE("the first step lacks the optimizer's two moments, 8 N / S bytes") {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework("megatron");
  job.sequence_length = 8192;
  job.global_batch = 64;
  const StageMemory stage = estimate_memory(job, Plan{.zero = 1}).stages.front();
  CHECK(stage.peak_moment() == "loss backward");
  CHECK(stage.allocated_bytes - stage.first_step_bytes == 8030261248);  // 8 N over 8 ranks
}

// Megatron-core measured on H200 (data/measured): (6 + 4/S) N stand once all is built.
TEST_CASE(
    "before the first step there are parameters, gradients and main parameters, 6 N + 4 N/S") {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework("megatron");
  job.sequence_length = 8192;
  job.global_batch = 64;
  const StageMemory stage = estimate_memory(job, Plan{.zero = 1}).stages.front();
  constexpr std::int64_t kN = 8030261248;  // divides over 8 ranks without padding
  const auto ends = std::ranges::find(stage.rows, "allocator.block_ends", &Row::name);
  REQUIRE(ends != stage.rows.end());
  CHECK(ends->total_bytes() < kN / 1000);
  CHECK(stage.built_bytes == 6 * kN + 4 * kN / 8 + ends->total_bytes());
  CHECK(stage.steady_bytes == stage.allocated_bytes);
}

// Megatron-core measured on H200: torch's unfused AdamW peaks at (6 + 16/S) N in the optimizer step
// where activations are small, (6 + 12/S) N with a fused one.
TEST_CASE("an unfused optimizer step needs one more fp32 copy of the shard") {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework("megatron");
  job.profile.fused_optimizer = false;
  job.profile.cross_entropy = CrossEntropyKind::kNativeFused;
  job.sequence_length = 256;
  job.global_batch = 64;
  Plan plan{.tp = 2, .zero = 0, .sequence_parallel = true};
  const StageMemory stage = estimate_memory(job, plan).stages.front();
  CHECK(stage.peak_moment() == "optimizer step");
  std::int64_t state = 0;
  for (const Row& row : stage.rows) {
    const bool is_state = row.name.starts_with("parameters.") ||
                          row.name.starts_with("gradients.") || row.name.starts_with("optimizer.");
    state += is_state ? row.total_bytes() : 0;
  }
  CHECK(state == 22 * std::int64_t{4015263744});
}

TEST_CASE(
    "the quick verdict of a plan is that of its estimate, at every capacity, and is played once") {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h200");
  job.profile = library.framework("megatron");
  job.sequence_length = 8192;
  job.global_batch = 64;
  const Plan plan{
      .tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .schedule = Schedule::k1F1B};
  const StageMemory stage = estimate_memory(job, plan).stages.front();
  std::vector<PlayedTimeline> played;
  std::array<int, 3> verdicts{};
  for (std::int64_t capacity = stage.allocated_bytes; capacity < stage.device_used_bytes + 2 * kGiB;
       capacity += 256 * kMiB) {
    job.cluster.memory_limit_bytes = capacity;
    const Fit fit = estimate_memory(job, plan).fit;
    CHECK(fit_of_plan(job, plan, played) == fit);
    const std::size_t num_played = played.size();
    CHECK(fit_of_plan(job, plan, played) == fit);
    CHECK(played.size() == num_played);
    ++verdicts[static_cast<std::size_t>(fit)];
  }
  for (const int count : verdicts) { CHECK(count > 0); }  // fits, tight, does not fit
}

TEST_CASE("a stage holds the parameters of its part of the model") {
  const Library library;
  RandomJobs random(library, 3);
  int failures = 0;
  for (int i = 0; i < 2000; ++i) {
    const RandomCase drawn = next_with_rows(random);
    for (const StagePieces& stage : plan_pieces(drawn.job, drawn.plan).stages) {
      const LocalParameters local = local_parameters(drawn.job, drawn.plan, stage.layout.pp_rank);
      failures += stage.state.parameters == local.total() ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

// Ends of the allocator's blocks that are too small to be split off: which tensor took which block
// decides, not how many bytes were asked for.
std::int64_t block_end_bytes(const StageState& state) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state.rows) {
    bytes = std::max(bytes, row.name == "allocator.block_ends" ? row.total_bytes() : 0);
  }
  return bytes;
}

// Stage by stage, `larger` needs at least what `smaller` needs.
bool needs_no_less(const RandomCase& larger, const RandomCase& smaller) {
  const PlanPieces more = plan_pieces(larger.job, larger.plan);
  const PlanPieces less = plan_pieces(smaller.job, smaller.plan);
  for (std::size_t i = 0; i < less.stages.size(); ++i) {
    const std::int64_t asked =
        less.stages[i].peaks.allocated_bytes - block_end_bytes(less.stages[i].state);
    if (more.stages[i].peaks.allocated_bytes < asked) {
      return false;
    }
  }
  return true;
}

struct Growth {
  const char* what;
  void (*grow)(RandomCase& drawn);
};

// The global batch grows with the micro-batch: as many microbatches stay in flight.
constexpr Growth kGrowths[] = {
    {"micro_batch",
     [](RandomCase& drawn) {
       drawn.plan.micro_batch *= 2;
       drawn.job.global_batch *= 2;
     }},
    {"sequence_length", [](RandomCase& drawn) { drawn.job.sequence_length *= 2; }},
    {"layers",
     [](RandomCase& drawn) {
       std::vector<LayerSpec>& layers = drawn.job.model.layers;
       const std::vector<LayerSpec> copy = layers;
       layers.insert(layers.end(), copy.begin(), copy.end());
     }},
};

TEST_CASE("more tokens, a longer sequence or more layers never need less memory") {
  const Library library;
  RandomJobs random(library, 4);
  for (const Growth& growth : kGrowths) {
    int failures = 0;
    int compared = 0;
    while (compared < 3000) {
      RandomCase drawn = next_with_rows(random);
      // Layers of one kind only: doubling a mixed model moves dense and expert layers between
      // stages.
      const bool uniform =
          std::ranges::adjacent_find(drawn.job.model.layers, std::ranges::not_equal_to{}) ==
          drawn.job.model.layers.end();
      RandomCase larger = drawn;
      growth.grow(larger);
      // More layers may deal the tables to two ranks instead of one, or nanotron's head to another.
      if (drawn.job.optimizer == OptimizerKind::kDistMuon ||
          head_stage(larger.job, larger.plan) != head_stage(drawn.job, drawn.plan)) {
        continue;
      }
      if (!uniform || first_broken_rule(larger.job, larger.plan) != nullptr) {
        continue;
      }
      // DeepSpeed's ZeRO-3 keeps gathered weights whose next use is near (max_reuse_distance): of a
      // deeper model fewer may be so at the loss.
      if (drawn.job.profile.memory_model == MemoryModel::kDeepspeed && drawn.plan.zero == 3 &&
          larger.job.model.num_layers() > drawn.job.model.num_layers()) {
        continue;
      }
      ++compared;
      failures += needs_no_less(larger, drawn) ? 0 : 1;
    }
    INFO(growth.what);
    CHECK(failures == 0);
  }
}

std::int64_t row_elements(const StagePieces& stage, std::string_view name) {
  const auto row = std::ranges::find(stage.state.rows, name, &StateRow::name);
  return row == stage.state.rows.end() ? 0 : row->elements;
}

TEST_CASE("twice the data-parallel ranks halve the sharded state, up to rounding up") {
  const Library library;
  RandomJobs random(library, 5);
  int failures = 0;
  int compared = 0;
  while (compared < 3000) {
    const RandomCase drawn = next_with_rows(random);
    RandomCase wider = drawn;
    wider.job.cluster.nodes *= 2;
    wider.job.global_batch *= 2;
    const bool deals_whole_tensors = drawn.job.optimizer == OptimizerKind::kDistMuon;
    if (deals_whole_tensors || first_broken_rule(wider.job, wider.plan) != nullptr) {
      continue;
    }
    ++compared;
    const PlanPieces narrow = plan_pieces(drawn.job, drawn.plan);
    const PlanPieces wide = plan_pieces(wider.job, wider.plan);
    for (std::size_t i = 0; i < narrow.stages.size(); ++i) {
      const std::int64_t before = row_elements(narrow.stages[i], "optimizer.dense.exp_avg");
      const std::int64_t after = row_elements(wide.stages[i], "optimizer.dense.exp_avg");
      const std::int64_t expected = drawn.plan.zero >= 1 ? div_ceil(before, 2) : before;
      failures += after == expected ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

// Bytes that `upper` keeps between steps of what `lower` makes anew in every step, as a row of its
// state or, DeepSpeed's backward passes, in blocks.
std::int64_t kept_instead_of_made(const StageState& upper, const StageState& lower,
                                  bool makes_in_blocks) {
  std::int64_t bytes = 0;
  for (const StateRow& row : upper.rows) {
    if (row.name == kAllocatorTailsRow) {
      continue;
    }
    // Several rows may have one name: what is alive at other instants is a row of its own.
    const auto is_of_it = [&row](const StateRow& other) { return other.name == row.name; };
    const auto is_kept = [&](const StateRow& other) {
      return is_of_it(other) && other.is_alive(Phase::kIdle);
    };
    const bool is_made_anew = std::ranges::none_of(lower.rows, is_of_it)
                                  ? makes_in_blocks
                                  : std::ranges::none_of(lower.rows, is_kept);
    bytes += row.is_alive(Phase::kIdle) && is_made_anew ? row.total_bytes() : 0;
  }
  return bytes;
}

// Between steps, without what blocks have beyond their tensors.
std::int64_t idle_tensors(const StageState& state) {
  std::int64_t bytes = state.bytes.alive[static_cast<std::size_t>(Phase::kIdle)];
  for (const StateRow& row : state.rows) {
    bytes -= row.name == kAllocatorTailsRow && row.is_alive(Phase::kIdle) ? row.total_bytes() : 0;
  }
  return bytes;
}

// DeepSpeed's ZeRO-3 keeps its reduction bucket and its gradients for good (stage3.py: the buffers
// of ipg_buckets, grad_partitions_flat_buffer), which its ZeRO-2 makes and frees in every step: 1
// GB at the default bucket, more than a small model's parameters. It has no level 0. Megatron-FSDP
// (2 and 3) gathers the first layers behind the optimizer's step, and leaves fp32 copies of bf16
// gradients to the next step.
TEST_CASE("each ZeRO level holds no more between steps than the one below") {
  const Library library;
  RandomJobs random(library, 6);
  int failures = 0;
  int compared = 0;
  while (compared < 500) {
    RandomCase drawn = next_with_rows(random);
    drawn.plan.zero = 3;
    if (first_broken_rule(drawn.job, drawn.plan) != nullptr) {
      continue;
    }
    ++compared;
    const bool is_deepspeed = drawn.job.profile.memory_model == MemoryModel::kDeepspeed;
    std::vector<StageState> states;
    for (std::int64_t zero = is_deepspeed ? 1 : 0; zero <= 3; ++zero) {
      RandomCase level = drawn;
      level.plan.zero = zero;
      level.plan.dp_replicate = 1;
      if (zero == 1 && drawn.job.profile.memory_model == MemoryModel::kTransformers) {
        continue;
      }
      states.push_back(plan_pieces(level.job, level.plan).stages.front().state);
    }
    // Level 1 pads its buffers: allow one bucket's padding and the 64-element starts.
    std::int64_t padding = is_deepspeed ? 0 : std::int64_t{18} * 64 * 4096;
    for (std::size_t i = 1; i < states.size(); ++i) {
      const bool keeps =
          is_deepspeed || (megatron::is_megatron_fsdp(drawn.job, drawn.plan) && i >= 2);
      const std::int64_t kept = kept_instead_of_made(states[i], states[i - 1], keeps);
      failures += kept == 0 || keeps ? 0 : 1;
      failures += idle_tensors(states[i]) <= idle_tensors(states[i - 1]) + kept + padding ? 0 : 1;
      padding = 0;
    }
  }
  CHECK(failures == 0);
}

}  // namespace
}  // namespace shardplan
