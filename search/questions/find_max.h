// The largest micro-batch or sequence length with which a plan still fits.
#pragma once

#include <cstdint>
#include <optional>

#include "search/walk/search.h"

namespace shardplan {

enum class FindMaxAxis {
  kMicroBatch,               // the number of microbatches stays, the global batch follows
  kMicroBatchOfGlobalBatch,  // the global batch stays: the values that divide a rank's share of it
  kSequenceLength,           // in steps of what the plan divides it by
};

// A value of the axis with the job and the plan that have it.
struct SizedPlan {
  std::int64_t value = 0;
  Job job;
  Plan plan;
};

struct FindMaxResult {
  std::optional<SizedPlan> largest;  // fits; nothing if the smallest value does not
  std::optional<SizedPlan> next;     // the value after it, which does not; nothing at the cap
  std::int64_t step = 1;             // between neighbouring values that are valid; the smallest one
};

// The plan must be valid as it stands (else logic_error); its own value of the axis does not
// matter. Allocated bytes grow with the axis, so that a bisection finds the boundary. What the
// allocator reserves or requires can fall where the axis grows: under such a basis the answer fits
// and the value after it does not, but a larger one may. Under a fixed global batch larger
// micro-batches mean fewer of them in flight, so every value is tried and `next` is the first
// beyond the largest that fits.
FindMaxResult find_max(const Job& job, const Plan& plan, FindMaxAxis axis,
                       const SearchOptions& options);

}  // namespace shardplan
