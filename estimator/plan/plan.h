// Plan: what may be chosen. Every field is one axis of the search or a choice the user fixes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/dtype.h"
#include "estimator/plan/pipeline_schedules.h"

namespace shardplan {

enum class Precision { kFp32, kBf16, kFp16, kFp8 };
enum class CpMethod { kRing, kAllGather, kA2a };
enum class RecomputeGranularity { kNone, kSelective, kFull };
enum class RecomputeMethod { kUniform, kBlock };
enum class Dimension { kPp, kDp, kCp, kTp };

// Megatron's module names; in `selective` what is true is recomputed.
struct RecomputeModules {
  bool core_attn = false;
  bool layernorm = false;
  bool mlp = false;
  bool moe_act = false;
  bool mla_up_proj = false;
  bool moe = false;
  bool shared_experts = false;
  friend bool operator==(const RecomputeModules&, const RecomputeModules&) = default;
};

// torchtitan's selective_ac_option: "op" (matrix products in turn) and "2" (layers in turn).
inline constexpr std::array<std::string_view, 2> kRecomputePolicies = {"every_second_matmul",
                                                                       "every_second_layer"};

struct Recompute {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  RecomputeMethod method = RecomputeMethod::kUniform;  // full: groups of num_layers, or the first n
  std::int64_t num_layers = 1;    // full: per group (uniform) or per chunk (block)
  RecomputeModules modules = {};  // selective
  std::string policy = {};        // selective: one of kRecomputePolicies, in place of modules
  friend bool operator==(const Recompute&, const Recompute&) = default;
};

struct Offload {
  double optimizer = 0;  // share of the optimizer state kept in host memory
  bool activations = false;
  bool parameters = false;
  friend bool operator==(const Offload&, const Offload&) = default;
};

using RankOrder = std::array<Dimension, 4>;  // of all four, slowest first

struct Plan {
  std::int64_t tp = 1;
  std::int64_t cp = 1;
  std::int64_t ep = 1;
  std::int64_t etp = 1;
  std::int64_t pp = 1;
  std::int64_t vpp = 1;
  std::int64_t dp = 0;            // 0: derived, world / (tp * cp * pp); includes dp_replicate
  std::int64_t dp_replicate = 1;  // hybrid sharding: copies of the sharded state
  std::int64_t zero = 0;          // 0..3
  std::int64_t micro_batch = 1;   // sequences
  bool sequence_parallel = false;
  Recompute recompute = {};
  Schedule schedule = Schedule::kNone;
  std::vector<std::int64_t> layers_per_chunk = {};  // pp * vpp entries in model order; empty: even
  CpMethod cp_method = CpMethod::kRing;
  RankOrder rank_order = {Dimension::kPp, Dimension::kDp, Dimension::kCp,
                          Dimension::kTp};  // slowest to fastest
  Precision precision = Precision::kBf16;
  DType grad_dtype = DType::kFp32;    // gradients as accumulated and reduced
  DType master_dtype = DType::kFp32;  // main parameters of the optimizer
  DType exp_avg_dtype = DType::kFp32;
  DType exp_avg_sq_dtype = DType::kFp32;
  Offload offload = {};
  double moe_buffer_factor = 1;  // native: received tokens are bounded by this times T * topk
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Names as written in case lines, on the command line and in reports; one row per value.
template <class Value>
struct NamedValue {
  Value value;
  std::string_view name;
};
inline constexpr std::array<NamedValue<Precision>, 4> kPrecisions = {{
    {.value = Precision::kFp32, .name = "fp32"},
    {.value = Precision::kBf16, .name = "bf16"},
    {.value = Precision::kFp16, .name = "fp16"},
    {.value = Precision::kFp8, .name = "fp8"},
}};
inline constexpr std::array<NamedValue<CpMethod>, 3> kCpMethods = {{
    {.value = CpMethod::kRing, .name = "ring"},
    {.value = CpMethod::kAllGather, .name = "all_gather"},
    {.value = CpMethod::kA2a, .name = "a2a"},
}};
inline constexpr std::array<NamedValue<RecomputeGranularity>, 3> kRecomputeGranularities = {{
    {.value = RecomputeGranularity::kNone, .name = "none"},
    {.value = RecomputeGranularity::kSelective, .name = "selective"},
    {.value = RecomputeGranularity::kFull, .name = "full"},
}};
inline constexpr std::array<NamedValue<RecomputeMethod>, 2> kRecomputeMethods = {{
    {.value = RecomputeMethod::kUniform, .name = "uniform"},
    {.value = RecomputeMethod::kBlock, .name = "block"},
}};
inline constexpr std::array<NamedValue<Dimension>, 4> kDimensions = {{
    {.value = Dimension::kPp, .name = "pp"},
    {.value = Dimension::kDp, .name = "dp"},
    {.value = Dimension::kCp, .name = "cp"},
    {.value = Dimension::kTp, .name = "tp"},
}};
inline constexpr std::array<NamedValue<bool RecomputeModules::*>, 7> kRecomputeModules = {{
    {.value = &RecomputeModules::core_attn, .name = "core_attn"},
    {.value = &RecomputeModules::layernorm, .name = "layernorm"},
    {.value = &RecomputeModules::mlp, .name = "mlp"},
    {.value = &RecomputeModules::moe_act, .name = "moe_act"},
    {.value = &RecomputeModules::mla_up_proj, .name = "mla_up_proj"},
    {.value = &RecomputeModules::moe, .name = "moe"},
    {.value = &RecomputeModules::shared_experts, .name = "shared_experts"},
}};

// The table of a type: one overload beside each table, so that the two functions below find it.
constexpr const auto& names_of(Precision) {
  return kPrecisions;
}
constexpr const auto& names_of(Schedule) {
  return kSchedules;
}
constexpr const auto& names_of(CpMethod) {
  return kCpMethods;
}
constexpr const auto& names_of(RecomputeGranularity) {
  return kRecomputeGranularities;
}
constexpr const auto& names_of(RecomputeMethod) {
  return kRecomputeMethods;
}
constexpr const auto& names_of(Dimension) {
  return kDimensions;
}

// name_of(Schedule::k1F1B) == "1f1b"
template <class Value>
requires requires(Value value) {
  names_of(value);
}
constexpr std::string_view name_of(Value value) {
  for (const auto& row : names_of(value)) {
    if (row.value == value) {
      return row.name;
    }
  }
  throw std::logic_error("name_of: a value without a row in its table");
}

// value_of<Schedule>("1f1b") == Schedule::k1F1B; nothing for an unknown name.
template <class Value>
requires requires(Value value) {
  names_of(value);
}
constexpr std::optional<Value> value_of(std::string_view name) {
  for (const auto& row : names_of(Value{})) {
    if (row.name == name) {
      return row.value;
    }
  }
  return std::nullopt;
}

}  // namespace shardplan
