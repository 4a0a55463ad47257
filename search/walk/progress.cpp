#include "search/walk/progress.h"

namespace shardplan {

ProgressReporter::ProgressReporter(const SearchOptions& options, std::int64_t plans,
                                   std::int64_t to_estimate)
    : options_(options), plans_(plans), to_estimate_(to_estimate) {}

void ProgressReporter::add(std::int64_t decided, std::int64_t priced) {
  decided_ += decided;
  priced_ += priced;
  tell_now_and_then();
}

void ProgressReporter::set_estimated(std::int64_t plans) {
  estimated_ = plans;
  tell_now_and_then();
}

void ProgressReporter::finish() {
  estimated_ = to_estimate_;
  if (told_ != start_) {
    tell();
  }
}

void ProgressReporter::tell_now_and_then() {
  if (!options_.progress) {
    return;
  }
  const std::unique_lock telling(telling_, std::try_to_lock);
  if (telling && Clock::now() - told_ > std::chrono::milliseconds(100)) {
    tell();
  }
}

void ProgressReporter::tell() {
  told_ = Clock::now();
  options_.progress({.plans = plans_,
                     .decided = decided_,
                     .priced = priced_,
                     .seconds = std::chrono::duration<double>(told_ - start_).count(),
                     .estimated = estimated_,
                     .to_estimate = to_estimate_});
}

}  // namespace shardplan
