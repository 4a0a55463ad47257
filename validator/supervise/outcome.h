// How a run of one plan ended, and how a rank says so to the supervisor: as one line of plain text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/plan/measurement.h"
#include "estimator/plan/rank_grid.h"
#include "validator/supervise/operation_times.h"

namespace shardplan {

// What a rank is doing; every phase ends before the next begins. Records name it.
enum class RunPhase {
  kIdle,           // between plans
  kPlan,           // reading and lowering the plan
  kContext,        // device, CUDA context
  kCommit,         // the two arenas
  kLibraries,      // cuBLASLt, cuDNN, scratch
  kCommunicators,  // creating them
  kWarmUp,         // first use of every collective, where connections take their memory
  kGraphs,         // capture and instantiation
  kLoad,           // weights
  kSteps,          // warm-up steps and measured ones
  kReport,         // reading the results back
};
inline constexpr std::array<NamedValue<RunPhase>, 11> kRunPhases = {{
    {.value = RunPhase::kIdle, .name = "idle"},
    {.value = RunPhase::kPlan, .name = "plan"},
    {.value = RunPhase::kContext, .name = "context"},
    {.value = RunPhase::kCommit, .name = "commit"},
    {.value = RunPhase::kLibraries, .name = "libraries"},
    {.value = RunPhase::kCommunicators, .name = "communicators"},
    {.value = RunPhase::kWarmUp, .name = "warm_up"},
    {.value = RunPhase::kGraphs, .name = "graphs"},
    {.value = RunPhase::kLoad, .name = "load"},
    {.value = RunPhase::kSteps, .name = "steps"},
    {.value = RunPhase::kReport, .name = "report"},
}};
constexpr const auto& names_of(RunPhase) {
  return kRunPhases;
}

// What a rank's device holds after the last step, bytes. Their sum is device_used: unattributed is
// what is left, and may be negative.
struct GroupBytes {
  GroupKind kind = GroupKind::kTp;
  std::int64_t bytes = 0;
};
struct RankMemory {
  std::int64_t persistent_arena = 0;
  std::int64_t dynamic_arena = 0;
  std::int64_t context = 0;        // the CUDA context as this process first made it
  std::int64_t libraries = 0;      // handles, modules, scratch beside the arenas, graphs
  std::int64_t communicators = 0;  // NCCL, of this plan
  std::int64_t growth = 0;         // what earlier plans of this process have left on the device
  std::int64_t unattributed = 0;
  std::int64_t device_used = 0;         // what the driver says, of the whole device
  std::int64_t device_total = 0;        // the memory limit, where one was given
  std::vector<GroupBytes> groups = {};  // communicators by kind of group
};

struct RankResult {
  std::vector<double> losses = {};  // this rank's share of the mean loss, by measured step; empty
                                    // for a simulated rank
  std::vector<double> gradient_norms = {};  // of all gradients, before they were clipped; likewise
  std::vector<double> step_times_s = {};    // of the measured steps, in order
  RankMemory memory = {};
  std::int64_t device = 0;     // its process among those of its host, filled in by the worker
  std::string machine = {};    // GPU, driver and library versions, one line; empty: not known
  std::string attention = {};  // what it ran on: "cuDNN 9.19.0", "own kernels: " and why; empty: on
                               // the host
  std::string products = {};   // "204 of 204 on measured algorithms"; empty: on the host
  std::optional<OperationTimes> times = std::nullopt;  // of a traced step
};

// Thrown by a backend for an outcome of the run; nothing else is one. After it the process either
// serves the next plan (kKept: everything of this plan was released) or must be replaced (kLost: a
// sticky error, a communicator that hangs).
enum class ProcessState { kKept, kLost };
struct Failure {
  RunStatus status = RunStatus::kCrash;
  std::string reason = {};  // one line
  ProcessState process = ProcessState::kKept;
  std::optional<std::int64_t> requested_bytes = std::nullopt;  // kOom
  std::optional<std::int64_t> free_bytes = std::nullopt;       // kOom
  std::optional<double> needed_factor = std::nullopt;          // kMoeOverflow
  bool is_echo = false;  // another rank failed first: this one only stopped
};
class RunFailure : public std::runtime_error {
 public:
  explicit RunFailure(Failure failure)
      : std::runtime_error(failure.reason), failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

// "tp", "dense_shard": as records name a kind of group.
std::string_view name_of(GroupKind kind);

// One line without tabs' or line ends' meaning being lost; the reader throws std::invalid_argument
// for what the writer never writes.
std::string text_of(const RankResult& result);
RankResult result_of(const std::string& text);
std::string text_of(const Failure& failure);
Failure failure_of(const std::string& text);

}  // namespace shardplan
