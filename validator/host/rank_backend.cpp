#include "validator/host/rank_backend.h"

#include <algorithm>
#include <new>
#include <vector>

#include "validator/host/backend.h"
#include "validator/host/store_exchange.h"
#include "validator/supervise/overflow.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t arena_bytes(const Program& program) {
  return program.persistent_bytes + program.dynamic_bytes;
}

// What is free is the limit, where that is what they exceed; of the host's own nobody knows.
[[noreturn]] void fail_without_memory(const RankTask& run,
                                      const std::optional<std::int64_t>& free_bytes) {
  throw RunFailure(
      {.status = RunStatus::kOom,
       .reason = "arenas of " + std::to_string(arena_bytes(run.program)) + " bytes, " +
                 (free_bytes ? "free " + std::to_string(*free_bytes) : "more than this host has"),
       .requested_bytes = arena_bytes(run.program),
       .free_bytes = free_bytes});
}

// Two arenas, or nothing where the host has no memory for them. `begins_s` gets the clock's reading
// before every operation.
std::unique_ptr<HostBackend<double>> commit(const RankTask& run, HostExchange<double>& exchange,
                                            Progress& progress, std::vector<double>& begins_s) {
  try {
    return std::make_unique<HostBackend<double>>(
        run.program, exchange, [&progress, &begins_s](std::int64_t operation) {
          progress.at(operation);
          begins_s[static_cast<std::size_t>(operation)] = clock_s();
        });
  } catch (const std::bad_alloc&) { return nullptr; }
}

// One after the other on one thread: each ends where the next begins.
OperationTimes times_of(const std::vector<double>& begins_s, double met_s, double end_s) {
  OperationTimes times = {.host = host_of_clock(), .met_s = met_s, .origin_s = begins_s.front()};
  const std::size_t count =
      std::min(begins_s.size(), static_cast<std::size_t>(kMostOperationTimes));
  for (std::size_t i = 0; i < count; ++i) {
    times.begins_s.push_back(begins_s[i] - times.origin_s);
    times.ends_s.push_back((i + 1 < begins_s.size() ? begins_s[i + 1] : end_s) - times.origin_s);
  }
  return times;
}

RankMemory memory_of(const RankTask& run) {
  RankMemory memory;
  memory.persistent_arena = run.program.persistent_bytes;
  memory.dynamic_arena = run.program.dynamic_bytes;
  memory.device_used = arena_bytes(run.program);
  memory.device_total = run.memory_limit_bytes.value_or(0);
  return memory;
}

}  // namespace

RankResult HostRankBackend::run(const RankTask& run, Progress& progress, RunStore& store) {
  progress.enter(RunPhase::kCommit);
  HostStoreExchange<double> others(store);
  NoExchange<double> nobody;
  HostExchange<double>& exchange =
      run.simulated ? static_cast<HostExchange<double>&>(nobody) : others;
  const bool is_within =
      !run.memory_limit_bytes || arena_bytes(run.program) <= *run.memory_limit_bytes;
  std::vector<double> begins_s(run.program.operations.size());
  const auto backend = is_within ? commit(run, exchange, progress, begins_s) : nullptr;
  const bool all_have_memory = store.all_agree("commit", backend != nullptr);
  if (!backend) {
    fail_without_memory(run, is_within ? std::nullopt : run.memory_limit_bytes);
  }
  if (!all_have_memory) {
    throw RunFailure(
        {.status = RunStatus::kOom, .reason = "another rank has no memory", .is_echo = true});
  }
  progress.enter(RunPhase::kCommunicators);
  store.all_agree("communicators", true);
  progress.enter(RunPhase::kLoad);
  backend->load(initial_tensors(run.model, run.seed));
  progress.enter(RunPhase::kSteps);
  RankResult result;
  for (std::int64_t step = 0; step < run.warmup + run.steps; ++step) {
    progress.begin_step(step);
    const Clock::time_point begin = Clock::now();
    const double loss = backend->step(run.batch, run.learning_rate);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    require_rows_fit(run, store, step, backend->needed_buffer_factor());
    if (step >= run.warmup) {
      result.step_times_s.push_back(seconds);
    }
    if (step >= run.warmup && !run.simulated) {
      result.losses.push_back(loss);
      result.gradient_norms.push_back(backend->gradient_norm());
    }
  }
  if (run.is_traced) {
    progress.begin_step(run.warmup + run.steps);
    store.all_agree("traced step", true);
    const double met_s = clock_s();
    backend->step(run.batch, run.learning_rate);
    result.times = times_of(begins_s, met_s, clock_s());
  }
  progress.enter(RunPhase::kReport);
  result.memory = memory_of(run);
  return result;
}

}  // namespace shardplan
