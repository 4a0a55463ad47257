// What runs one rank's program in a process of its own, on the host or on a GPU. A worker holds one
// backend and gives it one plan after another.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "estimator/plan/model_spec.h"
#include "validator/program/program.h"
#include "validator/program/run_data.h"
#include "validator/supervise/outcome.h"
#include "validator/supervise/progress.h"

namespace shardplan {

// The key-value store of one run: keys of other runs cannot be seen. Every wait ends with a
// RunFailure (an echo) when must_abort() turns true, or when the store is gone.
class RunStore {
 public:
  virtual ~RunStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;  // waits until somebody has set it
  virtual void erase(const std::string& key) = 0;
  // All ranks of the run call this at the end of a phase that may fail on some of them; true if all
  // of them said true. So nobody enters a collective call that a failed rank will never join.
  virtual bool all_agree(const std::string& phase, bool mine) = 0;
};

enum class RunPrecision {
  kAsPlanned,
  kFloat,  // fp32 wherever the plan has bf16, at twice the bytes
};
enum class InitialWeights {
  kFast,       // any random values of the usual size, norms one
  kReference,  // initial_tensors(model, seed): the same numbers for every layout and backend
};

struct RankTask {
  Program program;  // of this rank
  ModelSpec model;
  std::int64_t world_size = 1;  // ranks of the plan
  Batch batch = {};             // the global batch, the same for every step
  std::int64_t warmup = 3;
  std::int64_t steps = 10;
  double learning_rate = 1e-4;
  std::uint64_t seed = 1;
  RunPrecision precision = RunPrecision::kAsPlanned;
  InitialWeights weights = InitialWeights::kFast;
  // Collectives move nothing and no communicator is made: one rank of a large plan, alone.
  bool simulated = false;
  std::optional<std::int64_t> memory_limit_bytes = std::nullopt;  // of the device, as if it had no
                                                                  // more
  bool is_traced = false;  // after the measured steps one more, whose operations are timed
};

class RankBackend {
 public:
  virtual ~RankBackend() = default;
  // Runs warm-up and measured steps and releases everything of this plan. Throws RunFailure for
  // outcomes; any other exception is a crash of this rank and costs the process.
  //   kOom        in kCommit, kLibraries, kCommunicators or kWarmUp, with the bytes asked for and
  //               free where they are known
  //   kNcclError  a communicator failed
  //   kMoeOverflow with the factor that would have been needed; see overflow.h
  //   kCrash      a sticky CUDA error
  virtual RankResult run(const RankTask& run, Progress& progress, RunStore& store) = 0;
};

}  // namespace shardplan
