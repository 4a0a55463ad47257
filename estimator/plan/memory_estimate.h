// The answer about memory: rows of a ledger, moments of a step, four totals, for every pipeline
// stage.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/dtype.h"

namespace shardplan {

// The same words in estimates and in measurements.
enum class Component {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kTemporaries,
  kCommunication,
  kWorkspace,
  kContext,
};
inline constexpr std::int64_t kNumComponents = 8;
inline constexpr std::array<std::string_view, 8> kComponentNames = {
    "parameters",  "gradients",     "optimizer", "activations",
    "temporaries", "communication", "workspace", "context"};
constexpr std::string_view name_of(Component component) {
  return kComponentNames[static_cast<std::size_t>(component)];
}

// A named point of a stage's step. Rows are born at one event and die at another.
struct Event {
  std::string name;  // "forward.mlp.fc1", "optimizer_step", "start", "end"
  friend bool operator==(const Event&, const Event&) = default;
};

// What the bytes of a row rest on.
enum class Origin {
  kCounted,            // sizes of tensors: elements times dtype
  kDocumented,         // a constant of the framework's or a library's source, or of a datasheet
  kMeasured,           // on this kind of GPU
  kMeasuredElsewhere,  // on another kind of GPU, for want of a measurement
  kFitted,             // chosen so that measured totals come out
};
inline constexpr std::array<std::string_view, 5> kOriginNames = {
    "counted", "documented", "measured", "measured elsewhere", "fitted"};
constexpr std::string_view name_of(Origin origin) {
  return kOriginNames[static_cast<std::size_t>(origin)];
}

// One line of the ledger of a stage. bytes * copies is what the row adds at the peak.
struct Row {
  Component component = Component::kParameters;
  std::string name;           // "layer.dense.attention.norm_output"
  std::int64_t elements = 0;  // of one copy on this rank
  DType dtype = DType::kBf16;
  std::int64_t bytes = 0;   // of one copy, padding and alignment included
  std::int64_t copies = 0;  // alive at the peak (layers x microbatches in flight); may be 0
  Event born;
  Event dies;
  std::string formula;       // in the symbols of the documentation, with its source
  bool in_allocator = true;  // false: CUDA context, NCCL, libraries: counted in device_used only
  Origin origin = Origin::kCounted;

  std::int64_t total_bytes() const { return bytes * copies; }
};

// The maximum of allocated bytes over all events that share a name.
struct Moment {
  std::string name;  // "last warm-up forward", "loss", "first backward", "optimizer step", ...
  std::int64_t allocated_bytes = 0;
  std::string event = {};  // the event inside it: "backward.fc1", "optimizer_step"
};

struct StageMemory {
  std::int64_t pp_rank = 0;
  std::int64_t num_layers = 0;
  std::int64_t parameters = 0;  // elements on one rank before ZeRO-3 divides them
  std::vector<Row> rows;
  std::vector<Moment> moments;  // every candidate, the largest first
  std::array<std::int64_t, 8>
      components{};  // bytes at the peak by Component; allocator and outside

  std::int64_t built_bytes = 0;        // once model and optimizer are built, before step 1
  std::int64_t state_bytes = 0;        // between steps: parameters, gradients, optimizer, resident
  std::int64_t first_step_bytes = 0;   // allocated peak of step 1 (optimizer state not there yet)
  std::int64_t steady_bytes = 0;       // allocated peak of every later step
  std::int64_t allocated_bytes = 0;    // peak over all steps: the sum of the rows in the allocator
  std::int64_t reserved_bytes = 0;     // kept by the caching allocator when memory is plentiful
  std::int64_t required_bytes = 0;     // the smallest capacity at which the allocator survives
  std::int64_t outside_bytes = 0;      // context, libraries, NCCL: rows outside the allocator
  std::int64_t device_used_bytes = 0;  // reserved + outside: what the driver reports

  const std::string& peak_moment() const { return moments.front().name; }
};

// One assumption behind the answer. It decides the verdict if the other choice would turn it.
struct Assumption {
  std::string text;      // "cross-entropy: te_fused (profile default)"
  bool decides = false;  // marked in reports
};

enum class Fit { kFits, kTight, kDoesNotFit };

struct MemoryEstimate {
  std::vector<StageMemory> stages;  // one per pipeline rank
  std::int64_t worst_stage = 0;     // index of the largest device_used (allocated under fujii2024)
  Fit fit = Fit::kFits;
  std::vector<Assumption> assumptions;
  std::vector<std::string> not_counted;  // moments and tensors outside the model, by name
};

}  // namespace shardplan
