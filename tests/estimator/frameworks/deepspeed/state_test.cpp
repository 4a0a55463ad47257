// DeepSpeed: what a rank holds, counted by hand, and the laws of its estimate.
#include "estimator/frameworks/deepspeed/state.h"
#include "data/frameworks/framework.h"
#include "data/read/library.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/moments.h"
#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/deepspeed/timeline.h"
#include "estimator/plan/units.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/random_jobs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan::deepspeed {
namespace {

Job with_option(Job job, const std::string& name, const std::string& value) {
  apply_option(job.profile, name, value, Library());
  return job;
}

constexpr std::int64_t kN = 8'030'261'248;  // Llama-3-8B

// Bytes that a row has at the fullest instant of a phase; of the fullest rank where none is given.
std::int64_t held_bytes(const Job& job, const Plan& plan, Phase phase, std::string_view name,
                        std::optional<std::int64_t> rank = std::nullopt) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan, rank).rows) {
    bytes += row.name == name && row.is_alive(phase) ? row.total_bytes() : 0;
  }
  return bytes;
}

// Elements in bf16 of the tensors of a row that a rank makes, one after the other, in a step.
std::vector<std::int64_t> made_elements(const Job& job, const Plan& plan, TapeRow row) {
  const PlayedRun run = deepspeed_run(job, plan, 0, 1);
  std::vector<std::int64_t> elements;
  std::size_t at = 0;
  for (const AllocationEvent& event : run.events) {
    if (event.bytes > 0) {
      while (at + 1 < run.labels.size() && run.labels[at + 1].after_id < event.id) { ++at; }
      if (run.labels[at].label == &text_of(row)) {
        elements.push_back(event.bytes / 2);
      }
    }
  }
  return elements;
}

// Of what DeepSpeed's first rank has allocated in its second step and later.
std::int64_t most_alive(const Job& job, const Plan& plan) {
  return state_of_stage(job, plan, 0).played->steady_bytes;
}

TEST_CASE("DeepSpeed ZeRO-1, 2 and 3 hold these states") {
  const Job job = deepspeed_job(1);
  const std::int64_t share = kN / 8;  // 1,003,782,656
  for (const std::int64_t zero : {1, 2, 3}) {
    CAPTURE(zero);
    const Plan plan = deepspeed_plan(zero);
    CHECK(held_bytes(job, plan, Phase::kIdle, "parameters") == 2 * (zero == 3 ? share : kN));
    CHECK(held_bytes(job, plan, Phase::kIdle, "optimizer.fp32_partition") == 4 * share);
    CHECK(held_bytes(job, plan, Phase::kIdle, "optimizer.exp_avg") == 4 * share);
    CHECK(held_bytes(job, plan, Phase::kIdle, "optimizer.exp_avg_sq") == 4 * share);
    CHECK(held_bytes(job, plan, Phase::kBuilt, "optimizer.exp_avg") == 0);
    CHECK(held_bytes(job, plan, Phase::kIdle, "gradients") == (zero == 3 ? 2 * share : 0));
    CHECK(held_bytes(job, plan, Phase::kIdle, "reduce_bucket") == (zero == 3 ? 1'000'000'000 : 0));
  }
}

// Its ledger's rows are those of the fullest rank at its fullest instant.
TEST_CASE("a rank of DeepSpeed flattens its model beside the model: twice its bytes") {
  Job job = deepspeed_job(1);
  job.cluster.nodes = 16;
  job.global_batch *= 16;
  job.sequence_length = 64;  // little else
  for (const std::int64_t zero : {1, 2}) {
    const StageMemory memory = estimate_memory(job, deepspeed_plan(zero)).stages.front();
    CHECK(held_bytes(job, deepspeed_plan(zero), Phase::kStartUp, "start_up.model") == 2 * kN);
    CHECK(held_bytes(job, deepspeed_plan(zero), Phase::kStartUp, "parameters") == 2 * kN);
    CHECK(memory.allocated_bytes >= 4 * kN);
    CHECK(memory.moments.front().allocated_bytes == memory.allocated_bytes);
  }
}

// accelerator/cuda_accelerator.py, available_memory: what the driver calls free, beside the model,
// context and communicators. Where the flat tensor finds no room the model goes to the host.
TEST_CASE("a larger card never turns down what a smaller one holds") {
  Job job = deepspeed_job(1);
  job.cluster.nodes = 16;
  job.global_batch *= 16;
  job.sequence_length = 64;
  bool fits = false;
  for (std::int64_t beyond = -12 * kGiB; beyond <= 4 * kGiB; beyond += 256 * kMiB) {
    CAPTURE(beyond);
    job.cluster.memory_limit_bytes = 4 * kN + beyond;
    const bool fits_now = estimate_memory(job, deepspeed_plan(2)).fit != Fit::kDoesNotFit;
    CHECK((fits_now || !fits));
    fits = fits_now;
  }
  CHECK(fits);
}

// Every rank tried, where an estimate tries few; with the usual bucket, and one that few tensors
// fit in. Of what is played operator by operator gradients come in another order than parameters.
TEST_CASE("the rank that DeepSpeed's estimate speaks of has the most allocated") {
  const Library library;
  RandomJobs random(library, 32);
  int compared = 0;
  while (compared < 60) {
    RandomCase drawn = random.next(library.framework("deepspeed"));
    const std::int64_t ranks = dense_shard_size(drawn.job, drawn.plan);
    if (drawn.plan.zero == 3 || ranks <= 8 || ranks > 64) {
      continue;
    }
    ++compared;
    drawn.job.profile.overlap_comm = compared % 2 == 0 ? OverlapComm::kOn : OverlapComm::kOff;
    const bool is_usual = compared % 3 != 0;
    drawn.job.profile.reduce_bucket_elements = is_usual ? 500'000'000 : 5'000'000;
    const auto most = [](const StageState& state) {
      return std::max(state.played->first_step_bytes, state.played->steady_bytes);
    };
    std::int64_t fullest = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      fullest = std::max(fullest, most(state_of_stage(drawn.job, drawn.plan, rank)));
    }
    CAPTURE(compared);
    const std::int64_t missed = fullest - most(state_of_stage(drawn.job, drawn.plan));
    const bool is_exact = is_usual && !plays_operators(drawn.job, drawn.plan);
    CHECK(missed <= (is_exact ? 0 : fullest / 1000 * 3));
  }
}

// runtime/zero/stage_1_and_2.py, _has_inf_or_nan. Of a tensor's part: a copy in fp32, three masks,
// one of them in fp32. With 128 ranks a part of N/S lies in one tensor. 0.19.6 makes no copies,
// 0.16.9 looks at fp16 alone.
TEST_CASE("DeepSpeed 0.19.5's overflow check needs more than its casts where a rank has little") {
  const Job few = deepspeed_job(1, "deepspeed@0.19.5");
  CHECK(held_bytes(few, deepspeed_plan(2), Phase::kOptimizer, "step.overflow_check") == 0);
  CHECK(held_bytes(few, deepspeed_plan(2), Phase::kOptimizer, "step.fp32_gradients") == kN / 2);
  const auto held = [&](const std::string& framework, Precision precision) {
    Job job = deepspeed_job(1, framework);
    job.cluster.nodes = 16;
    job.global_batch *= 16;
    Plan plan = deepspeed_plan(2);
    plan.precision = precision;
    return held_bytes(job, plan, Phase::kOptimizer, "step.overflow_check", 0);
  };
  const std::int64_t copies = 11 * deepspeed_share(deepspeed_tensors(few.model), 128);
  CHECK(held("deepspeed@0.19.5", Precision::kBf16) == copies);
  CHECK(held("deepspeed@0.19.5", Precision::kFp16) == copies);
  CHECK(held("deepspeed@0.16.9", Precision::kBf16) == 0);
  CHECK(held("deepspeed@0.16.9", Precision::kFp16) == copies);
  CHECK(held("deepspeed", Precision::kBf16) == 0);
  CHECK(held("deepspeed", Precision::kFp16) == 0);
}

// stage_1_and_2.py, backward of 0.16.9 and setup_buckets since 0.17.2. Until the head's gradient
// there is nothing else that differs.
TEST_CASE("DeepSpeed 0.16.9 has its buckets before the loss's backward") {
  for (const auto& row : {std::pair("off", 1), std::pair("on", 2)}) {
    const auto& overlap = row.first;
    const auto& buckets = row.second;
    const auto at_loss = [&](const std::string& framework) {
      Job job = with_option(deepspeed_job(1, framework), "overlap_comm", overlap);
      job.sequence_length = 8192;  // so that the two fp32 gradients of the logits are the most
      const auto moments = estimate_memory(job, deepspeed_plan(2)).stages.front().moments;
      const auto loss = std::ranges::find(moments, "loss backward", &Moment::name);
      REQUIRE(loss != moments.end());
      return loss->allocated_bytes;
    };
    CHECK(at_loss("deepspeed@0.16.9") == at_loss("deepspeed") + buckets * 1'000'000'000);
    CHECK(at_loss("deepspeed@0.19.5") == at_loss("deepspeed"));
  }
}

// stage_1_and_2.py, __init__: cpu_data of 0.16.9, flatten_on_accelerator since 0.18.7.
TEST_CASE("DeepSpeed 0.16.9 flattens its model on the host") {
  const auto at_start_up = [](const std::string& framework) {
    return held_bytes(deepspeed_job(1, framework), deepspeed_plan(2), Phase::kStartUp,
                      "start_up.model");
  };
  CHECK(at_start_up("deepspeed@0.16.9") == 0);
  CHECK(at_start_up("deepspeed@0.19.5") == 2 * kN);
  CHECK(at_start_up("deepspeed") == 2 * kN);
}

// engine.py, _backward_prologue_per_tensor: 0.19.5 divides the gradient of the logits by the
// microbatches in a hook, before and since the loss is divided. Kernels of 0.19.6 on four H100 have
// no such division.
TEST_CASE("DeepSpeed 0.19.5 makes the logits' gradient twice") {
  const auto made = [](const std::string& framework) {
    return made_elements(deepspeed_job(1, framework), deepspeed_plan(2), TapeRow::kLogitsGradient);
  };
  const std::int64_t logits = std::int64_t{1024} * 128'256;
  CHECK(std::ranges::count(made("deepspeed"), logits) == 1);
  CHECK(std::ranges::count(made("deepspeed@0.16.9"), logits) == 1);
  CHECK(std::ranges::count(made("deepspeed@0.19.5"), logits) == 2);
}

// A model of one layer: table and head 256,000, q and o 65,536, k and v 32,768, gate, up and down
// 131,072, three norms of 256; in all 1,102,592, over 4 ranks 275,648.
Job small_job() {
  Job job = deepspeed_job(1);
  job.model.hidden = 256;
  job.model.ffn = 512;
  job.model.vocab = 1000;
  job.model.num_heads = 4;
  job.model.num_kv_heads = 2;
  job.model.head_dim = 64;
  job.model.layers.resize(1);
  job.cluster.gpus_per_node = 4;
  return job;
}
constexpr std::int64_t kSmallN = 1'102'592;

// The first part reaches into table and q; the second into q, k, v, o and gate, 327,680; the third
// into gate, up and down; the last into down, norms and head, 387,840.
TEST_CASE("DeepSpeed keeps whole tensors of what a rank's part reaches into") {
  const Job job = small_job();
  CHECK(deepspeed_share(deepspeed_tensors(job.model), 4) == 275'648);
  const std::vector<std::int64_t> kept = {256'000 + 65'536, 327'680, 3 * 131'072, 387'840};
  CHECK(deepspeed_kept_elements(deepspeed_ranges(deepspeed_tensors(job.model)), 275'648, 4) ==
        kept);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    CHECK(held_bytes(job, deepspeed_plan(2), Phase::kGradientNorm, "gradients.partition", rank) ==
          2 * kept[static_cast<std::size_t>(rank)]);
  }
}

// ZeRO-1 keeps every gradient in .grad until the last backward pass of the step has ended. The
// table finds no room in the bucket; what its rank keeps is made before it is freed.
TEST_CASE("DeepSpeed's ZeRO-1 reduces what is all there, if nothing overlaps") {
  for (const std::int64_t microbatches : {1, 2}) {
    CAPTURE(microbatches);
    const Job job = deepspeed_job(microbatches);
    const std::int64_t kept =
        deepspeed_kept_elements(deepspeed_ranges(deepspeed_tensors(job.model)), kN / 8, 8).front();
    const auto held = [&](std::string_view name) {
      return held_bytes(job, deepspeed_plan(1), Phase::kReduction, name, 0);
    };
    CHECK(held("gradients.of_weights") == 2 * kN);
    CHECK(held("reduce_bucket") == 2 * 500'000'000);
    CHECK(held("gradients.partition") == 2 * kept);
  }
}

// stage_1_and_2.py, process_gradients: the last microbatch of a step goes through the bucket while
// its backward pass runs, as those of ZeRO-2 all do.
TEST_CASE("DeepSpeed's ZeRO-1 that overlaps leaves no gradient in .grad which its bucket takes") {
  for (const std::int64_t zero : {1, 2}) {
    for (const char* overlap : {"off", "on"}) {
      CAPTURE(zero);
      CAPTURE(overlap);
      Job job = with_option(small_job(), "overlap_comm", overlap);
      job.global_batch = 4;
      const bool has_two = overlap == std::string("on");
      CHECK(held_bytes(job, deepspeed_plan(zero), Phase::kReduction, "reduce_bucket") ==
            (has_two ? 2 : 1) * 2 * 500'000'000);
      CHECK(held_bytes(job, deepspeed_plan(zero), Phase::kReduction, "gradients.of_weights") ==
            (zero == 1 && !has_two ? 2 * kSmallN : 0));
    }
  }
}

// From the second microbatch on ZeRO-2 has two of what its part reaches into; the one before is
// added to when the backward pass has ended.
TEST_CASE("DeepSpeed's ZeRO-2 makes what a rank keeps when the first of it is reduced") {
  const Plan plan = deepspeed_plan(2);
  for (const std::int64_t microbatches : {1, 2}) {
    CAPTURE(microbatches);
    const Job job = deepspeed_job(microbatches);
    const std::vector<std::int64_t> kept =
        deepspeed_kept_elements(deepspeed_ranges(deepspeed_tensors(job.model)), kN / 8, 8);
    for (const std::int64_t rank : {0, 7}) {
      CAPTURE(rank);
      const std::int64_t own = 2 * kept[static_cast<std::size_t>(rank)];
      const auto held = [&](Phase phase) {
        return held_bytes(job, plan, phase, "gradients.partition", rank);
      };
      CHECK(held(Phase::kReduction) == microbatches * own);
      CHECK(held(Phase::kGradientNorm) == own);
      // The first rank has the embedding, the last of a backward pass; the last rank the head.
      CHECK(held(Phase::kBackward) == (microbatches - (rank == 0 ? 1 : 0)) * own);
    }
  }
}

// A bucket of 300,000. Head and final norm are the last rank's alone; down and up, of the two last
// ranks, are copied flat when gate finds no room, as many elements as from there to k when q finds
// none, q and its norm when the table does, which is the first rank's alone.
TEST_CASE("DeepSpeed copies flat what several ranks keep of a bucket") {
  Job job = with_option(small_job(), "reduce_bucket_elements", "300000");
  job.global_batch = 4;
  CHECK(made_elements(job, deepspeed_plan(2), TapeRow::kFlatCopy) ==
        std::vector<std::int64_t>{2 * 131'072, 131'072 + 256 + 2 * 65'536, 65'536 + 256});
  job.cluster.gpus_per_node = 1;
  CHECK(made_elements(job, deepspeed_plan(2), TapeRow::kFlatCopy).empty());
}

TEST_CASE("runs of one rank are copied together until they exceed the bucket's size") {
  // Ranks keep 10 each: the first tensor lies in three parts, the second in the last of them.
  const std::array tensors = {FlatRange{.begin = 5, .end = 25}, FlatRange{.begin = 25, .end = 28}};
  CHECK(deepspeed_flat_copies(tensors, 10, 100) == std::vector<std::int64_t>{23});
  CHECK(deepspeed_flat_copies(tensors, 10, 12) == std::vector<std::int64_t>{15});
  CHECK(deepspeed_flat_copies(tensors, 30, 100).empty());
}

// stage3.py, step: sub-groups of 1e9 elements of a rank. Llama-3-8B on one rank: the first ends
// with the o of its third layer, the second, which has that layer's ffn and three more layers, with
// the down of a fourth.
TEST_CASE("DeepSpeed's ZeRO-3 copies the gradients of one sub-group at a time to fp32") {
  Job job = deepspeed_job(1);
  job.cluster.gpus_per_node = 1;
  const std::int64_t attention = 2 * 4096 * 4096 + 2 * 4096 * 1024;
  const std::int64_t ffn = std::int64_t{3} * 4096 * 14336;
  const std::int64_t layer = attention + ffn + 2 * 4096;
  const std::vector<std::int64_t> groups = deepspeed_sub_groups(job, deepspeed_plan(3));
  REQUIRE(groups.size() == 8);
  CHECK(groups[0] == 128256 * std::int64_t{4096} + 2 * layer + attention);
  CHECK(groups[1] == ffn + 2 * 4096 + 3 * layer + attention + ffn);
  const std::int64_t largest = std::ranges::max(groups);
  CHECK(held_bytes(job, deepspeed_plan(3), Phase::kOptimizer, "step.fp32_gradients") ==
        4 * largest);
  CHECK(held_bytes(job, deepspeed_plan(3), Phase::kOptimizer, "step.flat_gradients") ==
        2 * largest);
}

// Its calls are recorded in the first microbatch, and parameters released after each; from then on
// what the limits let it keep stays: all of a model below 1e9 without its table.
TEST_CASE("DeepSpeed's ZeRO-3 gathers one parameter at a time, then all that it may keep") {
  Job job = deepspeed_job(1);
  job.model.layers.resize(2);
  const std::int64_t table = std::int64_t{128'256} * 4096;
  const PlayedPeaks alone = *state_of_stage(job, deepspeed_plan(3)).played;
  job.global_batch *= 2;
  const PlayedPeaks two = *state_of_stage(job, deepspeed_plan(3)).played;
  const std::int64_t layer =
      2 * 4096 * 4096 + 2 * 4096 * 1024 + std::int64_t{3} * 4096 * 14336 + 8192;
  // The table and the q before it are on their way.
  CHECK(held_bytes(job, deepspeed_plan(3), Phase::kBackward, "gather_buffer") ==
        2 * (table + 4096 * 4096));
  CHECK(held_bytes(job, deepspeed_plan(3), Phase::kBackward, "gathered_parameters") ==
        2 * (table + 2 * layer + 4096 - 4096 * 4096));
  CHECK(two.steady_bytes == alone.steady_bytes);
  CHECK(two.first_step_bytes > alone.first_step_bytes);
}

TEST_CASE("DeepSpeed's bucket is a setting, and overlap_comm has two under ZeRO-2") {
  const Job job = with_option(with_option(deepspeed_job(1), "reduce_bucket_elements", "200000000"),
                              "overlap_comm", "on");
  CHECK(held_bytes(job, deepspeed_plan(2), Phase::kBackward, "reduce_bucket") == 2 * 400'000'000);
}

// stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads: a bucket is reduced when the
// next gradient finds no room. Of the small model's 1,102,592 elements with a bucket of 300,000:
// the head and three norms when down comes; down and up when gate does; gate, o, v and k when q
// does; q waits for the table, which has nothing behind it. Until down has come nothing is reduced.
TEST_CASE("DeepSpeed's overlap_comm leaves the embedding and what is before it exposed") {
  const ModelSpec model = small_job().model;
  const double n = kSmallN;
  const ReducedBeside beside =
      reduced_beside(deepspeed_tensors(model), model.tied_embeddings, 300'000);
  CHECK(beside.of_elements == doctest::Approx((256'768 + 262'144 + 262'144) / n));
  CHECK(beside.of_backward == doctest::Approx((n - 256'000 - 256'768 - 131'072) / (n - 256'000)));
  // One bucket takes all.
  CHECK(reduced_beside(deepspeed_tensors(model), model.tied_embeddings, 2'000'000).of_elements ==
        0);
}

// runtime/zero/config.py, overlap_comm_valid.
TEST_CASE("DeepSpeed overlaps its collectives under ZeRO-3 where nothing is said") {
  CHECK(deepspeed_job(1).profile.overlap_comm == OverlapComm::kDefault);
  for (const std::int64_t zero : {1, 2, 3}) {
    CAPTURE(zero);
    const auto overlaps = [&](const char* word) {
      return overlaps_collectives(with_option(deepspeed_job(1), "overlap_comm", word),
                                  deepspeed_plan(zero));
    };
    CHECK(overlaps("default") == (zero == 3));
    CHECK(overlaps("on"));
    CHECK(!overlaps("off"));
  }
}

// Llama-3-8B: 32 heads of 128 for q, 8 for k, 8 for v; 1024 tokens. At the loss every layer has q
// and the attention's output, k and v.
TEST_CASE("Hugging Face's attention saves keys and values of the key and value heads only") {
  CHECK(held_bytes(deepspeed_job(1), deepspeed_plan(1), Phase::kForward, "layer.attention") ==
        32 * 2 * (2 * 32 + 2 * 8) * 128 * 1024);
}

// modeling_qwen3.py, Qwen3Attention.__init__: norms of q and k behind the four projections.
TEST_CASE("Qwen3's tensors stand in the order of its modules") {
  Job job = small_job();
  job.model.qk_norm = true;
  CHECK(deepspeed_tensors(job.model) == std::vector<std::int64_t>{256'000, 65'536, 32'768, 32'768,
                                                                  65'536, 64, 64, 131'072, 131'072,
                                                                  131'072, 256, 256, 256, 256'000});
}

// Backward: head and final norm; down, up; gate, norm, o, v, norm of k; k, norm of q, q, norm; the
// table: none of these finds room for the next in a bucket of 262,400, but v and k would.
TEST_CASE("gradients of norms of heads come before those of their projections") {
  Job job = with_option(small_job(), "reduce_bucket_elements", "262400");
  job.model.qk_norm = true;
  job.global_batch = 4;
  const std::vector<std::int64_t> copies =
      made_elements(job, deepspeed_plan(3), TapeRow::kFlatCopy);
  REQUIRE(copies.size() == 4);  // the table is reduced in place
  CHECK(copies[0] == 256'000 + 256);
  CHECK(copies[1] == 131'072 + 131'072);
  CHECK(copies[2] == 131'072 + 256 + 65'536 + 32'768 + 64);
  CHECK(copies[3] == 32'768 + 64 + 65'536 + 256);
}

// A head of q or k: 128 wide, twice in bf16 and 4 bytes each in fp32, and the root of its square's
// mean. At the loss every layer has them, recomputed layers none; norms' weights are 256 a layer,
// 2 + 4 + 8 bytes each.
TEST_CASE("Qwen3's norms of q and k save six bytes an element and four a head") {
  for (const bool recomputes : {false, true}) {
    CAPTURE(recomputes);
    Job job = deepspeed_job(1);
    job.cluster.gpus_per_node = 1;
    job.global_batch = 1;
    job.sequence_length = 16384;
    job.model.layers.resize(4);
    Plan plan = deepspeed_plan(1);
    plan.recompute.granularity =
        recomputes ? RecomputeGranularity::kFull : RecomputeGranularity::kNone;
    plan.recompute.num_layers = 1;
    const std::int64_t without = most_alive(job, plan);
    job.model.qk_norm = true;
    const std::int64_t saved = recomputes ? 0 : (32 + 8) * (6 * 128 + 4) * 16384;
    CHECK(most_alive(job, plan) - without == 4 * (saved + 14 * 256));
  }
}

// bitsandbytes' buffers of 100,000 elements and more: two bytes of each element of a part, in 32
// bits eight; what is offloaded is stepped by DeepSpeed's AdamW.
TEST_CASE("paged moments of ZeRO's parts lie in managed memory") {
  Job job =
      llama_job("deepspeed", {.hidden = 512, .ffn = 1024, .heads = 8, .layers = 2}, 2, 512, 2);
  const Plan plan = deepspeed_plan(2);
  const std::int64_t share = deepspeed_share(trained_tensors(job, plan), 2);
  const auto moments = [&](const Plan& of) {
    return held_bytes(job, of, Phase::kIdle, "optimizer.exp_avg");
  };
  job.optimizer = OptimizerKind::kAdamW8bit;
  CHECK(moments(plan) == share);
  CHECK(managed_bytes(job, plan) == 0);
  job.optimizer = OptimizerKind::kPagedAdamW8bit;
  CHECK(why_invalid(job, plan) == std::nullopt);
  CHECK(moments(plan) == 0);
  CHECK(managed_bytes(job, plan) == 2 * share);
  CHECK(managed_bytes(job, deepspeed_plan(3)) >= 2 * share - 64);
  job.optimizer = OptimizerKind::kPagedAdamW;
  CHECK(managed_bytes(job, plan) == 8 * share);
  Plan offloaded = plan;
  offloaded.offload.optimizer = 1;
  CHECK(managed_bytes(job, offloaded) == 0);
}

}  // namespace
}  // namespace shardplan::deepspeed
