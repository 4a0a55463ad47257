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

// A replay under way; a copy plays on by itself.
struct Replay {
  const Trace* trace = nullptr;
  CachingAllocator allocator;
  std::vector<std::int32_t> block_of;  // by slot
  std::size_t next = 0;                // the step to come
  bool survives = true;

  Replay(const Trace& of, AllocatorKind kind, std::int64_t capacity)
      : trace(&of),
        allocator(kind, capacity),
        block_of(static_cast<std::size_t>(of.num_slots), kNone) {}

  bool is_over() const { return !survives || next == trace->steps.size(); }
};

void play_step(Replay& replay) {
  const Step& step = replay.trace->steps[replay.next++];
  CachingAllocator& allocator = replay.allocator;
  if (step.kind == AllocationKind::kEndUses) {
    allocator.end_uses();
    return;
  }
  std::int32_t& block = replay.block_of[static_cast<std::size_t>(step.slot)];
  if (step.bytes > 0) {
    block = allocator.allocate(step.bytes, step.stream);
    replay.survives = block != kNone;
  } else if (step.kind == AllocationKind::kFreeInUse) {
    allocator.free_in_use(block);
  } else {
    allocator.free(block);
  }
}

Replay played(Replay replay, std::int64_t capacity) {
  replay.allocator.limit(capacity);
  while (!replay.is_over()) { play_step(replay); }
  return replay;
}

// Bisection over capacities. A replay says more than yes or no: one that survives does the same
// with no more than it reserved, one that fails does so with all capacities below the least total
// that it was refused. And all do what the unlimited one does until that reserves more than they
// may: `common` plays this once. `reserved_bytes`: the unlimited one's after every step.
std::int64_t required_capacity(Replay common, std::int64_t allocated_bytes,
                               const std::vector<std::int64_t>& reserved_bytes) {
  std::int64_t fails = allocated_bytes / kGranularity * kGranularity - kGranularity;
  std::int64_t survives = reserved_bytes.empty() ? 0 : reserved_bytes.back();
  while (survives - fails > kGranularity) {
    const auto parts = std::ranges::upper_bound(reserved_bytes, fails) - reserved_bytes.begin();
    while (static_cast<std::ptrdiff_t>(common.next) < parts) { play_step(common); }
    const std::int64_t middle = round_up(fails + (survives - fails) / 2, kGranularity);
    const Replay limited = played(common, middle);
    if (limited.survives) {
      survives = limited.allocator.peak_reserved();
    } else {
      fails = std::max(middle, limited.allocator.smallest_refused() - kGranularity);
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

AllocatorPeaks replay_allocator(std::span<const AllocationEvent> events, AllocatorKind kind,
                                std::int64_t enough_bytes) {
  const Trace trace = trace_of(events);
  if (kind == AllocatorKind::kStaticArenas) {
    return replay_arenas(trace);
  }
  const Replay start(trace, kind, kUnlimited);
  Replay unlimited = start;
  std::vector<std::int64_t> reserved_bytes;
  reserved_bytes.reserve(trace.steps.size());
  while (!unlimited.is_over()) {
    play_step(unlimited);
    reserved_bytes.push_back(unlimited.allocator.peak_reserved());
  }
  const std::int64_t allocated_bytes = unlimited.allocator.peak_allocated();
  const std::int64_t all_bytes = unlimited.allocator.peak_reserved();
  return {.allocated_bytes = allocated_bytes,
          .reserved_bytes = all_bytes,
          .required_bytes = all_bytes <= enough_bytes
                                ? all_bytes
                                : required_capacity(start, allocated_bytes, reserved_bytes)};
}

CapacityReplay replay_at_capacity(std::span<const AllocationEvent> events, AllocatorKind kind,
                                  std::int64_t capacity_bytes) {
  const Trace trace = trace_of(events);
  if (kind == AllocatorKind::kStaticArenas) {
    const std::int64_t arena = replay_arenas(trace).reserved_bytes;
    return arena <= capacity_bytes
               ? CapacityReplay{.outcome = CapacityOutcome::kPlentiful,
                                .from_bytes = arena,
                                .below_bytes = kUnlimited}
               : CapacityReplay{.outcome = CapacityOutcome::kFails, .below_bytes = arena};
  }
  const Replay limited = played(Replay(trace, kind, capacity_bytes), capacity_bytes);
  CapacityReplay replay = {.from_bytes = limited.allocator.peak_reserved(),
                           .below_bytes = limited.allocator.smallest_refused()};
  if (limited.survives) {
    replay.outcome =
        replay.below_bytes >= kUnlimited ? CapacityOutcome::kPlentiful : CapacityOutcome::kReleases;
  }
  return replay;
}

}  // namespace shardplan
