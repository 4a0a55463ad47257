#include "estimator/frameworks/deepspeed/buckets.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

// Adds the ranks of `order` that keep more than all before them.
void add_records(std::span<const std::int64_t> kept, std::span<const std::int64_t> order,
                 std::vector<std::int64_t>& ranks) {
  std::int64_t most = 0;
  for (const std::int64_t rank : order) {
    const std::int64_t elements = kept[static_cast<std::size_t>(rank)];
    if (elements > most) {
      most = elements;
      ranks.push_back(rank);
    }
  }
}

}  // namespace

std::vector<FlatRange> deepspeed_ranges(std::span<const std::int64_t> tensors) {
  std::vector<FlatRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t elements : tensors) {
    ranges.push_back({.begin = begin, .end = begin + elements});
    begin += elements;
  }
  return ranges;
}

std::int64_t deepspeed_share(std::span<const std::int64_t> tensors, std::int64_t ranks) {
  return div_ceil(std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0}), 2 * ranks) * 2;
}

std::vector<std::int64_t> deepspeed_kept_elements(std::span<const FlatRange> tensors,
                                                  std::int64_t share, std::int64_t ranks) {
  std::vector<std::int64_t> kept(static_cast<std::size_t>(ranks), 0);
  for (const FlatRange& tensor : tensors) {
    for (std::int64_t rank = tensor.begin / share; rank * share < tensor.end; ++rank) {
      kept[static_cast<std::size_t>(rank)] += tensor.elements();
    }
  }
  return kept;
}

std::vector<std::int64_t> deepspeed_full_ranks(const Job& job, const Plan& plan) {
  constexpr std::int64_t kFew = 8;
  const std::int64_t num_ranks = dense_shard_size(job, plan);
  if (plan.zero == 3 || plan.zero == 0) {
    return {0};
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(num_ranks));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  if (num_ranks <= kFew) {
    return all;
  }
  const std::vector<std::int64_t> trained = trained_tensors(job, plan);
  const std::vector<FlatRange> tensors = deepspeed_ranges(trained);
  const std::int64_t share = deepspeed_share(trained, num_ranks);
  const std::vector<std::int64_t> kept = deepspeed_kept_elements(tensors, share, num_ranks);
  std::vector<FlatRange> large;
  for (const FlatRange& tensor : tensors) {
    if (tensor.elements() > job.profile.reduce_bucket_elements) {
      large.push_back(tensor);
    }
  }
  const std::vector<std::int64_t> of_large = deepspeed_kept_elements(large, share, num_ranks);
  std::vector<std::int64_t> small;
  std::ranges::copy_if(all, std::back_inserter(small), [&](std::int64_t rank) {
    return of_large[static_cast<std::size_t>(rank)] == 0;
  });
  std::vector<std::int64_t> ranks;
  for (std::vector<std::int64_t>* order : {&all, &small}) {
    add_records(kept, *order, ranks);
    std::ranges::reverse(*order);
    add_records(kept, *order, ranks);
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<std::int64_t> deepspeed_flat_copies(std::span<const FlatRange> tensors,
                                                std::int64_t share, std::int64_t most) {
  std::vector<std::int64_t> copies;
  std::int64_t elements = 0;
  std::int64_t runs = 0;
  std::int64_t last_rank = -1;
  const auto flush = [&] {
    if (runs > 1) {
      copies.push_back(elements);
    }
    elements = 0;
    runs = 0;
  };
  for (const FlatRange& tensor : tensors) {
    for (std::int64_t at = tensor.begin; at < tensor.end;) {
      const std::int64_t rank = at / share;
      if (rank != last_rank && elements > most) {
        flush();
      }
      const std::int64_t end = std::min(tensor.end, (rank + 1) * share);
      runs += rank != last_rank ? 1 : 0;
      elements += end - at;
      last_rank = rank;
      at = end;
    }
  }
  flush();
  return copies;
}

KernelBytes bucket_kernels(double element_bytes) {
  return {.fused = 6 * element_bytes};
}

bool overlaps_collectives(const Job& job, const Plan& plan) {
  const OverlapComm overlap = job.profile.overlap_comm;
  return overlap == OverlapComm::kOn || (overlap == OverlapComm::kDefault && plan.zero == 3);
}

// Gradients come in the reverse order of the tensors; a table that the head shares has the head's
// work before them.
ReducedBeside reduced_beside(std::span<const std::int64_t> tensors, bool ties_tables,
                             std::int64_t bucket_elements) {
  const std::int64_t table = tensors.front();
  std::int64_t bucket = 0;
  std::int64_t reduced = 0;
  std::int64_t made = ties_tables ? table : 0;
  std::int64_t made_at_first = 0;
  for (std::size_t i = tensors.size() - 1; i > 0; --i) {
    made += tensors[i];
    if (bucket > 0 && bucket + tensors[i] > bucket_elements) {
      made_at_first = reduced == 0 ? made : made_at_first;
      reduced += std::exchange(bucket, 0);
    }
    bucket += tensors[i];
  }
  if (reduced == 0) {
    return {};
  }
  const std::int64_t all = std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0});
  return {.of_elements = number(reduced) / number(all),
          .of_backward = number(made - made_at_first) / number(made)};
}

bool copies_for_overflow_check(const Job& job, const Plan& plan) {
  switch (job.profile.overflow_check) {
    case OverflowCheck::kFp16ByCopies: return plan.precision == Precision::kFp16;
    case OverflowCheck::kByCopies: return true;
    case OverflowCheck::kByExtremes: return false;
  }
  throw std::logic_error("copies_for_overflow_check: unknown check");
}

}  // namespace shardplan::deepspeed
