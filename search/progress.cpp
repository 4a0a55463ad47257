#include "search/progress.h"

#include <omp.h>

namespace shardplan {

ProgressReporter::ProgressReporter(const SearchOptions& options, std::int64_t plans)
    : options_(options), plans_(plans) {}

void ProgressReporter::add(std::int64_t decided, std::int64_t priced) {
  decided_ += decided;
  priced_ += priced;
  if (options_.progress && omp_get_thread_num() == 0 &&
      Clock::now() - told_ > std::chrono::milliseconds(100)) {
    tell();
  }
}

void ProgressReporter::finish() {
  if (told_ != start_) {
    tell();
  }
}

void ProgressReporter::tell() {
  told_ = Clock::now();
  options_.progress({.plans = plans_,
                     .decided = decided_,
                     .priced = priced_,
                     .seconds = std::chrono::duration<double>(told_ - start_).count()});
}

}  // namespace shardplan
