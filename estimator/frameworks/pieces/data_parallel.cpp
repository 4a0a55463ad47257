#include "estimator/frameworks/pieces/data_parallel.h"

#include "estimator/time/overlap_time.h"

namespace shardplan {

std::vector<std::int64_t> rebuilt_buckets(std::span<const std::int64_t> gradients,
                                          std::int64_t least) {
  std::vector<std::int64_t> buckets;
  std::int64_t open = 0;
  for (const std::int64_t bytes : gradients) {
    open += bytes;
    if (open >= least) {
      buckets.push_back(open);
      open = 0;
    }
  }
  if (open > 0) {
    buckets.push_back(open);
  }
  return buckets;
}

double visible_reduction_s(const RankUpdate& update, const MicrobatchWork& work,
                           double last_share) {
  return beside_compute_s((1 - last_share) * update.all_reduce, work.backward_s) +
         last_share * update.all_reduce.alone_s + update.reduce_copies_s;
}

}  // namespace shardplan
