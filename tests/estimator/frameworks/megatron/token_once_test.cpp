// Dispatchers that send a token once to a rank (DeepEP), counted by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/library.h"
#include "estimator/answer/blocks.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/outside_memory.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/megatron/dispatch_buffers.h"
#include "estimator/frameworks/megatron/dispatch_cost.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/plan/expert_routing.h"
#include "estimator/plan/units.h"
#include "estimator/time/block_time.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kTokens = 4096;

Job mixture(const char* cluster) {
  const Library library;
  Job job;
  job.model = library.model("deepseek-v3").model;
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.sequence_length = kTokens;
  job.global_batch = 1024;
  return job;
}

const BlockMemory& experts_of(const BlockSet& blocks) {
  return blocks[static_cast<std::size_t>(BlockKind::kMoeLayer)];
}

std::int64_t row_bytes(const Job& job, const Plan& plan, std::string_view name) {
  const BlockSet blocks = block_set(job, plan);
  const auto& rows = experts_of(blocks).rows;
  const auto row = std::ranges::find(rows, name, &BlockRow::name);
  return row == rows.end() ? 0 : row->bytes;
}

double one_way_s(const Job& job, const Plan& plan) {
  return layer_time(job, plan, {.is_moe = true}).forward_ep_s / 2;
}

}  // namespace

TEST_CASE("a rank receives each token once that chose an expert of its") {
  Job job = mixture("1x8-h100");
  job.model.moe.num_groups = job.model.moe.topk_groups = 1;
  job.model.moe.num_experts = 8;
  job.model.moe.topk = 2;
  const Plan plan{.ep = 2, .zero = 1};
  // Of 28 pairs of experts 6 are pairs of the other rank's four.
  const double once = 2 * kTokens * (1 - 6.0 / 28);
  job.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
  for (const char* row : {"experts.received_tokens", "experts.unsorted_output",
                          "experts.received_gradient", "experts.returned_gradient"}) {
    CHECK(row_bytes(job, plan, row) == doctest::Approx(once * 7168 * 2).epsilon(1e-4));
  }
  CHECK(row_bytes(job, plan, "experts.permuted_tokens") == 0);
  CHECK(row_bytes(job, plan, "experts.fc1_input") == kTokens * 2 * 7168 * 2);
  job.profile.moe_dispatcher = MoeDispatcher::kHybridEp;
  CHECK(row_bytes(job, plan, "experts.received_tokens") == 0);
  CHECK(row_bytes(job, plan, "experts.fc1_input") == kTokens * 2 * 7168 * 2);
}

TEST_CASE("a token crosses to a node once, whatever it chooses there") {
  Job job = mixture("8x8-h100");
  const Plan plan{.ep = 64, .zero = 1};
  job.profile.moe_dispatcher = MoeDispatcher::kAllToAll;
  const double to_experts_s = one_way_s(job, plan);
  job.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
  const double to_nodes_s = one_way_s(job, plan);
  // To 7 of 8 nodes: 8 experts of each token, or every node with the share of tokens that it sees.
  const double ratio = 8.0 / (8 * share_choosing(job.model.moe, 32));
  CHECK(ratio > 2);
  const DispatchCost cost = dispatch_cost(job);
  const double called_s =
      cost.start_s + cost.row_s * 64 * kTokens * share_choosing(job.model.moe, 4);
  CHECK(to_experts_s / (to_nodes_s - called_s) == doctest::Approx(ratio).epsilon(0.02));
}

// data/measured/dispatch_h200.json: rows that rank 0 received, seconds of dispatch and combine.
TEST_CASE("DeepEP's exchanges and buffers are those measured on H200") {
  struct Exchange {
    std::int64_t tokens, hidden;
    MoeSpec moe;
    double rows, seconds;
  };
  const auto check = [](std::int64_t ranks, std::int64_t buffer_bytes, const Exchange& measured) {
    Job job = mixture("1x8-h200");
    job.model.moe = measured.moe;
    job.model.moe.expert_ffn = 1024;
    job.model.hidden = measured.hidden;
    job.sequence_length = measured.tokens;
    job.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
    const Plan plan{.ep = ranks, .zero = 1};
    const double rows = static_cast<double>(ranks * measured.tokens) *
                        share_choosing(job.model.moe, job.model.moe.num_experts / ranks);
    CHECK(rows == doctest::Approx(measured.rows).epsilon(0.01));
    CHECK(2 * one_way_s(job, plan) == doctest::Approx(measured.seconds).epsilon(0.16));
    job.model.hidden = 7168;
    CHECK(dispatch_buffer_bytes(job, plan) == buffer_bytes);
  };
  const MoeSpec in_groups{.num_experts = 256, .topk = 8, .num_groups = 8, .topk_groups = 4};
  constexpr std::int64_t kFour = 203423744;
  check(4, kFour, {4096, 7168, {.num_experts = 128, .topk = 8}, 14890, 834e-6 + 770e-6});
  check(4, kFour, {4096, 7168, in_groups, 12019, 708e-6 + 710e-6});
  check(4, kFour, {4096, 4096, {.num_experts = 64, .topk = 8}, 14976, 664e-6 + 538e-6});
  check(4, kFour, {8192, 4096, {.num_experts = 8, .topk = 2}, 15070, 726e-6 + 709e-6});
  check(4, kFour, {8192, 2048, {.num_experts = 128, .topk = 8}, 29672, 961e-6 + 662e-6});
  constexpr std::int64_t kTwo = 119537664;
  check(2, kTwo, {4096, 7168, {.num_experts = 64, .topk = 8}, 8171, 513e-6 + 524e-6});
  check(2, kTwo, {8192, 4096, {.num_experts = 4, .topk = 2}, 13566, 618e-6 + 576e-6});
  check(2, kTwo, {2048, 7168, {.num_experts = 128, .topk = 8}, 4084, 317e-6 + 281e-6});
}

// DeepEP's branch hybrid-ep at 94a9f8f, docs/README_Hybrid-EP.md: dispatch of 4096 tokens of 7168
// in bf16 to 8 of 64 experts on 8 B200, 535.94 GB/s of all that a rank receives.
TEST_CASE("HybridEP's exchange takes as long as published") {
  Job job = mixture("dgx-b200");
  job.model.moe.num_groups = job.model.moe.topk_groups = 1;
  job.model.moe.num_experts = 64;
  job.profile.moe_dispatcher = MoeDispatcher::kHybridEp;
  const double received = 8 * share_choosing(job.model.moe, 8) * kTokens * 7168 * 2;
  CHECK(one_way_s(job, {.ep = 8, .zero = 1}) == doctest::Approx(received / 535.94e9).epsilon(0.2));
}

// DeepEP v1.2.1 csrc/config.hpp over 64 ranks: 10 channels, 8 peers with 288 slots, 8 nodes with
// 140 both ways, rounded up to 512 MiB.
TEST_CASE("buffers of tokens on their way lie outside the allocator") {
  Job job = mixture("8x8-h100");
  const Plan plan{.ep = 64, .zero = 1};
  job.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
  const std::int64_t slot = 2 * 7168 + 8 + 2048;
  const std::int64_t bytes = 32 * kMiB + round_up(10 * 8 * 288 * slot, 2 * kMiB) + 512 * kMiB;
  CHECK(2 * 10 * 8 * 140 * (slot + 16) < 512 * kMiB);
  CHECK(dispatch_buffer_bytes(job, plan) == bytes);
  const auto rows = outside_rows(job, plan, 0);
  const auto row = std::ranges::find(rows, "dispatch_buffer", &Row::name);
  REQUIRE(row != rows.end());
  CHECK(row->bytes == bytes);
  // NCCL moves no tokens: the group of ep has no communicator.
  CHECK(std::ranges::find(rows, "communicator.ep", &Row::name) == rows.end());
  // One NVLink domain, 32 experts on each of 8 ranks: room for all tokens of all of them.
  job = mixture("gb200-nvl72");
  job.profile.moe_dispatcher = MoeDispatcher::kHybridEp;
  CHECK(dispatch_buffer_bytes(job, {.ep = 8, .zero = 1}) ==
        8 * kTokens * (2 * 7168 + 4 * 256 + 4 * 7168 / 128));
}

TEST_CASE("DeepEP serves some numbers of ranks, and pads no expert to a capacity") {
  Job job = mixture("8x8-h100");
  job.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
  const auto broken = [&](const Plan& plan) {
    const ValidityRule* const rule = first_broken_rule(job, plan);
    return rule == nullptr ? std::string() : std::string(rule->name);
  };
  CHECK(broken({.ep = 1, .dp = 64, .zero = 1}) == "deepep_serves_the_number_of_ranks");
  CHECK(broken({.ep = 64, .dp = 64, .zero = 1}).empty());
  const auto reason = why_invalid(job, {.ep = 1, .dp = 64, .zero = 1});
  REQUIRE(reason);
  for (std::int64_t ranks = 1; ranks <= 200; ++ranks) {
    const bool is_said =
        (reason->message + ",").find(" " + std::to_string(ranks) + ",") != std::string::npos;
    CHECK(is_said == deepep_serves(ranks));
  }
  job.profile.moe_capacity_factor = 1;
  CHECK(broken({.ep = 64, .dp = 64, .zero = 1}) == "deepep_needs_no_capacity");
}

}  // namespace shardplan::megatron
