#include "estimator/frameworks/pieces/eager/offload.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::eager {
namespace {

constexpr std::int64_t kLeastBytes = 1024;  // min_offload_size
constexpr std::int64_t kMostLeaving = 5;    // max_fwd_stash_size

// Page-locked blocks of the host are powers of two (CachingHostAllocator.h, allocate).
std::int64_t host_block(std::int64_t bytes) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

Tensor copy_for_host(Graph& graph, const Tensor& tensor) {
  if (!tensor.is_strided) {
    return tensor.detached();
  }
  const InRow row(graph.tape, kLaidOutRow);
  return graph.make(tensor.elements, tensor.dtype);
}

}  // namespace

HostTensors::Packed::~Packed() {
  if (!kept.is_defined()) {
    owner->bytes_ -= host_block(elements * bytes_of(dtype));
  }
}

// A parameter itself, or a view of one; a tensor of few bytes; one whose copy is on its way.
bool HostTensors::stays(const Tensor& tensor) const {
  if (tensor.storage == nullptr || tensor.bytes() < kLeastBytes) {
    return true;
  }
  if (tensor.storage->is_parameter) {
    return spares_weights_ || !tensor.is_strided;
  }
  return has_stream_ && tracked_.contains(tensor.storage);
}

// Those that were saved long enough ago are on the host by now.
void HostTensors::let_go(std::int64_t before) {
  while (!leaving_.empty() && leaving_.front().id <= before) {
    const auto found = tracked_.find(leaving_.front().storage);
    if (found != tracked_.end() && found->second == leaving_.front().id) {
      tracked_.erase(found);
    }
    leaving_.pop_front();
  }
}

std::shared_ptr<void> HostTensors::pack(const Tensor& tensor) {
  auto packed = std::make_shared<Packed>();
  packed->owner = this;
  packed->id = ++last_id_;
  packed->elements = tensor.elements;
  packed->dtype = tensor.dtype;
  if (stays(tensor)) {
    packed->kept = tensor.detached();
    if (const auto found = tracked_.find(tensor.storage); found != tracked_.end()) {
      found->second = packed->id;
    }
    return packed;
  }
  bytes_ += host_block(tensor.bytes());
  most_bytes_ = std::max(most_bytes_, bytes_);
  Tensor leaving = copy_for_host(graph_, tensor);
  if (has_stream_) {
    let_go(packed->id - kMostLeaving);
    leaving_.push_back({packed->id, std::move(leaving), tensor.storage});
    tracked_[tensor.storage] = packed->id;
  }
  return packed;
}

// The first tensor that an operator brings back lets those of the operator before it go, once it
// has run; a tensor that somebody else holds by then is theirs.
Tensor HostTensors::bring_back(const Packed& packed) {
  std::vector<std::int64_t> before;
  if (graph_.running_node != node_) {
    node_ = graph_.running_node;
    for (const auto& [id, tensor] : back_) { before.push_back(id); }
  }
  const auto leaving = std::ranges::find(leaving_, packed.id, &Leaving::id);
  const bool is_here = leaving != leaving_.end();
  Tensor tensor;
  if (is_here) {
    tensor = leaving->tensor;
  } else {
    const InRow row(graph_.tape, kBroughtBackRow);
    tensor = graph_.make(packed.elements, packed.dtype, AllocationStream::kGather);
    back_[packed.id] = tensor;
  }
  graph_.behind_node.push_back([this, id = packed.id, before = std::move(before)] {
    const auto found = back_.find(id);
    if (found != back_.end() && found->second.storage.use_count() > 1) {
      back_.erase(found);
    }
    let_go(last_id_);
    for (const std::int64_t each : before) { back_.erase(each); }
  });
  return tensor;
}

Tensor HostTensors::unpack(const std::shared_ptr<void>& packed) {
  const Packed& saved = *static_cast<const Packed*>(packed.get());
  if (saved.kept.is_defined()) {
    return saved.kept;
  }
  if (has_stream_) {
    return bring_back(saved);
  }
  const InRow row(graph_.tape, kBroughtBackRow);
  return graph_.make(saved.elements, saved.dtype);
}

void HostTensors::clear() {
  back_.clear();
  leaving_.clear();
  tracked_.clear();
  node_ = 0;
  last_id_ = 0;
}

std::shared_ptr<void> StayingTensors::pack(const Tensor& tensor) {
  return std::make_shared<Tensor>(tensor.detached());
}

Tensor StayingTensors::unpack(const std::shared_ptr<void>& packed) {
  return *static_cast<const Tensor*>(packed.get());
}

}  // namespace shardplan::eager
