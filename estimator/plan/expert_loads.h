// How many rows of tokens the routers of a rank's layers send to its experts: even in the mean, by
// chance more or fewer in every layer of every microbatch. Tensors of these rows then have sizes
// that no block in the allocator's cache has, which is what it reserves beyond even loads, and the
// fullest rank of a layer keeps the others waiting.
#pragma once

#include <cstddef>
#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan {

// Standard deviation over the mean of the rows that a rank's experts get: what chance alone gives,
// every token choosing any expert as likely, or the framework's (ExpertRows), if that is more; 0
// where all ranks get the same number.
double load_spread(const Job& job, const Plan& plan);

// Rows over their mean that the fullest of a layer's ep ranks gets, for which the others wait:
// the framework's imbalance, and what the largest of so many normal loads of that spread has beyond
// it.
double fullest_load(const Job& job, const Plan& plan);

// Of that many independent standard normal numbers, the expected largest; 0 of one, and of more
// than 1024 as of those.
double expected_largest_normal(std::int64_t count);

// Loads over their mean. The same ones whenever they are asked for again.
class ExpertLoads {
 public:
  ExpertLoads() = default;  // even
  // Of the `pass`th microbatch and chunk that a rank runs.
  ExpertLoads(double spread, std::int64_t rank, std::int64_t pass);

  bool is_even() const { return spread_ == 0; }
  double load(std::size_t block) const;  // of a chunk's

 private:
  double spread_ = 0;
  std::uint64_t key_ = 0;
};

}  // namespace shardplan
