// Shared experts on a stream of each layer. Hand counts, and what two examples of ms-swift state.
#include "estimator/frameworks/megatron/shared_streams.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/plan/units.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 8192;

// The examples: sequences of 8192 tokens in bf16, everything computed again.
Job shared_job(const char* model) {
  const Library library;
  Job job = {.model = library.model(model).model,
             .cluster = library.cluster("1x8-h100"),
             .profile = library.framework("megatron"),
             .sequence_length = kTokens,
             .global_batch = 16};
  job.profile.moe_shared_expert_overlap = true;
  job.profile.moe_dispatcher = MoeDispatcher::kAllToAll;
  job.profile.moe_grouped_gemm = true;
  job.profile.moe_permute_fusion = true;
  return job;
}

// Of Qwen1.5-MoE, whose shared experts are 5632 wide behind a gate: backward both gradients of the
// activation, forward what is kept until then where the layer is computed again.
TEST_CASE("a layer's stream keeps what its shared experts had at once") {
  Job job = shared_job("qwen1.5-moe-a2.7b");
  constexpr std::int64_t kWidth = 5632 * kTokens;
  CHECK(shared_stream(job, {}).passing == 2 * 2 * kWidth);
  CHECK(shared_stream(job, {}).kept == 2 * (3 * kWidth + 2048 * kTokens));
  CHECK(shared_stream_bytes(job, {}, 0) == 24 * 2 * 2 * kWidth);
  const Plan replayed = {.recompute = {.granularity = RecomputeGranularity::kFull,
                                       .method = RecomputeMethod::kBlock,
                                       .num_layers = 10}};
  CHECK(shared_stream_bytes(job, replayed, 0) ==
        24 * 2 * 2 * kWidth + 10 * 2 * (3 * kWidth + 2048 * kTokens));
  job.model.moe.shared_ffn = 0;
  CHECK(shared_stream_bytes(job, {}, 0) == 0);
}

// Adapters of rank 8 on both products: A's outputs and, without dropout, both inputs are kept; what
// passes has B's output and that one scaled beside it.
TEST_CASE("a stream has what adapters on shared experts keep and pass") {
  Job job = shared_job("qwen1.5-moe-a2.7b");
  const SharedStream all = shared_stream(job, {});
  job.adapters = {.rank = 8, .dtype = DType::kBf16};
  job.adapters.targets.fill(true);
  constexpr std::int64_t kWidth = 5632 * kTokens;
  constexpr std::int64_t kHidden = 2048 * kTokens;
  CHECK(shared_stream(job, {}).kept == all.kept + 2 * 2 * 8 * kTokens);
  CHECK(shared_stream(job, {}).passing == 2 * (kHidden + kHidden + 2 * 2 * kWidth));
  job.adapters.dropout = 0.05;
  CHECK(shared_stream(job, {}).kept ==
        all.kept + 2 * 2 * 8 * kTokens + 3 * (kHidden + kWidth) - 2 * kWidth);
}

// c10/cuda/CUDAStream.cpp, kStreamsPerPool.
TEST_CASE("layers beyond 32 share streams with earlier ones") {
  Job job = shared_job("qwen1.5-moe-a2.7b");
  job.model.layers.resize(32, job.model.layers.front());
  const std::int64_t most = shared_stream_bytes(job, {}, 0);
  CHECK(most == 32 * shared_stream(job, {}).passing);
  job.model.layers.resize(48, job.model.layers.front());
  CHECK(shared_stream_bytes(job, {}, 0) == most);
}

TEST_CASE("gates of shared experts on their own streams have two workspaces of cuBLAS a layer") {
  const auto workspaces = [](const Job& job) {
    const PlanPieces pieces = plan_pieces(job, Plan{.ep = 8});
    const auto& rows = pieces.stages.front().state.rows;
    return std::ranges::find(rows, "cublas_workspace", &StateRow::name)->copies;
  };
  Job job = shared_job("qwen1.5-moe-a2.7b");
  const std::int64_t on_streams = workspaces(job);
  job.profile.moe_shared_expert_overlap = false;
  CHECK(on_streams - workspaces(job) == 2 * 24);
  CHECK(workspaces(shared_job("moonlight-16b-a3b")) == workspaces(job));
}

// pre_forward_comm gathers before linear_fc1, which saves all of it.
TEST_CASE("with sequence parallelism shared experts keep the input that was gathered") {
  const auto kept = [](const Job& job) {
    const Plan plan = {.tp = 2, .ep = 4, .sequence_parallel = true};
    const BlockSet blocks = block_set(job, plan);
    return blocks[static_cast<std::size_t>(BlockKind::kMoeLayer)].summary.kept_bytes;
  };
  Job job = shared_job("qwen1.5-moe-a2.7b");
  const std::int64_t on_streams = kept(job);
  job.profile.moe_shared_expert_overlap = false;
  CHECK(on_streams - kept(job) == 2 * 2048 * kTokens);
}

// examples/megatron/moe/moe.sh of ms-swift 4.6 states 57 GiB a GPU: 13 and 11 layers of
// Qwen1.5-MoE on two stages, with expandable segments.
TEST_CASE("an example of ms-swift uses what its shared experts' streams add up to") {
  Job job = shared_job("qwen1.5-moe-a2.7b");
  job.profile.overlap_grad_reduce = true;
  job.profile.overlap_param_gather = true;
  job.profile.cross_entropy = CrossEntropyKind::kNativeFused;
  job.profile.attention_backend = AttentionBackend::kFlash;
  job.profile.attention_mask = false;
  job.profile.allocator = AllocatorKind::kCachingExpandable;
  Plan plan = {.ep = 4, .pp = 2, .zero = 1, .schedule = Schedule::k1F1B};
  plan.layers_per_chunk = {13, 11};
  plan.recompute.granularity = RecomputeGranularity::kFull;
  REQUIRE(!why_invalid(job, plan));
  const auto most_gib = [&](const Job& each) {
    const MemoryEstimate memory = estimate_memory(each, plan);
    const auto fullest =
        std::ranges::max_element(memory.stages, {}, &StageMemory::device_used_bytes);
    return static_cast<double>(fullest->device_used_bytes) / static_cast<double>(kGiB);
  };
  CHECK(most_gib(job) == doctest::Approx(57).epsilon(0.03));
  job.profile.moe_shared_expert_overlap = false;
  CHECK(most_gib(job) < 0.9 * 57);
}

}  // namespace
}  // namespace shardplan::megatron
