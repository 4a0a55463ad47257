// nanotron: states and buckets counted by hand.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "data/read/library.h"
#include "estimator/allocator/replay.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/pipeline_step.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/answer/stage_state.h"
#include "estimator/answer/stage_timeline.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/nanotron/start_up.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/units.h"

namespace shardplan::nanotron {
namespace {

Job job_of(const std::string& framework, std::int64_t micro_batches) {
  const Library library;
  Job job;
  job.model = library.model("llama3-8b").model;
  job.cluster = library.cluster("1x8-h100");
  job.profile = library.framework(framework);
  job.sequence_length = 1024;
  job.global_batch = 8 * micro_batches;
  return job;
}

Plan plan_with(std::int64_t zero, DType gradients) {
  Plan plan;
  plan.zero = zero;
  plan.grad_dtype = gradients;
  return plan;
}

constexpr std::int64_t kN = 8'030'261'248;  // Llama-3-8B

std::int64_t row_bytes(const MemoryEstimate& memory, std::string_view name) {
  std::int64_t bytes = 0;
  for (const Row& row : memory.stages.front().rows) { bytes += row.name == name ? row.bytes : 0; }
  return bytes;
}

}  // namespace

std::int64_t block_bytes(const BlockSet& blocks, BlockKind kind, std::string_view name) {
  std::int64_t bytes = 0;
  for (const BlockRow& row : blocks[static_cast<std::size_t>(kind)].rows) {
    bytes += row.name == name ? row.bytes : 0;
  }
  return bytes;
}

TEST_CASE("no model of nanotron norms queries and keys") {
  Job job = job_of("nanotron", 1);
  job.model.qk_norm = true;
  const auto broken = why_invalid(job, plan_with(1, DType::kFp32));
  REQUIRE(broken);
  CHECK(broken->rule == "unsupported: model.qk_norm");
  CHECK(broken->message.find("no model of nanotron") != std::string::npos);
}

TEST_CASE("nanotron keeps the whole fp32 gradient buffer under ZeRO-1, and buckets without it") {
  const Job job = job_of("nanotron", 1);
  const MemoryEstimate one = estimate_memory(job, plan_with(1, DType::kFp32));
  CHECK(row_bytes(one, "gradients.fp32_buffer") == 4 * kN);
  CHECK(row_bytes(one, "optimizer.master") == 4 * kN / 8);
  CHECK(row_bytes(one, "gradients.ddp_buckets") == 0);
  const MemoryEstimate none = estimate_memory(job, plan_with(0, DType::kFp32));
  CHECK(row_bytes(none, "optimizer.master") == 4 * kN);
  CHECK(row_bytes(none, "gradients.ddp_buckets") == 2 * kN);
}

TEST_CASE("nanotron gathers parameters through its own share, one of every rank, and a flat copy") {
  // 1024 tokens leave the gather as the peak: N/8 + 8 * N/8 + N.
  const MemoryEstimate memory = estimate_memory(job_of("nanotron", 1), plan_with(1, DType::kFp32));
  REQUIRE(memory.stages.front().peak_moment() == "parameter gather");
  std::int64_t bytes = 0;
  for (const Row& row : memory.stages.front().rows) {
    bytes += row.name.starts_with("parameter_gather.") ? row.total_bytes() : 0;
  }
  CHECK(bytes == 2 * (kN / 8 + kN + kN));
  CHECK(row_bytes(memory, "parameter_gather.shares") == 2 * (kN / 8));  // of one rank
}

// Traced: of a tied model of 16 layers, 2048 wide, the second step made buckets of 32, 64 and 32
// MiB a layer, each with a norm, and one of the table (data/measured/nanotron_ranks_h200.jsonl,
// nano-1b_tp1pp1dp8z0_s4096b1n4). Down, gate and up, then the projections of attention together.
TEST_CASE("nanotron's second step makes gradient buckets anew, in the order of gradients") {
  Job job = job_of("nanotron", 1);
  job.model.hidden = 2048;
  job.model.ffn = 8192;
  job.model.vocab = 131072;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 32;
  job.model.head_dim = 64;
  job.model.tied_embeddings = true;
  job.model.layers.resize(16);
  const Plan plan = plan_with(0, DType::kFp32);
  const StageLayout layout = plan_pieces(job, plan).stages.front().layout;
  const BuiltStage built = start_up(job, plan, layout, stage_tensors(job, plan, layout));
  const std::int64_t norms = (2 * 16 + 1) * 2048 * 2;
  std::vector<std::int64_t> expected;
  for (int layer = 0; layer < 16; ++layer) {
    expected.insert(expected.end(), {32 * kMiB, 64 * kMiB, 32 * kMiB});
  }
  expected.front() += norms;  // they come first here
  expected.push_back(512 * kMiB);
  CHECK(built.rebuilt_bytes == expected);
}

TEST_CASE("nanotron deals layers by their cost, the head counting with them") {
  // 24 layers of 4*2048^2 + 3*2048*4096, a head of 50257*2048: 26.45 layers over 8 ranks.
  Job job = job_of("nanotron", 1);
  job.model.hidden = 2048;
  job.model.ffn = 4096;
  job.model.vocab = 50257;
  job.model.num_kv_heads = 32;
  job.model.head_dim = 64;
  job.model.layers.resize(24);
  Plan plan;
  plan.pp = 8;
  plan.schedule = Schedule::k1F1B;
  CHECK(layers_per_chunk(job, plan) == std::vector<std::int64_t>{4, 3, 3, 4, 3, 3, 4, 0});
  plan.pp = 2;
  CHECK(layers_per_chunk(job, plan) == std::vector<std::int64_t>{14, 10});
}

// Llama-3-8B: a head of 2.16 layers, so that 16 ranks have 2.135 each. Layers up to rank r cost
// more than (r + 1) of these shares after 3, 5, 7, 9, 11, 13, 15, 18, ... of them; rank 14 gets the
// last two, which leave it below 15 shares, and so the head, behind which the cast and the loss
// come to rank 15. Of 32 ranks, 1.0675 each, rank 29 has the head, 30 the cast and 31 the loss.
TEST_CASE(
    "nanotron puts a head that is reached early before the last stage, cast and loss behind") {
  const Job job = job_of("nanotron", 1);
  Plan plan;
  plan.pp = 16;
  plan.schedule = Schedule::k1F1B;
  CHECK(layers_per_chunk(job, plan) ==
        std::vector<std::int64_t>{3, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2, 2, 2, 0});
  const auto stages_with = [&](bool ModelChunk::*block) {
    std::vector<std::int64_t> stages;
    for (const ModelChunk& chunk : partition_layers(job, plan).chunks) {
      if (chunk.*block) {
        stages.push_back(chunk.pp_rank);
      }
    }
    return stages;
  };
  using Stages = std::vector<std::int64_t>;
  CHECK(stages_with(&ModelChunk::has_head) == Stages{14});
  CHECK(stages_with(&ModelChunk::has_cast) == Stages{15});
  CHECK(stages_with(&ModelChunk::has_loss) == Stages{15});
  plan.pp = 32;
  CHECK(stages_with(&ModelChunk::has_head) == Stages{29});
  CHECK(stages_with(&ModelChunk::has_cast) == Stages{30});
  CHECK(stages_with(&ModelChunk::has_loss) == Stages{31});
}

// Sixteen layers and a head of 4.32: 20.32 over 16 ranks, 1.27 each. Rank 12 has the head, 13 the
// cast and 14 the loss, which rank 15 is asked for.
TEST_CASE("nanotron's loss must come to the last stage, and layers are not to be dealt otherwise") {
  const Library library;
  Job job = job_of("nanotron", 1);
  job.model = library.model("llama3.2-1b").model;
  job.cluster = library.cluster("2x8-h100");
  Plan plan = plan_with(1, DType::kFp32);
  plan.pp = 16;
  plan.schedule = Schedule::k1F1B;
  job.global_batch = 16;
  const auto broken = why_invalid(job, plan);
  REQUIRE(broken);
  CHECK(broken->rule == "loss_on_last_stage");
  CHECK(broken->message.find("valid pp: 1, 2, 4, 8") != std::string::npos);
  plan.pp = 2;
  CHECK_FALSE(why_invalid(job, plan));
  plan.layers_per_chunk = {8, 8};
  REQUIRE(why_invalid(job, plan));
  CHECK(why_invalid(job, plan)->rule == "unsupported: layers_per_chunk");
}

Job early_head_job() {
  Job job = job_of("nanotron", 1);
  job.cluster = Library().cluster("4x8-h100");
  job.global_batch = 64;
  return job;
}

Plan early_head_plan(std::int64_t pp) {
  Plan plan = plan_with(1, DType::kFp32);
  plan.pp = pp;
  plan.schedule = Schedule::k1F1B;
  return plan;
}

// 1024 tokens, 128256 logits; labels and their mask are 16 bytes a token. A last stage has received
// 2 bytes, cast to 4 that the caller holds, beside 4 of the loss's. Stage 30 casts alone, two
// microbatches in flight: 2 bytes of each, 4 that it holds of what it sent, 4 unsent, and 4 of a
// gradient.
TEST_CASE("stages of nanotron behind the head hold logits and no parameters") {
  constexpr std::int64_t kLogits = 1024 * 128256;
  const Job job = early_head_job();
  const MemoryEstimate of_16 = estimate_memory(job, early_head_plan(16));
  CHECK(of_16.stages[15].allocated_bytes == 10 * kLogits + 16 * 1024);
  const MemoryEstimate of_32 = estimate_memory(job, early_head_plan(32));
  CHECK(of_32.stages[30].allocated_bytes == 16 * kLogits);
  CHECK(of_32.stages[31].allocated_bytes == 8 * kLogits + 16 * 1024);
  std::int64_t parameters = 0;
  for (const StageMemory& stage : of_32.stages) {
    for (const Row& row : stage.rows) { parameters += row.name == "parameters" ? row.bytes : 0; }
  }
  CHECK(parameters == 2 * kN);
}

// The gradient of a microbatch's logits is still being sent when the loss of the next one is made:
// 4 bytes more are reserved than are ever allocated at once (measured: 14 where 10 are allocated,
// data/measured/frameworks_four_gpus_h100.jsonl).
TEST_CASE("nanotron's last stage keeps the gradient that it sends beside the next loss") {
  constexpr std::int64_t kLogits = 1024 * 128256;
  const Job job = early_head_job();
  const Plan plan = early_head_plan(16);
  const PlanPieces pieces = plan_pieces(job, plan);
  const AllocatorPeaks peaks = replay_allocator(
      stage_timeline(job, plan, pieces.blocks, pieces.stages.back()), AllocatorKind::kCaching);
  const std::int64_t rest = peaks.reserved_bytes - 14 * kLogits;
  CHECK(rest > 0);
  CHECK(rest < 8 * kMiB);  // pages of 2 MiB, and labels
}

// Works of the stages of one microbatch.
std::vector<ChunkWork> stage_works(const Job& job, const Plan& plan, const SendTimes& sends) {
  const StepLayout layout = step_layout(job, plan, layer_kinds(job.model));
  std::vector<ChunkWork> works(layout.chunks.size());
  chunk_works(job, layout, model_times(job, plan), sends, works);
  std::vector<ChunkWork> stages;
  for (const std::size_t kind : layout.pipeline.chunk_kinds) { stages.push_back(works[kind]); }
  return stages;
}

// With 32 stages the head is on the third last, behind a layer; then come the cast and the loss.
TEST_CASE("nanotron's head, cast and loss take their time on their own stages") {
  const Job job = early_head_job();
  const Plan plan = early_head_plan(32);
  const ModelTimes times = model_times(job, plan);
  const auto& [logits, cast, loss] = times.head_parts;
  CHECK(logits.forward_s + cast.forward_s + loss.forward_s ==
        doctest::Approx(times.head.forward_s));
  CHECK(logits.backward_total_s() + cast.backward_total_s() + loss.backward_total_s() ==
        doctest::Approx(times.head.backward_total_s()));
  CHECK(logits.forward_flops == times.head.forward_flops);
  const std::vector<ChunkWork> stages = stage_works(job, plan, {});
  const BlockTime& layer = times.layers.front().time;
  CHECK(stages[29].blocks.parameters.dense == layer.parameters.dense + logits.parameters.dense);
  CHECK(stages[29].blocks.forward_s == doctest::Approx(layer.forward_s + logits.forward_s));
  CHECK(stages[30].blocks.forward_s == cast.forward_s);
  CHECK(stages[31].blocks.forward_s == loss.forward_s);
  CHECK(stages[31].blocks.backward_total_s() == loss.backward_total_s());
  const Plan together = early_head_plan(1);
  CHECK(stage_works(job, together, {})[0].blocks.forward_s ==
        doctest::Approx(times.embedding.forward_s + 32 * layer.forward_s + times.head.forward_s));
}

// Over a network the time of a send is a latency and its bytes over a rate: hidden states 2 * h,
// logits 2 * V / t, in fp32 twice that.
TEST_CASE("nanotron's logits are sent as wide as they are, in fp32 behind the cast") {
  const Job job = early_head_job();
  constexpr GroupShape kAcross = {.size = 2, .ranks_per_domain = 1, .ranks_per_node = 1};
  Plan plan = early_head_plan(32);
  const SendTimes whole = exposed_sends(job, plan, kAcross);
  const double logits_bytes_s = whole.cast_logits_s - whole.logits_s;
  CHECK(whole.logits_s - whole.hidden_s == doctest::Approx(logits_bytes_s * (1 - 4096.0 / 128256)));
  plan.tp = 2;
  const SendTimes halves = exposed_sends(job, plan, kAcross);
  CHECK(halves.cast_logits_s - halves.logits_s == doctest::Approx(logits_bytes_s / 2));
}

TEST_CASE("nanotron's stages wait for what they receive as for what they send, both ways") {
  const SendTimes sends = {.hidden_s = 1, .logits_s = 10, .cast_logits_s = 100};
  const std::vector<ChunkWork> stages = stage_works(early_head_job(), early_head_plan(32), sends);
  for (const auto& row : {std::pair{0, 1}, std::pair{1, 2}, std::pair{29, 11}, std::pair{30, 110},
                          std::pair{31, 100}}) {
    const auto& stage = row.first;
    const auto& seconds = row.second;
    CAPTURE(stage);
    CHECK(stages[static_cast<std::size_t>(stage)].forward_send_s == seconds);
    CHECK(stages[static_cast<std::size_t>(stage)].backward_send_s == seconds);
  }
}

// 16 layers of 2048 and 8192 cost four times as much as a head of 131072, which leaves ten, or
// five, layers to a stage of two, or four.
TEST_CASE(
    "nanotron's published runs have head and loss on the last stage, commits where they fall") {
  Job job = early_head_job();
  job.model.hidden = 2048;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 32;
  job.model.head_dim = 64;
  job.model.ffn = 8192;
  job.model.vocab = 131072;
  job.model.layers.resize(16);
  Job published = job;
  published.profile = Library().framework("nanotron@v0.5-dev");
  using Layers = std::vector<std::int64_t>;
  CHECK(layers_per_chunk(job, early_head_plan(2)) == Layers{11, 5});
  CHECK(layers_per_chunk(published, early_head_plan(2)) == Layers{10, 6});
  CHECK(layers_per_chunk(published, early_head_plan(4)) == Layers{5, 5, 5, 1});
  CHECK(layers_per_chunk(job, early_head_plan(8)) == Layers{3, 3, 2, 3, 2, 3, 0, 0});
  CHECK(layers_per_chunk(published, early_head_plan(8)) == Layers{3, 2, 3, 2, 3, 2, 1, 0});
  CHECK(head_stage(job, early_head_plan(8)) == 6);
  CHECK(head_stage(published, early_head_plan(8)) == 7);
  // As it ran: 28 layers, 32 stages (playbook-04169).
  for (Job* of : {&job, &published}) {
    of->model.layers.resize(28, of->model.layers.front());
    of->model.hidden = 3072;
    of->model.head_dim = 96;
  }
  CHECK(layers_per_chunk(job, early_head_plan(32)).empty());
  CHECK(std::ssize(layers_per_chunk(published, early_head_plan(32))) == 32);
}

// Later versions save the shard of each linear layer's input (h*T/2 with two ranks) and gather it
// again in a buffer of h*T that stays for good, as one of output gradients does: v0.4 has h*T/2
// more for both linear inputs of 32 layers and for the head's, no buffers, and tables in fp32 of
// every position and width of a head. Where the gather of parameters is the peak, no activation is
// alive, and only buffers and tables are left.
TEST_CASE("nanotron v0.4 saves gathered inputs, later versions keep two gather buffers") {
  Job job = job_of("nanotron", 1);
  Job old = job_of("nanotron@v0.4", 1);
  CHECK(old.profile.name == "nanotron");
  CHECK(old.profile.version == "v0.4");
  Plan plan = plan_with(1, DType::kFp32);
  plan.tp = 2;
  plan.sequence_parallel = true;
  for (const auto& [sequence, peak, saved_shards] :
       {std::tuple{1024, "parameter gather", 0}, std::tuple{16384, "loss forward", 2 * 32 + 1}}) {
    job.sequence_length = sequence;
    old.sequence_length = sequence;
    const MemoryEstimate later = estimate_memory(job, plan);
    const MemoryEstimate before = estimate_memory(old, plan);
    CHECK(before.stages.front().peak_moment() == std::string_view(peak));
    CHECK(later.stages.front().peak_moment() == std::string_view(peak));
    const std::int64_t gathered = std::int64_t{2} * 4096 * sequence;
    const std::int64_t tables = std::int64_t{32} * 4 * sequence * 128;
    CHECK(before.stages.front().allocated_bytes - later.stages.front().allocated_bytes ==
          saved_shards * gathered / 2 + tables - 2 * gathered);
  }
}

// parallel/tensor_parallel/functional.py: F.linear saves the contiguous copy of attention's answer,
// 2 * 4096 bytes a token and layer; _RowLinearAsyncCommunication the view that it was copied from.
TEST_CASE(
    "nanotron keeps a copy of attention's answer for several sequences, unless tp scatters it") {
  for (const std::int64_t tp : {1, 2}) {
    Job job = job_of("nanotron", 1);
    Plan plan = plan_with(1, DType::kFp32);
    plan.tp = tp;
    plan.sequence_parallel = tp > 1;
    job.sequence_length = 16384;
    job.global_batch = 64;
    const std::int64_t one = estimate_memory(job, plan).stages.front().allocated_bytes;
    job.sequence_length = 8192;
    plan.micro_batch = 2;
    const std::int64_t two = estimate_memory(job, plan).stages.front().allocated_bytes;
    const std::int64_t copies = tp == 1 ? std::int64_t{32} * 2 * 4096 * 16384 : 0;
    const std::int64_t tables = std::int64_t{32} * 2 * 128 * 8192;  // of half the positions
    CHECK(std::abs(two - one - (copies - tables)) <= kMiB);
  }
}

TEST_CASE("a stage without a layer has a state of nothing and no peak in an action") {
  Job job = job_of("megatron", 8);
  Plan plan;
  plan.pp = 8;
  plan.zero = 1;
  plan.schedule = Schedule::k1F1B;
  plan.layers_per_chunk = {8, 8, 8, 8, 0, 0, 0, 0};
  REQUIRE_FALSE(why_invalid(job, plan));
  const MemoryEstimate memory = estimate_memory(job, plan);
  CHECK(memory.stages[5].num_layers == 0);
  CHECK(memory.stages[5].allocated_bytes < memory.stages[3].allocated_bytes);
}

}  // namespace shardplan::nanotron
