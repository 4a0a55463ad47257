#include "estimator/allocator_replay.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "estimator/caching_allocator.h"
#include "estimator/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kGranularity = 2 * kMiB;  // of segments, pages and arenas
constexpr std::int64_t kArenaRounding = 256;     // of tensors in the native trainer's arenas
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
constexpr std::int32_t kNone = CachingAllocator::kNone;

// An event with the caller's id replaced by a slot number, so that replays look nothing up.
struct Step {
  std::int32_t slot = 0;
  std::int64_t bytes = 0;  // 0: free
  AllocationStream stream = AllocationStream::kCompute;
  AllocationKind kind = AllocationKind::kUsual;
};

struct Trace {
  std::vector<Step> steps;
  std::int32_t num_slots = 0;
};

// Slot of every live id. Callers that number their tensors from 0 or 1 on get an array.
class SlotTable {
 public:
  explicit SlotTable(std::span<const AllocationEvent> events) {
    std::int64_t largest = 0;
    bool is_dense = true;
    for (const AllocationEvent& event : events) {
      is_dense = is_dense && event.id >= 0;
      largest = std::max(largest, event.id);
    }
    if (is_dense && largest <= std::ssize(events)) {
      array_.assign(static_cast<std::size_t>(largest) + 1, kNone);
    }
  }

  std::int32_t& operator[](std::int64_t id) {
    return array_.empty() ? map_.try_emplace(id, kNone).first->second
                          : array_[static_cast<std::size_t>(id)];
  }

 private:
  std::vector<std::int32_t> array_;
  std::unordered_map<std::int64_t, std::int32_t> map_;
};

Trace trace_of(std::span<const AllocationEvent> events) {
  Trace trace;
  trace.steps.reserve(events.size());
  SlotTable slots(events);
  std::vector<std::int32_t> unused;
  for (const AllocationEvent& event : events) {
    if (event.bytes < 0) {
      throw std::logic_error("replay_allocator: negative bytes");
    }
    if (event.kind == AllocationKind::kEndUses) {
      trace.steps.push_back({.kind = event.kind});
      continue;
    }
    std::int32_t& slot = slots[event.id];
    if ((event.bytes == 0) == (slot == kNone)) {
      throw std::logic_error("replay_allocator: an id is allocated twice or freed while not live");
    }
    if (event.bytes == 0) {
      trace.steps.push_back({.slot = slot, .bytes = 0, .stream = event.stream, .kind = event.kind});
      unused.push_back(slot);
      slot = kNone;
      continue;
    }
    if (unused.empty()) {
      unused.push_back(trace.num_slots++);
    }
    slot = unused.back();
    trace.steps.push_back({.slot = slot, .bytes = event.bytes, .stream = event.stream});
    unused.pop_back();
  }
  return trace;
}

struct Replay {
  bool survives = true;
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
  std::int64_t smallest_refused_bytes = kUnlimited;
};

Replay replay(const Trace& trace, AllocatorKind kind, std::int64_t capacity) {
  CachingAllocator allocator(kind, capacity);
  std::vector<std::int32_t> block_of(static_cast<std::size_t>(trace.num_slots), kNone);
  bool survives = true;
  for (const Step& step : trace.steps) {
    std::int32_t& block = block_of[static_cast<std::size_t>(step.slot)];
    if (step.kind == AllocationKind::kEndUses) {
      allocator.end_uses();
      continue;
    }
    if (step.bytes == 0 && step.kind == AllocationKind::kFreeInUse) {
      allocator.free_in_use(block);
      continue;
    }
    if (step.bytes == 0) {
      allocator.free(block);
      continue;
    }
    block = allocator.allocate(step.bytes, step.stream);
    if (block == kNone) {
      survives = false;
      break;
    }
  }
  return {.survives = survives,
          .allocated_bytes = allocator.peak_allocated(),
          .reserved_bytes = allocator.peak_reserved(),
          .smallest_refused_bytes = allocator.smallest_refused()};
}

// Bisection over capacities. A replay says more than yes or no: one that survives does the same
// with no more than it reserved, one that fails does so with all capacities below the least total
// that it was refused.
std::int64_t required_capacity(const Trace& trace, AllocatorKind kind, const Replay& unlimited) {
  std::int64_t fails = unlimited.allocated_bytes / kGranularity * kGranularity - kGranularity;
  std::int64_t survives = unlimited.reserved_bytes;
  while (survives - fails > kGranularity) {
    const std::int64_t middle = round_up(fails + (survives - fails) / 2, kGranularity);
    const Replay limited = replay(trace, kind, middle);
    if (limited.survives) {
      survives = limited.reserved_bytes;
    } else {
      fails = std::max(middle, limited.smallest_refused_bytes - kGranularity);
    }
  }
  return survives;
}

AllocatorPeaks replay_arenas(const Trace& trace) {
  std::vector<std::int64_t> live(static_cast<std::size_t>(trace.num_slots), 0);
  std::int64_t allocated = 0;
  std::int64_t peak = 0;
  for (const Step& step : trace.steps) {
    if (step.kind == AllocationKind::kEndUses) {
      continue;
    }
    std::int64_t& bytes = live[static_cast<std::size_t>(step.slot)];
    allocated -= bytes;
    bytes = round_up(step.bytes, kArenaRounding);
    allocated += bytes;
    peak = std::max(peak, allocated);
  }
  const std::int64_t arena = round_up(peak, kGranularity);
  return {.allocated_bytes = peak, .reserved_bytes = arena, .required_bytes = arena};
}

}  // namespace

AllocatorPeaks replay_allocator(std::span<const AllocationEvent> events, AllocatorKind kind) {
  const Trace trace = trace_of(events);
  if (kind == AllocatorKind::kStaticArenas) {
    return replay_arenas(trace);
  }
  const Replay unlimited = replay(trace, kind, kUnlimited);
  return {.allocated_bytes = unlimited.allocated_bytes,
          .reserved_bytes = unlimited.reserved_bytes,
          .required_bytes = required_capacity(trace, kind, unlimited)};
}

CapacityOutcome replay_at_capacity(std::span<const AllocationEvent> events, AllocatorKind kind,
                                   std::int64_t capacity_bytes) {
  const Trace trace = trace_of(events);
  if (kind == AllocatorKind::kStaticArenas) {
    return replay_arenas(trace).reserved_bytes <= capacity_bytes ? CapacityOutcome::kPlentiful
                                                                 : CapacityOutcome::kFails;
  }
  const Replay limited = replay(trace, kind, capacity_bytes);
  if (!limited.survives) {
    return CapacityOutcome::kFails;
  }
  return limited.smallest_refused_bytes >= kUnlimited ? CapacityOutcome::kPlentiful
                                                      : CapacityOutcome::kReleases;
}

}  // namespace shardplan
