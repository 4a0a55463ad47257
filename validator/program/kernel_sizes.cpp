#include "validator/program/kernel_sizes.h"

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

namespace shardplan {
namespace {

struct KernelSize {
  std::string_view name;
  std::int64_t found = 0;
  std::int64_t divisor = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};

std::optional<std::string> refusal(const KernelSize& size) {
  const bool divides = size.found % size.divisor == 0;
  if (divides && size.found <= size.most) {
    return std::nullopt;
  }
  return std::string(size.name) + ": found " + std::to_string(size.found) + ", expected " +
         (divides ? std::to_string(size.most) + " at most"
                  : "a multiple of " + std::to_string(size.divisor));
}

}  // namespace

std::optional<std::string> why_no_kernels(const Job& job, const Plan& plan) {
  constexpr std::int64_t kVector = 8;  // 16 bytes of bf16
  const ModelSpec& model = job.model;
  const MoeSpec& moe = model.moe;
  const std::array sizes = std::to_array<KernelSize>({
      {.name = "hidden", .found = model.hidden, .divisor = kVector, .most = 65536},
      {.name = "head_dim", .found = model.head_dim, .divisor = 16, .most = 256},
      {.name = "ffn / tp",
       .found = model.has_dense_layers() ? model.ffn / plan.tp : 0,
       .divisor = kVector},
      {.name = "padded vocabulary / tp",
       .found = padded_vocab(job, plan) / plan.tp,
       .divisor = kVector},
      {.name = "num_experts", .found = moe.num_experts, .most = 1024},
      {.name = "topk", .found = moe.topk, .most = 32},
      {.name = "expert_ffn / etp", .found = moe.expert_ffn / plan.etp, .divisor = kVector},
      {.name = "shared_ffn / tp", .found = moe.shared_ffn / plan.tp, .divisor = kVector},
  });
  for (const KernelSize& size : sizes) {
    if (auto reason = refusal(size)) {
      return reason;
    }
  }
  return std::nullopt;
}

}  // namespace shardplan
