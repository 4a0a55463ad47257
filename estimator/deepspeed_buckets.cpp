// Letters: S data-parallel ranks, R the bucket's elements.
#include "estimator/deepspeed_buckets.h"

#include <algorithm>

#include "estimator/block_rows.h"
#include "estimator/units.h"

namespace shardplan {
namespace {

// Parts have `share` elements in a row.
FullestPart fullest_part(std::span<const FlatRange> tensors, std::int64_t share) {
  FullestPart fullest;
  std::size_t first = 0;
  std::size_t next = 0;
  for (std::int64_t at = 0; first < tensors.size(); at += share) {
    while (next < tensors.size() && tensors[next].begin < at + share) { ++next; }
    const std::int64_t held = tensors[next - 1].end - tensors[first].begin;
    if (held > fullest.elements) {
      fullest = {.rank = at / share, .elements = held};
    }
    while (first < next && tensors[first].end <= at + share) { ++first; }
  }
  return fullest;
}

// Of one rank's part.
std::int64_t share_elements(std::span<const FlatRange> tensors, std::int64_t ranks) {
  return div_ceil(tensors.back().end, ranks);
}

// deepspeed_tensors in the order in which a backward pass makes their gradients; a table that both
// ends use at its end.
std::vector<std::size_t> backward_order(const ModelSpec& model) {
  const std::vector<std::size_t> of_layer =
      model.qk_norm ? std::vector<std::size_t>{8, 7, 6, 10, 3, 2, 5, 1, 4, 0, 9}
                    : std::vector<std::size_t>{6, 5, 4, 8, 3, 2, 1, 0, 7};
  const std::size_t final_norm = 1 + of_layer.size() * model.layers.size();
  std::vector<std::size_t> order;
  if (!model.tied_embeddings) {
    order.push_back(final_norm + 1);
  }
  order.push_back(final_norm);
  for (std::size_t layer = model.layers.size(); layer-- > 0;) {
    for (const std::size_t i : of_layer) { order.push_back(1 + of_layer.size() * layer + i); }
  }
  order.push_back(0);
  return order;
}

struct Reduction {
  const std::vector<FlatRange>& tensors;
  std::int64_t most = 0;   // R
  std::int64_t ranks = 0;  // S
  int zero = 0;

  std::int64_t share() const { return share_elements(tensors, ranks); }
  std::int64_t flat_copy(const std::vector<std::size_t>& bucket) const;
};

// ZeRO-3 copies every bucket but one of a single tensor that ranks divide
// (reduce_scatter_coalesced).
std::int64_t Reduction::flat_copy(const std::vector<std::size_t>& bucket) const {
  std::vector<FlatRange> ranges;
  std::int64_t padded = 0;
  for (const std::size_t i : bucket) {
    ranges.push_back(tensors[i]);
    padded += round_up(tensors[i].elements(), ranks);
  }
  if (zero == 3) {
    const bool in_place = bucket.size() == 1 && padded == ranges.front().elements();
    return in_place ? 0 : padded;
  }
  std::int64_t largest = 0;
  for (const std::int64_t elements : deepspeed_flat_copies(ranges, share(), most)) {
    largest = std::max(largest, elements);
  }
  return largest;
}

// A bucket is reduced when a gradient finds no room in it, and at the end.
void set_flat_copies(const Reduction& reduction, const std::vector<std::size_t>& order,
                     DeepspeedBuckets& buckets) {
  const std::size_t head = reduction.tensors.size() - order.size();  // counts from the first
  std::vector<std::size_t> bucket;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t added = reduction.tensors[order[i]].elements();
    if (elements + added > reduction.most && !bucket.empty()) {
      std::int64_t& flat = i < 2 + head           ? buckets.flat_in_head
                           : i + 1 < order.size() ? buckets.flat_in_layers
                                                  : buckets.flat_at_end;
      flat = std::max(flat, reduction.flat_copy(bucket));
      bucket.clear();
      elements = 0;
    }
    bucket.push_back(order[i]);
    elements += added;
  }
  buckets.flat_at_end = std::max(buckets.flat_at_end, reduction.flat_copy(bucket));
}

// reduce_gradients, tensor by tensor, of a rank: gradients are freed as they are copied into the
// bucket, what the rank keeps is made when the first of it has been reduced.
std::int64_t zero1_reduction(const Reduction& reduction, std::int64_t rank,
                             std::int64_t partition) {
  const FlatRange part = {.begin = rank * reduction.share(), .end = (rank + 1) * reduction.share()};
  std::int64_t most = 0;
  std::int64_t held = 0;
  bool has_partition = false;
  std::vector<std::size_t> bucket;
  std::int64_t elements = 0;
  const auto reduce = [&] {
    most = std::max(most, held + reduction.flat_copy(bucket));
    for (const std::size_t i : bucket) {
      const FlatRange& tensor = reduction.tensors[i];
      const bool is_kept = tensor.begin < part.end && tensor.end > part.begin;
      held += is_kept && !has_partition ? partition : 0;
      has_partition = has_partition || is_kept;
      most = std::max(most, held);
      held -= is_kept && tensor.elements() > reduction.most ? tensor.elements() : 0;
    }
    bucket.clear();
    elements = 0;
  };
  for (std::size_t i = 0; i < reduction.tensors.size(); ++i) {
    const std::int64_t added = reduction.tensors[i].elements();
    if (elements + added > reduction.most) {
      reduce();
    }
    bucket.push_back(i);
    elements += added;
    held -= added <= reduction.most ? added : 0;
  }
  reduce();
  return most;
}

}  // namespace

std::vector<std::int64_t> deepspeed_layer_tensors(const ModelSpec& model) {
  const std::int64_t query = model.hidden * model.num_heads * model.head_dim;
  const std::int64_t key = model.hidden * model.num_kv_heads * model.head_dim;
  const std::int64_t ffn = model.hidden * model.ffn;
  std::vector<std::int64_t> layer = {query, key, key, query};
  if (model.qk_norm) {
    layer.insert(layer.end(), 2, model.head_dim);
  }
  layer.insert(layer.end(), {ffn, ffn, ffn, model.hidden, model.hidden});
  return layer;
}

std::vector<std::int64_t> deepspeed_tensors(const ModelSpec& model) {
  const std::vector<std::int64_t> layer = deepspeed_layer_tensors(model);
  const std::int64_t table = model.vocab * model.hidden;
  std::vector<std::int64_t> tensors = {table};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    tensors.insert(tensors.end(), layer.begin(), layer.end());
  }
  tensors.push_back(model.hidden);
  if (!model.tied_embeddings) {
    tensors.push_back(table);
  }
  return tensors;
}

std::vector<FlatRange> deepspeed_ranges(const ModelSpec& model) {
  std::vector<FlatRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t elements : deepspeed_tensors(model)) {
    ranges.push_back({.begin = begin, .end = begin + elements});
    begin += elements;
  }
  return ranges;
}

FullestPart deepspeed_fullest_part(const Job& job, const Plan& plan) {
  const std::vector<FlatRange> tensors = deepspeed_ranges(job.model);
  return fullest_part(tensors, share_elements(tensors, dense_shard_size(job, plan)));
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

bool overlaps_collectives(const Job& job, const Plan& plan) {
  const OverlapComm overlap = job.profile.overlap_comm;
  return overlap == OverlapComm::kOn || (overlap == OverlapComm::kDefault && plan.zero == 3);
}

DeepspeedBuckets deepspeed_buckets(const Job& job, const Plan& plan) {
  const std::vector<FlatRange> tensors = deepspeed_ranges(job.model);
  const Reduction reduction = {.tensors = tensors,
                               .most = job.profile.reduce_bucket_elements,
                               .ranks = dense_shard_size(job, plan),
                               .zero = static_cast<int>(plan.zero)};
  const bool has_two = overlaps_collectives(job, plan) && plan.zero < 3;
  const FullestPart fullest = fullest_part(tensors, reduction.share());
  DeepspeedBuckets buckets{
      .elements = (has_two ? 2 : 1) * reduction.most,
      .largest_tensor = std::ranges::max_element(tensors, {}, &FlatRange::elements)->elements(),
      .fills = tensors.back().end > reduction.most,
      .partition = fullest.elements};
  set_flat_copies(reduction, backward_order(job.model), buckets);
  if (plan.zero == 1) {
    buckets.reduction = std::max(zero1_reduction(reduction, 0, fullest.elements),
                                 zero1_reduction(reduction, fullest.rank, fullest.elements));
  }
  return buckets;
}

}  // namespace shardplan
