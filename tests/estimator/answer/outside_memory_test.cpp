#include "estimator/answer/outside_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "data/read/library.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/attention_workspace.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/units.h"
#include "tests/allocation_count.h"

using namespace shardplan;

namespace {

// One measured rank: driver-level memory minus what PyTorch reserved, MiB. Megatron-core
// core_v0.16.1 on H200 SXM, NCCL 2.28.9, NVLS off; every rank of a layout and stage agreed within
// 4 MiB.
struct MeasuredOutside {
  bool eager = false;
  bool has_experts = false;
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t vpp = 1;
  std::int64_t dp = 1;
  std::int64_t ep = 1;
  std::int64_t zero = 0;
  std::int64_t stage = 0;
  std::int64_t outside_mib = 0;
};

constexpr std::array<MeasuredOutside, 40> kMeasured = {{
    {false, false, 2, 1, 1, 1, 1, 0, 0, 2970}, {false, false, 2, 1, 1, 1, 1, 1, 0, 2970},
    {false, false, 2, 1, 1, 4, 1, 1, 0, 3068}, {false, false, 2, 2, 1, 1, 1, 0, 0, 3612},
    {false, false, 2, 2, 1, 1, 1, 0, 1, 3612}, {false, false, 2, 4, 1, 1, 1, 1, 0, 3616},
    {false, false, 2, 4, 1, 1, 1, 1, 1, 4000}, {false, false, 2, 4, 1, 1, 1, 1, 3, 3616},
    {false, false, 2, 4, 4, 1, 1, 0, 0, 3998}, {false, false, 2, 4, 4, 1, 1, 0, 3, 3998},
    {false, false, 4, 2, 4, 1, 1, 1, 0, 3616}, {false, true, 1, 8, 1, 1, 1, 0, 0, 3134},
    {false, true, 1, 8, 1, 1, 1, 0, 1, 3518},  {false, true, 1, 8, 1, 1, 1, 0, 6, 3518},
    {false, true, 2, 1, 1, 1, 2, 1, 0, 4974},  {true, false, 1, 1, 1, 1, 1, 0, 0, 7940},
    {true, false, 1, 1, 1, 1, 1, 1, 0, 7940},  {true, false, 1, 1, 1, 4, 1, 1, 0, 7648},
    {true, false, 1, 2, 1, 1, 1, 0, 0, 7996},  {true, false, 1, 2, 1, 1, 1, 0, 1, 7608},
    {true, false, 1, 2, 2, 2, 1, 1, 0, 7324},  {true, false, 1, 2, 2, 2, 1, 1, 1, 6938},
    {true, false, 1, 2, 4, 1, 1, 1, 1, 7608},  {true, false, 1, 4, 1, 1, 1, 1, 0, 7996},
    {true, false, 1, 4, 1, 1, 1, 1, 1, 7794},  {true, false, 1, 4, 1, 1, 1, 1, 3, 7610},
    {true, true, 1, 1, 1, 4, 2, 1, 0, 8096},   {true, true, 1, 4, 1, 1, 1, 1, 0, 8000},
    {true, true, 1, 4, 1, 1, 1, 1, 2, 7796},   {false, true, 1, 8, 1, 1, 1, 0, 7, 3522},
    {false, false, 1, 1, 1, 1, 1, 0, 0, 2494}, {false, false, 1, 1, 1, 1, 1, 1, 0, 2494},
    {false, true, 1, 1, 1, 1, 1, 0, 0, 2496},  {false, false, 1, 1, 1, 2, 1, 1, 0, 2968},
    {false, false, 1, 2, 1, 1, 1, 0, 0, 3124}, {false, false, 1, 2, 1, 1, 1, 0, 1, 3516},
    {false, true, 1, 1, 1, 2, 2, 1, 0, 4488},  {false, true, 2, 1, 1, 1, 1, 0, 0, 3456},
    {false, true, 2, 1, 1, 1, 2, 0, 0, 5458},  {false, true, 1, 1, 1, 2, 2, 0, 0, 4876},
}};

struct Case {
  Job job;
  Plan plan;
};

Case case_of(const MeasuredOutside& row) {
  Case found;
  found.plan.tp = row.tp;
  found.plan.pp = row.pp;
  found.plan.vpp = row.vpp;
  found.plan.dp = row.dp;
  found.plan.ep = row.ep;
  found.plan.zero = row.zero;
  found.plan.schedule = row.vpp > 1 ? Schedule::kInterleaved1F1B : Schedule::k1F1B;
  found.job.model.layers.resize(32);
  found.job.model.moe.num_experts = row.has_experts ? 8 : 0;
  found.job.cluster.gpus_per_node = row.tp * row.pp * row.dp;
  set_framework(found.job.profile, MemoryModel::kMegatronLocal);
  found.job.profile.eager_communicators = row.eager;
  return found;
}

// One rank of torchtitan v0.2.2 on the same machine, that with experts on two H100 SXM; all ranks
// of a layout agreed within 4 MiB.
struct TitanOutside {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t cp = 1;
  std::int64_t dp_shard = 1;
  std::int64_t dp_replicate = 1;
  std::int64_t outside_mib = 0;
  std::int64_t ep = 1;
};

constexpr std::array<TitanOutside, 15> kTitan = {{
    {1, 1, 1, 1, 1, 766},
    {1, 1, 1, 2, 1, 1612},
    {1, 1, 1, 4, 1, 1614},
    {1, 1, 1, 8, 1, 1617},
    {1, 1, 2, 1, 1, 2056},
    {1, 1, 2, 2, 1, 3026},
    {1, 1, 2, 1, 2, 3998},
    {1, 1, 2, 2, 2, 4000},
    {2, 1, 2, 1, 1, 3998},
    {2, 1, 1, 4, 1, 3559},
    {2, 1, 4, 1, 1, 4768},
    {2, 1, 1, 2, 2, 4043},
    {1, 2, 2, 1, 1, 4380},
    {1, 2, 4, 1, 1, 5150},
    {1, 1, 1, 2, 1, 2062, 2},
}};

Case case_of(const TitanOutside& row) {
  Case found;
  found.plan.tp = row.tp;
  found.plan.pp = row.pp;
  found.plan.cp = row.cp;
  found.plan.dp = row.dp_shard * row.dp_replicate;
  found.plan.dp_replicate = row.dp_replicate;
  found.plan.cp_method = CpMethod::kRing;
  found.plan.ep = row.ep;
  found.job.model.layers.resize(32);
  found.job.model.moe.num_experts = row.ep > 1 ? 32 : 0;
  found.job.cluster.gpus_per_node = row.tp * row.pp * row.cp * found.plan.dp;
  set_framework(found.job.profile, MemoryModel::kTorchtitan);
  return found;
}

bool has_row(const std::vector<Row>& rows, const std::string& name) {
  return std::ranges::any_of(rows, [&](const Row& row) { return row.name == name; });
}

Job job_on(std::int64_t nodes, MemoryModel memory_model) {
  Job job;
  job.model.layers.resize(32);
  job.cluster.nodes = nodes;
  set_framework(job.profile, memory_model);
  return job;
}

}  // namespace

TEST_CASE("memory outside the allocator is within 20 MiB of every measured Megatron-core layout") {
  std::int64_t worst = 0;
  for (const MeasuredOutside& row : kMeasured) {
    const Case measured = case_of(row);
    const std::int64_t error =
        outside_bytes(measured.job, measured.plan, row.stage) / kMiB - row.outside_mib;
    worst = std::max(worst, std::abs(error));
    CAPTURE(row.tp);
    CAPTURE(row.pp);
    CAPTURE(row.stage);
    CAPTURE(row.outside_mib);
    CHECK(std::abs(error) <= 20);
  }
  MESSAGE("worst error of ", kMeasured.size(), " layouts: ", worst, " MiB");
}

TEST_CASE("memory outside the allocator is within 20 MiB of every measured torchtitan layout") {
  for (const TitanOutside& row : kTitan) {
    const Case found = case_of(row);
    const std::int64_t mib = outside_bytes(found.job, found.plan, 0) / kMiB;
    CAPTURE(row.outside_mib);
    CHECK(std::abs(mib - row.outside_mib) <= 20);
  }
}

TEST_CASE("the shipped file of the H200 says the same of every layout as the documented values") {
  const GpuSpec h200 = Library().gpu("h200");
  std::int64_t worst = 0;
  for (const MeasuredOutside& row : kMeasured) {
    Case measured = case_of(row);
    measured.job.cluster.gpu = h200;
    const std::int64_t bytes = outside_bytes(measured.job, measured.plan, row.stage);
    worst = std::max(worst, std::abs(bytes / kMiB - row.outside_mib));
  }
  CHECK(worst <= 20);
}

TEST_CASE("rows outside the allocator add up to outside_bytes, which allocates nothing") {
  for (const MeasuredOutside& row : kMeasured) {
    const Case measured = case_of(row);
    std::int64_t sum = 0;
    for (const Row& piece : outside_rows(measured.job, measured.plan, row.stage)) {
      sum += piece.total_bytes();
      REQUIRE_FALSE(piece.in_allocator);
      REQUIRE(piece.total_bytes() >= 0);
    }
    const std::int64_t before = allocation_count();
    const std::int64_t bytes = outside_bytes(measured.job, measured.plan, row.stage);
    CHECK(allocation_count() == before);
    CHECK(bytes == sum);
  }
}

// Llama-3-8B: 8192 x 4096 elements, 64 MiB in bf16. Transformer Engine v2.9 makes 12 buffers, eight
// of them for gathered operands.
TEST_CASE("products of pieces keep one buffer for each collective, outside the allocator") {
  Job job = job_on(2, MemoryModel::kMegatron);
  job.model.hidden = 4096;
  job.sequence_length = 8192;
  Plan plan = {.tp = 4, .sequence_parallel = true};
  const auto buffers = [&] {
    std::int64_t bytes = 0;
    for (const Row& row : outside_rows(job, plan, 0)) {
      bytes += row.name.starts_with("userbuffers.") ? row.total_bytes() : 0;
    }
    return bytes;
  };
  constexpr std::int64_t kFlags = 4 * kMiB;  // 3,223,808 bytes in pages of 2 MiB
  CHECK(buffers() == 0);
  const std::int64_t without = outside_bytes(job, plan, 0);
  job.profile.tp_overlap = TpOverlap::kPieces;
  CHECK(buffers() == 12 * 64 * kMiB + kFlags);
  const std::vector<Row> rows = outside_rows(job, plan, 0);
  CHECK(has_row(rows, "communicator.userbuffers_world"));
  CHECK(has_row(rows, "communicator.userbuffers_tp"));
  CHECK(outside_bytes(job, plan, 0) > without + buffers());
  plan.precision = Precision::kFp8;
  CHECK(buffers() == 8 * 32 * kMiB + 4 * 64 * kMiB + kFlags);
  plan.precision = Precision::kBf16;
  plan.micro_batch = 2;
  plan.cp = 4;
  CHECK(buffers() == 12 * 32 * kMiB + kFlags);
  plan.tp = 1;
  CHECK(buffers() == 0);
}

TEST_CASE("one GPU of the native trainer pays for context and libraries only") {
  Job job = job_on(1, MemoryModel::kNative);
  job.cluster.gpus_per_node = 1;
  const std::vector<Row> rows = outside_rows(job, {}, 0);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].component == Component::kContext);
  CHECK(rows[1].component == Component::kWorkspace);
  job.cluster.gpu.native = {.context_bytes = 500, .library_bytes = 70, .source = "measured"};
  CHECK(outside_bytes(job, {}, 0) == 570);
  CHECK(outside_rows(job, {}, 0).front().origin == Origin::kMeasured);
}

TEST_CASE("the native trainer on a GPU that was not measured, or measured alone, pays the H200's") {
  Job job = job_on(1, MemoryModel::kNative);
  Plan plan;
  plan.pp = 2;
  plan.dp = 4;
  plan.schedule = Schedule::k1F1B;
  const auto rows_of_nccl = [&] {
    std::vector<Row> rows = outside_rows(job, plan, 0);
    std::erase_if(rows, [](const Row& row) { return !row.name.starts_with("nccl"); });
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].origin == Origin::kMeasuredElsewhere);
    CHECK(rows[1].origin == Origin::kMeasuredElsewhere);
    return std::pair(rows[0].bytes, rows[1].bytes);
  };
  job.cluster.gpu.native.reset();
  const auto unmeasured = rows_of_nccl();
  job.cluster.gpu.native = {.context_bytes = 500, .library_bytes = 70, .source = "one GPU"};
  CHECK(rows_of_nccl() == unmeasured);
}

TEST_CASE("the GPU's measured communicators replace the documented ones") {
  Job job = job_on(1, MemoryModel::kNative);
  job.cluster.gpu.context_bytes = 0;
  job.cluster.gpu.library_bytes = 0;
  job.cluster.gpu.idle_communicator_bytes = 100 * kMiB;
  job.cluster.gpu.next_communicator_bytes = 300 * kMiB;
  job.cluster.gpu.first_communicator_bytes = 650 * kMiB;
  set_framework(job.profile, MemoryModel::kMegatron);
  Plan plan;
  plan.zero = 1;
  // World, gradients and gradient norm run collectives over 8 ranks; 350 MiB once. The batch is
  // broadcast to a tensor-parallel group of one.
  CHECK(outside_bytes(job, plan, 0) == (3 * 300 + 350 + 388) * kMiB);
}

TEST_CASE("the native trainer pays for the channels of the communicators that it uses") {
  Job job = job_on(1, MemoryModel::kNative);
  job.cluster.gpu.native = {.nccl_bytes = 300 * kMiB, .first_send_bytes = 50 * kMiB, .source = ""};
  Plan plan;
  plan.tp = 2;
  plan.pp = 2;
  plan.dp = 2;
  plan.zero = 1;
  plan.schedule = Schedule::k1F1B;
  const std::vector<Row> rows = outside_rows(job, plan, 0);
  const auto bytes = [&](const std::string& name) {
    const auto row = std::ranges::find(rows, name, &Row::name);
    REQUIRE(row != rows.end());
    return row->bytes;
  };
  // 4 MiB, and 6 + 12 MiB for each of 16 channels; of 2 for norms.
  CHECK(bytes("communicator.tensor.tp") == (4 + 16 * 18) * kMiB);
  CHECK(bytes("communicator.data.dense_shard") == (4 + 16 * 18) * kMiB);
  CHECK(bytes("communicator.data.tp") == (4 + 2 * 18) * kMiB);
  CHECK(bytes("communicator.data.pp") == (4 + 2 * 18) * kMiB);
  // One neighbour: a communicator of 4 channels each way, 10 + 2 MiB once connected.
  CHECK(bytes("communicator.messages") == (2 * (4 + 4 * 6) + 4 * 12) * kMiB);
  CHECK(bytes("nccl") == 300 * kMiB);
  CHECK(bytes("nccl.first_send") == 50 * kMiB);
  CHECK_FALSE(has_row(rows, "communicator.context.cp"));
  const std::int64_t before = allocation_count();
  const std::int64_t sum = outside_bytes(job, plan, 0);
  CHECK(allocation_count() == before);
  CHECK(sum == std::accumulate(rows.begin(), rows.end(), std::int64_t{0},
                               [](std::int64_t all, const Row& row) { return all + row.bytes; }));
}

TEST_CASE("expert all-to-all connects every peer inside NVLink, and one pool beyond it") {
  Job job = job_on(8, MemoryModel::kMegatron);
  job.model.moe.num_experts = 64;
  const auto ep_bytes = [&](std::int64_t ep) {
    Plan plan;
    plan.ep = ep;
    const std::vector<Row> rows = outside_rows(job, plan, 0);
    return std::ranges::find(rows, std::string("communicator.ep"), &Row::name)->bytes;
  };
  // 32 channels x 7 peers x 12 MiB = 2688 MiB.
  CHECK(ep_bytes(8) == (197 + 2688) * kMiB);
  CHECK(ep_bytes(2) == (197 + 384) * kMiB);
  CHECK(ep_bytes(64) == (197 + 2688 + 512) * kMiB);
}

TEST_CASE("torchtitan's experts have groups of their own where ep divides them") {
  Job job = job_on(1, MemoryModel::kTorchtitan);
  job.model.moe.num_experts = 64;
  Plan plan = {.tp = 2, .dp = 4};
  plan.zero = 3;
  const auto has = [&](const std::string& name) {
    return has_row(outside_rows(job, plan, 0), "communicator." + name);
  };
  CHECK_FALSE(has("ep"));
  CHECK_FALSE(has("efsdp"));
  plan.ep = 4;
  CHECK(has("ep"));
  CHECK(has("efsdp"));
  CHECK_FALSE(has("etp"));
  plan.ep = 2;
  plan.etp = 2;
  CHECK(has("etp"));
  plan.ep = 8;  // all ranks: torch's default group
  plan.etp = 1;
  CHECK_FALSE(has("ep"));
  CHECK_FALSE(has("efsdp"));
}

// Two H100 SXM (data/measured/frameworks_two_gpus_h100.jsonl): tp 2 in bf16 and, with delayed
// scaling, in fp8.
TEST_CASE("delayed scaling has a communicator of all ranks of its stage") {
  Job job = job_on(1, MemoryModel::kMegatron);
  job.cluster.gpus_per_node = 2;
  Plan plan = {.tp = 2};
  plan.zero = 1;
  const auto outside_mib = [&] { return outside_bytes(job, plan, 0) / kMiB; };
  CHECK(std::abs(outside_mib() - 2972) <= 20);
  plan.precision = Precision::kFp8;
  CHECK(std::abs(outside_mib() - 3458) <= 20);
  job.profile.fp8_recipe = Fp8Recipe::kTensorwise;
  CHECK(std::abs(outside_mib() - 2972) <= 20);
}

// Two H200 SXM (data/measured/latent_two_gpus_h200.jsonl, mla-host-moe-router-l8 and -latent-l8):
// device_used_end less reserved_end, with a bias for the choice of experts and without.
TEST_CASE("experts chosen by a bias have a communicator of all ranks of their stage") {
  Job job = job_on(1, MemoryModel::kMegatron);
  job.cluster.gpus_per_node = 2;
  job.model.layers.assign(2, {.is_moe = true});
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 256};
  const Plan plan = {.ep = 2, .zero = 1};
  const std::int64_t chosen_by_scores = outside_bytes(job, plan, 0);
  job.model.moe.router_bias = true;
  CHECK(std::abs(outside_bytes(job, plan, 0) - chosen_by_scores - 486 * kMiB) <= 4 * kMiB);
}

// nanotron 9055c664 on H100 SXM: one of them alone, or two (data/measured/host_steps_h100.jsonl,
// frameworks_two_gpus_h100.jsonl).
TEST_CASE("memory outside the allocator is within 20 MiB of every measured nanotron layout") {
  const auto outside_mib = [](const Plan& plan) {
    Job job = job_on(1, MemoryModel::kNanotron);
    job.cluster.gpus_per_node = plan.tp * plan.dp * plan.pp;
    return outside_bytes(job, plan, plan.pp - 1) / kMiB;
  };
  CHECK(std::abs(outside_mib({.tp = 1, .dp = 1}) - 2094) <= 20);
  CHECK(std::abs(outside_mib({.tp = 2, .dp = 1}) - 2956) <= 20);
  CHECK(std::abs(outside_mib({.tp = 1, .dp = 2}) - 2956) <= 20);
  CHECK(std::abs(outside_mib({.tp = 1, .pp = 2, .dp = 1}) - 3600) <= 20);
}

TEST_CASE("nanotron shares groups of equal ranks, and sends have a communicator for each peer") {
  Job job = job_on(1, MemoryModel::kNanotron);
  job.model = Library().model("llama2-7b").model;  // its head stays on the last of 8 stages
  const auto has = [&](const Plan& plan, std::int64_t stage, const std::string& name) {
    return has_row(outside_rows(job, plan, stage), "communicator." + name);
  };
  const Plan tp_dp = {.tp = 2, .dp = 4};
  CHECK(has(tp_dp, 0, "alone"));
  CHECK_FALSE(has(tp_dp, 0, "tp_pp"));  // tp's own ranks
  const Plan all = {.tp = 2, .pp = 4, .dp = 1};
  CHECK(has(all, 0, "tp_pp"));
  const Plan three = {.tp = 2, .pp = 2, .dp = 2};
  CHECK_FALSE(has(three, 0, "alone"));
  CHECK(has(three, 0, "pp.next"));
  CHECK_FALSE(has(three, 0, "pp.previous"));
  CHECK_FALSE(has(three, 1, "pp.next"));
  const Plan deep = {.pp = 8, .dp = 1};
  CHECK(has(deep, 3, "pp.next"));
  CHECK(has(deep, 3, "pp.previous"));
  CHECK_FALSE(has(deep, 0, "embedding"));
  job.model.tied_embeddings = true;
  CHECK(has(deep, 0, "embedding"));
  CHECK_FALSE(has(deep, 3, "embedding"));
  CHECK_FALSE(has(three, 0, "embedding"));  // pp's own ranks
  job.profile.eager_communicators = true;
  CHECK_FALSE(has(deep, 3, "pp.next"));
}

// data/measured/communicators_h200.json, lazy: the first peer of q4, a communicator that was not
// made before, took 642 MiB, its second one 384.
TEST_CASE("the first peer of a process costs what was measured, beside its connection") {
  const Job job = job_on(1, MemoryModel::kMegatron);
  const Plan plan = {.pp = 2, .schedule = Schedule::k1F1B};
  std::int64_t bytes = 0;
  for (const Row& row : outside_rows(job, plan, 0)) {
    bytes += row.name == "communicator.pp" || row.name == "nccl.first_send" ? row.bytes : 0;
  }
  CHECK(std::llabs(bytes - 642 * kMiB) <= kMiB);
}

// p2p_communication.py of Megatron-core sends in batches, on the group's communicator, or one by
// one, when PyTorch makes a communicator of two ranks for each peer; Transformer Engine's ring does
// so beyond two ranks.
TEST_CASE("sends one by one have a communicator for each peer, where none was made at start-up") {
  Job job = job_on(1, MemoryModel::kMegatron);
  const auto communicators = [&](const Plan& plan, const std::string& group) {
    std::int64_t bytes = 0;
    for (const Row& row : outside_rows(job, plan, 0)) {
      bytes += row.name.starts_with("communicator." + group) ? row.bytes : 0;
    }
    return bytes / kMiB;
  };
  Plan pipeline = {.pp = 4, .vpp = 2, .schedule = Schedule::kInterleaved1F1B};
  CHECK(communicators(pipeline, "pp") == 197 + 2 * 384);
  job.profile.overlap_p2p_comm = true;
  CHECK(communicators(pipeline, "pp") == 2 * (197 + 384));
  pipeline.pp = 2;  // one way in the group, the other in the world's
  CHECK(communicators(pipeline, "pp") == 2 * 197 + 384);
  job.profile.eager_communicators = true;
  CHECK(communicators(pipeline, "pp") == 197 + 384);
  job.profile.eager_communicators = false;
  Plan ring;
  ring.cp = 2;
  ring.cp_method = CpMethod::kRing;
  CHECK(communicators(ring, "cp") == 197 + 384);
  ring.cp = 4;
  CHECK(communicators(ring, "cp") == 2 * (197 + 384));
  job.profile.eager_communicators = true;
  CHECK(communicators(ring, "cp") == 197 + 2 * 384);
}

TEST_CASE("tied embeddings connect the ends of the pipeline, not its middle") {
  Job job = job_on(1, MemoryModel::kMegatron);
  job.model.tied_embeddings = true;
  Plan plan;
  plan.pp = 4;
  plan.schedule = Schedule::k1F1B;
  CHECK(has_row(outside_rows(job, plan, 0), "communicator.embedding"));
  CHECK_FALSE(has_row(outside_rows(job, plan, 1), "communicator.embedding"));
  CHECK(has_row(outside_rows(job, plan, 3), "communicator.embedding"));
  job.model.tied_embeddings = false;
  CHECK_FALSE(has_row(outside_rows(job, plan, 0), "communicator.embedding"));
}

TEST_CASE("context parallelism connects neighbours, all ranks or a ring, as its method says") {
  const Job job = job_on(1, MemoryModel::kMegatron);
  const auto cp_bytes = [&](CpMethod method) {
    Plan plan;
    plan.cp = 4;
    plan.cp_method = method;
    const std::vector<Row> rows = outside_rows(job, plan, 0);
    return std::ranges::find(rows, std::string("communicator.cp"), &Row::name)->bytes;
  };
  CHECK(cp_bytes(CpMethod::kA2a) == (197 + 3 * 384) * kMiB);
  CHECK(cp_bytes(CpMethod::kAllGather) == (197 + 288) * kMiB);
}

TEST_CASE("cuDNN's attention backward workspace has its closed form") {
  // cuDNN 9.19, plan construction for an H200: 32 query heads, 8 kv heads, head dimension 128.
  const auto workspace_mib = [](std::int64_t length, bool deterministic) {
    const CudnnShape shape = {
        .query_heads = 32, .kv_heads = 8, .query_length = length, .kv_length = length};
    return static_cast<double>(cudnn_backward_workspace_bytes(shape, deterministic)) /
           static_cast<double>(kMiB);
  };
  CHECK(workspace_mib(4096, false) == 128.5);
  CHECK(workspace_mib(8192, false) == 257);
  CHECK(workspace_mib(16384, false) == 514);
  CHECK(workspace_mib(4096, true) == 1088.5);
  CHECK(workspace_mib(8192, true) == 4225);
  CHECK(workspace_mib(16384, true) == 16642);
  // Eight query heads and one kv head over 131072 keys: 1028 MiB.
  const CudnnShape grouped = {
      .query_heads = 8, .kv_heads = 1, .query_length = 131072, .kv_length = 131072};
  CHECK(cudnn_backward_workspace_bytes(grouped, false) == 1028 * kMiB);
  // Without grouping nothing is expanded; lengths round up to tiles of 64.
  CHECK(cudnn_backward_workspace_bytes(
            {.query_heads = 2, .kv_heads = 2, .query_length = 65, .kv_length = 1}, true) ==
        2 * 2 * 128 * 64 + 4 * 2 * 65);
}
