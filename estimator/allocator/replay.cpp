#include "estimator/allocator/replay.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr std::int64_t kGranularity = 2 * kMiB;  // of segments, pages and arenas
constexpr std::int64_t kArenaRounding = 256;     // of tensors in the native trainer's arenas
constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;
constexpr std::int32_t kNone = CachingAllocator::kNone;

// Events whose ids are numbers of an array.
struct Trace {
  std::span<const AllocationEvent> events;
  std::vector<AllocationEvent> renumbered;  // unless the caller's ids are so already
  std::size_t num_ids = 0;
};

Trace trace_of(std::span<const AllocationEvent> events) {
  std::int64_t largest = 0;
  bool is_dense = true;
  for (const AllocationEvent& event : events) {
    if (event.bytes < 0) {
      throw std::logic_error("replay_allocator: negative bytes");
    }
    is_dense = is_dense && event.id >= 0;
    largest = std::max(largest, event.id);
  }
  if (is_dense && largest <= std::ssize(events)) {
    return {.events = events, .renumbered = {}, .num_ids = static_cast<std::size_t>(largest) + 1};
  }
  Trace trace = {.events = {}, .renumbered = {events.begin(), events.end()}};
  std::unordered_map<std::int64_t, std::int64_t> numbers;
  for (AllocationEvent& event : trace.renumbered) {
    event.id = numbers.try_emplace(event.id, std::ssize(numbers)).first->second;
  }
  trace.events = trace.renumbered;
  trace.num_ids = numbers.size();
  return trace;
}

[[noreturn]] void refuse_event() {
  throw std::logic_error("replay_allocator: an id is allocated twice or freed while not live");
}

// A replay under way; a copy plays on by itself.
struct Replay {
  const Trace* trace = nullptr;
  CachingAllocator allocator;
  std::vector<std::int32_t> block_of;  // by id
  std::size_t next = 0;                // the event to come
  bool survives = true;

  Replay(const Trace& of, AllocatorKind kind, std::int64_t capacity)
      : trace(&of), allocator(kind, capacity), block_of(of.num_ids, kNone) {}

  bool is_over() const { return !survives || next == trace->events.size(); }
};

void allocate(Replay& replay, const AllocationEvent& event) {
  std::int32_t& block = replay.block_of[static_cast<std::size_t>(event.id)];
  if (block != kNone) {
    refuse_event();
  }
  block = replay.allocator.allocate(event.bytes, event.stream);
  replay.survives = block != kNone;
}

void free(Replay& replay, const AllocationEvent& event) {
  std::int32_t& block = replay.block_of[static_cast<std::size_t>(event.id)];
  const std::int32_t freed = block;
  if (freed == kNone) {
    refuse_event();
  }
  block = kNone;
  if (event.kind == AllocationKind::kFreeInUse) {
    replay.allocator.free_in_use(freed);
  } else {
    replay.allocator.free(freed);
  }
}

void play_event(Replay& replay) {
  const AllocationEvent& event = replay.trace->events[replay.next++];
  if (event.bytes > 0) {
    allocate(replay, event);
  } else if (event.kind == AllocationKind::kEndUses) {
    replay.allocator.end_uses();
  } else {
    free(replay, event);
  }
}

Replay played(Replay replay, std::int64_t capacity) {
  replay.allocator.limit(capacity);
  while (!replay.is_over()) { play_event(replay); }
  return replay;
}

// Bisection over capacities. A replay says more than yes or no: one that survives does the same
// with no more than it reserved, one that fails does so with all capacities below the least total
// that it was refused. And all do what the unlimited one does until that reserves more than they
// may: `common` plays this once. `reserved_bytes`: the unlimited one's after every event.
std::int64_t required_capacity(Replay common, std::int64_t allocated_bytes,
                               const std::vector<std::int64_t>& reserved_bytes,
                               std::int64_t enough_bytes) {
  std::int64_t fails = allocated_bytes / kGranularity * kGranularity - kGranularity;
  std::int64_t survives = reserved_bytes.empty() ? 0 : reserved_bytes.back();
  while (survives - fails > kGranularity && survives > enough_bytes) {
    const auto parts = std::ranges::upper_bound(reserved_bytes, fails) - reserved_bytes.begin();
    while (static_cast<std::ptrdiff_t>(common.next) < parts) { play_event(common); }
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
  std::vector<std::int64_t> live(trace.num_ids, 0);
  std::int64_t allocated = 0;
  std::int64_t peak = 0;
  for (const AllocationEvent& event : trace.events) {
    if (event.kind == AllocationKind::kEndUses) {
      continue;
    }
    std::int64_t& bytes = live[static_cast<std::size_t>(event.id)];
    if ((event.bytes > 0) != (bytes == 0)) {
      refuse_event();
    }
    allocated -= bytes;
    bytes = round_up(event.bytes, kArenaRounding);
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
  reserved_bytes.reserve(events.size());
  while (!unlimited.is_over()) {
    play_event(unlimited);
    reserved_bytes.push_back(unlimited.allocator.peak_reserved());
  }
  const std::int64_t allocated_bytes = unlimited.allocator.peak_allocated();
  const std::int64_t all_bytes = unlimited.allocator.peak_reserved();
  return {
      .allocated_bytes = allocated_bytes,
      .reserved_bytes = all_bytes,
      .required_bytes = required_capacity(start, allocated_bytes, reserved_bytes, enough_bytes)};
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
