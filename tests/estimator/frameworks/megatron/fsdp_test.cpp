// Buffers of Megatron-FSDP counted by hand from Megatron-LM core_v0.16.1
// core/distributed/fsdp/src/megatron_fsdp: a queue of max(1e9, 2n) elements, a prefetch of half of
// that, n the elements of a transformer layer.
#include "estimator/frameworks/megatron/fsdp.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "data/read/library.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/ledger/stage_tensors.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan::megatron {
namespace {

constexpr LlamaShape kSmall = {.hidden = 4096, .ffn = 14336, .heads = 32, .layers = 16};
constexpr LlamaShape kLarge = {.hidden = 16384, .ffn = 53248, .heads = 128, .layers = 4};
// h*(h + 2*8*128) of queries, keys and values, h*h, 3hf, two norms: 218,112,000 elements, which end
// at a multiple of 8 ranks and lcm(4096, 14336) = 28,672.
constexpr std::int64_t kSmallLayer = 951 * 8 * std::int64_t{28672};
static_assert(kSmallLayer >= 218'112'000 && kSmallLayer - 8 * 28672 < 218'112'000);
// 3,187,703,808 elements, lcm(16384, 53248) = 212,992.
constexpr std::int64_t kLargeLayer = 1871 * 8 * std::int64_t{212992};
constexpr std::int64_t kLargeElements =
    16384 * (std::int64_t{16384} + 2 * 8 * 128 + 16384 + 3 * 53248 + 2);
static_assert(kLargeLayer >= kLargeElements && kLargeLayer - 8 * 212992 < kLargeElements);
// 128,256 rows of 4096.
constexpr std::int64_t kTable = std::int64_t{128256} * 4096;

Job job_of(const LlamaShape& shape) {
  return llama_job("megatron", shape, 8, 8192, 8);
}

Plan full_recompute() {
  Plan plan;
  plan.zero = 3;
  plan.recompute.granularity = RecomputeGranularity::kFull;
  return plan;
}

// Bytes of the row at the peak of the only stage.
std::int64_t at_peak(const Job& job, const Plan& plan, std::string_view name) {
  const MemoryEstimate estimate = estimate_memory(job, plan);
  const std::vector<Row>& rows = estimate.stages.front().rows;
  const auto row = std::ranges::find(rows, name, &Row::name);
  return row == rows.end() ? 0 : row->total_bytes();
}

// Activations and buffers at a moment, without the state.
std::int64_t above_state(const Job& job, const Plan& plan, MomentKind moment) {
  const StagePieces stage = plan_pieces(job, plan).stages.front();
  const StagePoint& point = stage.peaks.moments[static_cast<std::size_t>(moment)];
  return point.bytes - stage.state.bytes.alive[static_cast<std::size_t>(phase_of(moment))];
}

FsdpBuffers buffers_of(const Job& job, const Plan& plan) {
  return plan_pieces(job, plan).stages.front().buffers.front();
}

TEST_CASE("layers of 218 million wait five at a time for their reduction, beside the running one") {
  // 4 of them are within 1e9 elements, the fifth joins them, the sixth is written.
  CHECK(4 * kSmallLayer <= 1'000'000'000);
  CHECK(5 * kSmallLayer > 1'000'000'000);
  const Job job = job_of(kSmall);
  CHECK(at_peak(job, full_recompute(), "zero.reduction_queue") == 6 * kSmallLayer * 4);
  Plan plan = full_recompute();
  plan.grad_dtype = DType::kBf16;
  CHECK(at_peak(job, plan, "zero.reduction_queue") == 6 * kSmallLayer * 2);
}

TEST_CASE("layers of 218 million are gathered three ahead") {
  CHECK(2 * kSmallLayer < 500'000'000);
  CHECK(at_peak(job_of(kSmall), full_recompute(), "zero.gathered_layers") == 4 * kSmallLayer * 2);
}

TEST_CASE("a layer of more than half a billion is gathered one ahead and waits with another") {
  // Two padded ones are more than twice a layer.
  const Job job = job_of(kLarge);
  CHECK(at_peak(job, full_recompute(), "zero.reduction_queue") == 3 * kLargeLayer * 4);
  CHECK(at_peak(job, full_recompute(), "zero.gathered_layers") == 2 * kLargeLayer * 2);
}

TEST_CASE("a smaller communication unit lets fewer layers wait and gathers fewer ahead") {
  Job job = job_of(kSmall);
  job.profile.suggested_communication_unit_size = 1;
  CHECK(at_peak(job, full_recompute(), "zero.reduction_queue") == 2 * kSmallLayer * 4);
  // Half of it is no element: nothing is gathered ahead.
  CHECK(at_peak(job, full_recompute(), "zero.gathered_layers") == kSmallLayer * 2);
  job.profile.suggested_communication_unit_size = 2 * kSmallLayer;
  CHECK(at_peak(job, full_recompute(), "zero.reduction_queue") == 4 * kSmallLayer * 4);
  CHECK(at_peak(job, full_recompute(), "zero.gathered_layers") == 2 * kSmallLayer * 2);
}

// Two buffers of 2 bytes an element and two of 4, whatever the unit of communication is.
TEST_CASE("double buffers of a layer stay, and layers have no buckets of their own") {
  Job job = job_of(kSmall);
  const Plan plan = full_recompute();
  CHECK(at_peak(job, plan, "zero.parameter_buffers") == 0);
  job.profile.fsdp_double_buffer = true;
  for (const std::int64_t unit : {std::int64_t{0}, std::int64_t{1}, 2 * kSmallLayer}) {
    job.profile.suggested_communication_unit_size = unit;
    CHECK(at_peak(job, plan, "zero.parameter_buffers") == 2 * kSmallLayer * 2);
    CHECK(at_peak(job, plan, "zero.gradient_buffers") == 2 * kSmallLayer * 4);
    CHECK(at_peak(job, plan, "zero.gathered_layers") == 0);
    CHECK(at_peak(job, plan, "zero.reduction_queue") == 0);
  }
  job.model.layers.resize(1);  // never asks for the second
  CHECK(at_peak(job, plan, "zero.parameter_buffers") == kSmallLayer * 2);
  Plan halves = plan;
  halves.zero = 2;
  CHECK(at_peak(job, halves, "zero.parameter_buffers") == 0);
}

TEST_CASE("registered buffers are double buffers") {
  Job job = job_of(kSmall);
  const Plan plan = full_recompute();
  job.profile.nccl_ub = true;
  CHECK(at_peak(job, plan, "zero.parameter_buffers") == 2 * kSmallLayer * 2);
  Job doubled = job_of(kSmall);
  doubled.profile.fsdp_double_buffer = true;
  CHECK(estimate_memory(job, plan).stages.front().allocated_bytes ==
        estimate_memory(doubled, plan).stages.front().allocated_bytes);
}

// Six layers of 218 million would wait in 4 bytes an element, and four be there in 2: 32 bytes an
// element of a layer, in place of 12, but for what another moment of the step is above.
TEST_CASE("double buffers are smaller than what small layers queue") {
  Job job = job_of(kSmall);
  const std::int64_t queued = estimate_memory(job, full_recompute()).stages.front().allocated_bytes;
  job.profile.fsdp_double_buffer = true;
  const std::int64_t pooled = estimate_memory(job, full_recompute()).stages.front().allocated_bytes;
  CHECK(queued - pooled > 0);
  CHECK(queued - pooled <= (6 * 4 + 4 * 2 - 2 * (4 + 2)) * kSmallLayer);
}

// The head's bucket waits beside the last layer until the one before it writes its own: three would
// be too many.
TEST_CASE("beside a layer in a pool one bucket waits for its reduction") {
  Job job = job_of(kSmall);
  job.profile.overlap_grad_reduce = true;
  job.profile.fsdp_double_buffer = true;
  Plan plan;
  plan.zero = 3;
  const FsdpBuffers buffers = buffers_of(job, plan);
  const std::int64_t head = kTable + 8 * 4096;
  CHECK(buffers.gradient_bytes(buffers.units[16].gradients_backward) == 4 * head);
  CHECK(buffers.gradient_bytes(buffers.units[15].gradients_backward) == 4 * head);
  CHECK(buffers.gradient_bytes(buffers.units[14].gradients_backward) == 0);
  CHECK(buffers.gradient_bytes(buffers.units[1].gradients_backward) == 0);
  CHECK(buffers.gradient_bytes(buffers.units.front().gradients_backward) == 4 * kTable);
}

// Three layers without experts in front of thirteen with them have buckets that come and go.
TEST_CASE("layers of fewer than most are outside the pool, two of them gathered ahead") {
  Job job = job_of(kSmall);
  job.profile.fsdp_double_buffer = true;
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 2048};
  for (std::size_t i = 3; i < job.model.layers.size(); ++i) { job.model.layers[i].is_moe = true; }
  Plan plan;
  plan.zero = 3;
  const FsdpBuffers buffers = buffers_of(job, plan);
  const auto gathered = [&](std::size_t unit) {
    return buffers.parameter_bytes(buffers.units[unit].gathered_forward) / (2 * kSmallLayer);
  };
  CHECK(gathered(1) == 3);
  CHECK(gathered(3) == 1);
  CHECK(gathered(4) == 0);
}

TEST_CASE("what a row of Megatron-FSDP says of its limit is the limit of the plan") {
  const auto formula = [](const Job& job, const Plan& plan) {
    const MemoryEstimate estimate = estimate_memory(job, plan);
    const std::vector<Row>& rows = estimate.stages.front().rows;
    const char* const name = plan.zero == 2 ? "zero.held_gradients" : "zero.reduction_queue";
    return std::ranges::find(rows, name, &Row::name)->formula;
  };
  Job job = job_of(kSmall);
  CHECK(formula(job, full_recompute()).find("max(1e9, 2n)") != std::string::npos);
  Plan zero2 = full_recompute();
  zero2.zero = 2;
  CHECK(formula(job, zero2) == "all gradients: one bucket without overlap_grad_reduce");
  job.profile.suggested_communication_unit_size = 12345;
  CHECK(formula(job, full_recompute()).find("12345") != std::string::npos);
}

TEST_CASE("buffers of layers grow and shrink along the chunk") {
  Job job = job_of(kSmall);
  job.profile.overlap_grad_reduce = true;
  Plan plan;
  plan.zero = 3;
  const FsdpBuffers buffers = buffers_of(job, plan);
  REQUIRE(buffers.units.size() == 18);
  const auto layer = [&](std::size_t i) { return buffers.units[1 + i]; };
  const auto gathered = [&](BucketRange range) {
    return buffers.parameter_bytes(range) / (2 * kSmallLayer);
  };
  // Behind the embedding's bucket stands the head's, of more than half a billion elements; behind
  // that one the first layers.
  CHECK(gathered(buffers.units.front().gathered_forward) == 0);
  CHECK(gathered(buffers.units.back().gathered_forward) == 3);
  CHECK(gathered(buffers.units.back().gathered_backward) == 3);
  CHECK(gathered(layer(0).gathered_forward) == 4);
  CHECK(gathered(layer(12).gathered_forward) == 4);
  CHECK(gathered(layer(13).gathered_forward) == 3);
  CHECK(gathered(layer(15).gathered_forward) == 1);
  CHECK(gathered(layer(15).gathered_backward) == 4);
  CHECK(gathered(layer(0).gathered_backward) == 1);
  // The head's bucket of 525 million goes in front: with two layers it is within 1e9.
  const std::int64_t head = kTable + 8 * 4096;  // the norm's 4096 end at 8 ranks of 4096
  CHECK(buffers.gradient_bytes(layer(15).gradients_backward) == 4 * (head + kSmallLayer));
  CHECK(buffers.gradient_bytes(layer(12).gradients_backward) == 4 * (head + 4 * kSmallLayer));
  CHECK(buffers.gradient_bytes(layer(11).gradients_backward) == 4 * 5 * kSmallLayer);
  CHECK(buffers.gradient_bytes(layer(0).gradients_backward) == 4 * 6 * kSmallLayer);
  // Five layers, the last one of which has just joined, wait beside the embedding's bucket.
  CHECK(buffers.gradient_bytes(buffers.units.front().gradients_backward) ==
        4 * (5 * kSmallLayer + kTable));
}

TEST_CASE("at the loss there are the three first layers that the head has gathered") {
  Job job = job_of(kSmall);
  job.profile.overlap_grad_reduce = true;
  Plan plan;
  plan.grad_dtype = DType::kBf16;  // the head's product writes its own bucket
  Plan sharded = plan;
  plan.zero = 1;
  sharded.zero = 3;
  for (const MomentKind moment : {MomentKind::kLossForward, MomentKind::kLossBackward}) {
    const bool is_backward = moment == MomentKind::kLossBackward;
    CHECK(above_state(job, sharded, moment) == above_state(job, plan, moment) +
                                                   3 * kSmallLayer * 2 +
                                                   (is_backward ? 2 * (kTable + 8 * 4096) : 0));
  }
}

TEST_CASE("a gradient that is not fused is copied into its bucket when the logits are gone") {
  const Job job = job_of(kSmall);
  Plan plan;
  plan.zero = 2;
  const std::int64_t whole = plan_pieces(job, plan).stages.front().state.parameters;
  CHECK(head_bucket(job, plan).elements == whole);
  CHECK(head_bucket(job, plan).born == Step::kBackwardNorm);
  plan.grad_dtype = DType::kBf16;
  CHECK(head_bucket(job, plan).born == Step::kBackwardLogits);
}

TEST_CASE("between steps the first bucket is gathered with what its gather is ahead of") {
  Job job = job_of(kSmall);
  Plan plan;
  plan.zero = 3;
  const auto between = [&] {
    const StagePieces stage = plan_pieces(job, plan).stages.front();
    return fsdp_bytes_between_steps(job, plan, stage.layout.chunks.front());
  };
  // Embedding, final norm and head are one bucket, which three layers follow.
  CHECK(between() == 2 * (2 * kTable + 8 * 4096 + 3 * kSmallLayer));
  job.profile.overlap_grad_reduce = true;  // two buckets, of which the second is the prefetch
  CHECK(between() == 2 * (2 * kTable + 8 * 4096));
  const StateBytes state = plan_pieces(job, plan).stages.front().state.bytes;
  CHECK(state.alive[static_cast<std::size_t>(Phase::kIdle)] -
            state.alive[static_cast<std::size_t>(Phase::kOptimizer)] ==
        between());
}

// Megatron-LM's tests log it (tests/functional_tests/test_cases): 235.6 MiB between the steps of
// gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor on an H100.
TEST_CASE("a norm of the parameters gives back what is gathered for the next step") {
  Job job = job_of(kSmall);
  job.profile.log_params_norm = true;
  Plan plan;
  plan.zero = 3;
  const StateBytes state = plan_pieces(job, plan).stages.front().state.bytes;
  CHECK(state.alive[static_cast<std::size_t>(Phase::kIdle)] ==
        state.alive[static_cast<std::size_t>(Phase::kOptimizer)]);
  CHECK(state.alive[static_cast<std::size_t>(Phase::kParameterGather)] >
        state.alive[static_cast<std::size_t>(Phase::kIdle)]);
}

TEST_CASE("Transformer Engine 2.10 and 2.11 keep both moments of whole parameters") {
  Job job = job_of(kSmall);
  const auto moments = [&](const Plan& plan) {
    const StateBytes state = plan_pieces(job, plan).stages.front().state.bytes;
    return state.made_by_first_step;
  };
  Plan plan;
  plan.zero = 3;
  const std::int64_t whole = plan_pieces(job, plan).stages.front().state.parameters;
  CHECK(whole == 16 * std::int64_t{218'112'000} + 2 * kTable + 4096);
  const std::int64_t divided = moments(plan);
  CHECK(divided == 8 * (whole / 8));
  const std::vector<Assumption> assumptions = estimate_memory(job, plan).assumptions;
  // 7/8 of 8 bytes a parameter: 29.6 GiB.
  CHECK(std::ranges::any_of(assumptions, [](const Assumption& assumption) {
    return assumption.text ==
           "Transformer Engine 2.10 and 2.11 keep whole moments under Megatron-FSDP: 29.6 GiB more "
           "on every rank (--set fsdp_whole_moments=true)";
  }));
  job.profile.fsdp_whole_moments = true;
  CHECK(moments(plan) == 8 * whole);
  CHECK(estimate_memory(job, plan).assumptions.size() + 1 == assumptions.size());
  plan.tp = 2;
  plan.sequence_parallel = true;
  CHECK(moments(plan) == 8 * whole);  // nor does tensor parallelism divide them
  plan.zero = 1;
  CHECK(moments(plan) < 8 * whole / 4);
}

TEST_CASE("weight gradients of another type than the main gradients are not fused") {
  Job job = job_of(kSmall);
  Plan plan;
  for (plan.zero = 0; plan.zero < 4; ++plan.zero) {
    plan.grad_dtype = DType::kFp32;
    CHECK(fuses_weight_gradients(job, plan) == (plan.zero < 2));
    plan.grad_dtype = DType::kBf16;
    CHECK(fuses_weight_gradients(job, plan));
  }
  plan.zero = 3;
  plan.grad_dtype = DType::kFp32;
  const MemoryEstimate as_default = estimate_memory(job, plan);
  job.profile.gradient_accumulation_fusion = false;
  CHECK(estimate_memory(job, plan).stages.front().allocated_bytes ==
        as_default.stages.front().allocated_bytes);
}

TEST_CASE("a recomputed layer has been gathered by the one behind it") {
  const Job job = job_of(kSmall);
  const FsdpBuffers buffers = buffers_of(job, full_recompute());
  const auto gathered = [&](std::size_t layer) {
    return buffers.parameter_bytes(buffers.units[1 + layer].gathered_replay) / (2 * kSmallLayer);
  };
  CHECK(gathered(15) == 1);  // the first of the backward prefetches nothing
  CHECK(gathered(14) == 3);
  CHECK(gathered(1) == 2);
  CHECK(gathered(0) == 1);
}

TEST_CASE("without overlapped reduction embedding and head are one bucket until the end") {
  const Job job = job_of(kSmall);
  Plan plan;
  plan.zero = 3;
  const FsdpBuffers buffers = buffers_of(job, plan);
  const std::int64_t held = 4 * (2 * kTable + 8 * 4096);
  CHECK(buffers.units.back().held_bytes == 0);  // the head's block has it
  for (std::size_t i = 0; i + 1 < buffers.units.size(); ++i) {
    CHECK(buffers.units[i].held_bytes == held);
  }
  CHECK(head_bucket(job, plan).elements * 4 == held);
  CHECK(buffers.gradient_bytes(buffers.units[16].gradients_backward) == 4 * kSmallLayer);
}

TEST_CASE("ZeRO-2 without overlapped reduction has whole gradients in backward") {
  Job job = job_of(kSmall);
  Plan plan;
  plan.zero = 2;
  const std::int64_t whole = plan_pieces(job, plan).stages.front().state.parameters;
  const FsdpBuffers buffers = buffers_of(job, plan);
  for (std::size_t i = 0; i < buffers.units.size(); ++i) {
    CHECK(buffers.forward_bytes(i) == 0);
    const bool is_head = i + 1 == buffers.units.size();  // whose block counts it
    CHECK(buffers.backward_bytes(i) == (is_head ? 0 : 4 * whole));
  }
  CHECK(head_bucket(job, plan).elements == whole);
  job.profile.overlap_grad_reduce = true;
  const FsdpBuffers cut = buffers_of(job, plan);
  for (std::size_t i = 0; i < cut.units.size(); ++i) {
    CHECK(cut.forward_bytes(i) == 0);
    // 1e9, one that joins, one that is written: five buckets of 43.6 million a layer.
    CHECK(cut.backward_bytes(i) <= 4 * (1'000'000'000 + 2 * std::max(kSmallLayer / 5, kTable)));
  }
  CHECK(cut.backward_bytes(2) > 4 * std::int64_t{1'000'000'000});
}

TEST_CASE("experts are a bucket of their own, and stay where no rank has the same") {
  Job job = job_of(kSmall);
  job.model.moe.num_experts = 8;
  job.model.moe.topk = 2;
  job.model.moe.expert_ffn = 14336;
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  Plan plan;
  plan.zero = 3;
  const std::int64_t experts = std::int64_t{3} * 4096 * 14336;  // of one expert
  const auto expert = [&] { return buffers_of(job, plan).buckets[1]; };
  plan.ep = 8;
  CHECK(expert().elements == experts);
  CHECK(expert().parameter_bytes == 0);
  CHECK(expert().gradient_bytes == 0);
  plan.ep = 4;
  CHECK(expert().elements == 2 * experts);
  CHECK(expert().parameter_bytes == 2 * 2 * experts);
  CHECK(expert().gradient_bytes == 4 * 2 * experts);
  // h*(h + 2048) + h*h, two norms and the router, to a multiple of 8 ranks and 4096.
  const FsdpBucket dense = buffers_of(job, plan).buckets.front();
  CHECK(dense.elements == std::int64_t{4096} * (4096 + 2048 + 4096 + 8) + 2 * 16384);
}

// Experts over ranks of tp: dp alone is no multiple of ep.
TEST_CASE("dp stated answers as dp that the other sizes leave") {
  Job job = llama_job("megatron", kSmall, 16, 4096, 16);
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 14336};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  Plan plan;
  plan.tp = 8;
  plan.ep = 4;
  plan.sequence_parallel = true;
  for (const std::int64_t zero : {2, 3}) {
    plan.zero = zero;
    Plan stated = plan;
    stated.dp = 2;
    CHECK(estimate_memory(job, stated).stages.at(0).allocated_bytes ==
          estimate_memory(job, plan).stages.at(0).allocated_bytes);
  }
}

TEST_CASE("one rank alone gathers and reduces nothing") {
  Job job = llama_job("megatron", kSmall, 1, 2048, 1);
  job.profile.gradient_accumulation_fusion = false;
  Plan plan;
  Plan sharded = plan;
  plan.zero = 1;
  sharded.zero = 3;
  for (const MomentKind moment :
       {MomentKind::kForward, MomentKind::kBackward, MomentKind::kLossBackward}) {
    CHECK(above_state(job, sharded, moment) == above_state(job, plan, moment));
  }
  const StateBytes state = plan_pieces(job, sharded).stages.front().state.bytes;
  CHECK(state.alive[static_cast<std::size_t>(Phase::kForward)] ==
        state.alive[static_cast<std::size_t>(Phase::kIdle)]);
}

// build_data_parallel_buffer_index: a row of no weight is divided.
TEST_CASE("every row of a layer's weights divides the end of its buckets") {
  RandomJobs jobs(Library{}, 7);
  const FrameworkProfile megatron = Library{}.framework("megatron");
  for (int i = 0; i < 200; ++i) {
    const RandomCase drawn = jobs.next(megatron);
    for (const BlockKind kind : {BlockKind::kDenseLayer, BlockKind::kMoeLayer}) {
      const RowMultiples rows = row_multiples(drawn.job, drawn.plan, kind);
      REQUIRE(rows.dense < kMostBucketElements);
      for (const WeightShape& weight : weight_shapes(drawn.job, drawn.plan, kind)) {
        CHECK((rows.dense % weight.columns == 0 || rows.expert % weight.columns == 0));
      }
    }
  }
}

TEST_CASE("a fused tied table fills its bucket from the loss on, another one waits in autograd") {
  Job job = job_of(kSmall);
  job.model.tied_embeddings = true;
  job.profile.overlap_grad_reduce = true;
  Plan plan;
  plan.zero = 3;
  plan.grad_dtype = DType::kBf16;
  CHECK(head_bucket(job, plan).is_held);
  CHECK(head_bucket(job, plan).born == Step::kBackwardLogits);
  CHECK(head_bucket(job, plan).elements >= kTable);
  CHECK(!holds_tied_gradient(job, plan));
  plan.grad_dtype = DType::kFp32;
  CHECK(!head_bucket(job, plan).is_held);
  CHECK(head_bucket(job, plan).born == Step::kBackwardInput);
  CHECK(head_bucket(job, plan).elements == 8 * 4096);  // the norm
  CHECK(buffers_of(job, plan).units[1].held_bytes == 2 * kTable);
}

}  // namespace
}  // namespace shardplan::megatron
