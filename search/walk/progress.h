// Tells a caller how far a search is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "search/walk/search.h"

namespace shardplan {

// At most ten times a second, and never twice at once.
class ProgressReporter {
 public:
  // `plans`: to decide in all. `to_estimate`: plans to show, where those are decided already.
  ProgressReporter(const SearchOptions& options, std::int64_t plans, std::int64_t to_estimate = 0);
  // From any thread.
  void add(std::int64_t decided, std::int64_t priced);
  // So many of the plans to show have been estimated.
  void set_estimated(std::int64_t plans);
  // Once more at the end, where anything was told.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void tell_now_and_then();
  void tell();

  const SearchOptions& options_;
  const std::int64_t plans_;
  const std::int64_t to_estimate_;
  const Clock::time_point start_ = Clock::now();
  std::mutex telling_;
  Clock::time_point told_ = start_;
  std::atomic<std::int64_t> decided_ = 0;
  std::atomic<std::int64_t> priced_ = 0;
  std::atomic<std::int64_t> estimated_ = 0;
};

}  // namespace shardplan
