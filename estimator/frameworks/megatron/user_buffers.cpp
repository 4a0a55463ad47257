#include "estimator/frameworks/megatron/user_buffers.h"

#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/units.h"

namespace shardplan::megatron {
namespace {

constexpr std::int64_t kPageBytes = 2 * kMiB;

// Region 0, 4-byte words: NVTE_REG0_OFFSET + NVTE_REG0_FLAGS (common/comm_gemm_overlap/userbuffers/
// userbuffers.h).
constexpr std::int64_t kRegions = 32;
constexpr std::int64_t kLinks = 32;
constexpr std::int64_t kSms = 32;
constexpr std::int64_t kPeers = 8192;
constexpr std::int64_t kOperations = 5;
constexpr std::int64_t kSingleNode = 2 * kLinks * kSms + 32;
constexpr std::int64_t kFlagWords =
    2 * kRegions * kLinks + 2 * kSingleNode + kPeers + 1024 * kOperations + kPeers * kRegions * 3;

struct Product {
  std::string_view name;
  bool gathers = false;  // layers_all_gather_overlap: fp8 where the products are
};
constexpr std::array<Product, 12> kProducts = {{
    {.name = "qkv_fprop", .gathers = true},
    {.name = "fc1_fprop", .gathers = true},
    {.name = "proj_dgrad", .gathers = true},
    {.name = "fc2_dgrad", .gathers = true},
    {.name = "proj_fprop"},
    {.name = "fc2_fprop"},
    {.name = "qkv_dgrad", .gathers = true},
    {.name = "qkv_wgrad"},
    {.name = "fc1_dgrad", .gathers = true},
    {.name = "fc1_wgrad"},
    {.name = "proj_wgrad", .gathers = true},
    {.name = "fc2_wgrad", .gathers = true},
}};

}  // namespace

bool has_user_buffers(const Job& job, const Plan& plan) {
  return job.profile.memory_model == MemoryModel::kMegatron &&
         job.profile.tp_overlap == TpOverlap::kPieces && plan.tp > 1;
}

std::array<UserBuffer, 13> user_buffers(const Job& job, const Plan& plan) {
  const std::int64_t elements = plan.micro_batch * job.sequence_length / plan.cp * job.model.hidden;
  std::array<UserBuffer, kProducts.size() + 1> buffers;
  for (std::size_t at = 0; at < kProducts.size(); ++at) {
    const bool is_fp8 = plan.precision == Precision::kFp8 && kProducts[at].gathers;
    buffers[at] = {.name = kProducts[at].name,
                   .bytes = round_up(elements * (is_fp8 ? 1 : 2), kPageBytes)};
  }
  buffers.back() = {.name = "flags", .bytes = round_up(4 * kFlagWords, kPageBytes)};
  return buffers;
}

}  // namespace shardplan::megatron
