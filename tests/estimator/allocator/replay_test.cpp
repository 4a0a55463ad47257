#include "estimator/allocator/replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "estimator/plan/units.h"

using namespace shardplan;

namespace {

using Events = std::vector<AllocationEvent>;
constexpr AllocatorKind kBoth[] = {AllocatorKind::kCaching, AllocatorKind::kCachingExpandable};

AllocatorPeaks caching(const Events& events) {
  return replay_allocator(events, AllocatorKind::kCaching);
}
AllocatorPeaks expandable(const Events& events) {
  return replay_allocator(events, AllocatorKind::kCachingExpandable);
}

// A measured trace: one line of data/measured/allocator/traces.jsonl.
struct MeasuredTrace {
  std::string name;
  AllocatorKind kind = AllocatorKind::kCaching;
  AllocatorPeaks peaks;
  Events events;
};

std::int64_t number_after(const std::string& line, const std::string& key) {
  return std::stoll(line.substr(line.find("\"" + key + "\":") + key.size() + 3));
}

std::vector<MeasuredTrace> measured_traces() {
  std::ifstream file(SHARDPLAN_SOURCE_DIR "/data/measured/allocator/traces.jsonl");
  std::vector<MeasuredTrace> traces;
  for (std::string line; std::getline(file, line);) {
    MeasuredTrace trace;
    const std::size_t name = line.find("\"trace\":\"") + 9;
    trace.name = line.substr(name, line.find('"', name) - name);
    trace.kind = line.find("\"caching_expandable\"") == std::string::npos
                     ? AllocatorKind::kCaching
                     : AllocatorKind::kCachingExpandable;
    trace.peaks = {.allocated_bytes = number_after(line, "allocated"),
                   .reserved_bytes = number_after(line, "reserved"),
                   .required_bytes = number_after(line, "required")};
    const char* at = line.c_str() + line.find("\"events\":[") + 9;
    while (*at == '[' || *at == ',') {
      char* end = nullptr;
      ++at;
      const std::int64_t id = std::strtoll(*at == '[' ? at + 1 : at, &end, 10);
      const std::int64_t bytes = std::strtoll(end + 1, &end, 10);
      trace.events.push_back({.id = id, .bytes = bytes});
      at = end + 1;
    }
    traces.push_back(std::move(trace));
  }
  return traces;
}

Events random_events(std::mt19937_64& random, std::int64_t largest) {
  Events events;
  std::vector<std::int64_t> live;
  for (std::int64_t id = 0; id < 120; ++id) {
    if (!live.empty() && random() % 5 < 2) {
      const std::size_t victim = random() % live.size();
      events.push_back({.id = live[victim], .bytes = 0});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      const std::int64_t bytes = static_cast<std::int64_t>(random() >> 2) % largest;
      events.push_back({.id = id, .bytes = 1 + (bytes >> random() % 16)});
      live.push_back(id);
    }
  }
  return events;
}

}  // namespace

TEST_CASE("the replay gives PyTorch's measured peaks to the byte") {
  const std::vector<MeasuredTrace> traces = measured_traces();
  REQUIRE(traces.size() == 24);
  for (const MeasuredTrace& trace : traces) {
    CAPTURE(trace.name);
    REQUIRE(trace.events.size() > 500);
    const AllocatorPeaks peaks = replay_allocator(trace.events, trace.kind);
    CHECK(peaks.allocated_bytes == trace.peaks.allocated_bytes);
    CHECK(peaks.reserved_bytes == trace.peaks.reserved_bytes);
    if (trace.kind == AllocatorKind::kCaching) {
      CHECK(peaks.required_bytes == trace.peaks.required_bytes);
    } else {
      // The measured limit (set_per_process_memory_fraction) looks at the request before pages are
      // mapped; a full GPU refuses pages. They differ by a few pages of 20 MiB.
      CHECK(std::abs(peaks.required_bytes - trace.peaks.required_bytes) <= 60 * kMiB);
    }
  }
}

TEST_CASE("sizes round up to 512 bytes and requests up to 1 MiB share segments of 2 MiB") {
  CHECK(caching({{0, 1}}).allocated_bytes == 512);
  CHECK(caching({{0, 513}}).allocated_bytes == 1024);
  CHECK(caching({{0, 1}}).reserved_bytes == 2 * kMiB);
  CHECK(caching({{0, kMiB}, {1, kMiB}}).reserved_bytes == 2 * kMiB);
  CHECK(caching({{0, kMiB}, {1, kMiB}, {2, 1}}).reserved_bytes == 4 * kMiB);
}

TEST_CASE("requests above 1 MiB take 20 MiB segments, from 10 MiB on segments of their own") {
  CHECK(caching({{0, kMiB + 1}}).reserved_bytes == 20 * kMiB);
  CHECK(caching({{0, kMiB + 1}}).allocated_bytes == kMiB + 512);
  CHECK(caching({{0, 10 * kMiB - 512}, {1, 10 * kMiB - 512}}).reserved_bytes == 20 * kMiB);
  CHECK(caching({{0, 10 * kMiB}}).reserved_bytes == 10 * kMiB);
  CHECK(caching({{0, 10 * kMiB + 1}}).reserved_bytes == 12 * kMiB);
}

TEST_CASE(
    "a rest of 1 MiB or less stays with a large block, a rest of 512 bytes leaves a small one") {
  // 11 MiB from a free block of 12 MiB: the rest of 1 MiB is not split off and counts as allocated.
  const Events tight = {{0, 12 * kMiB}, {0, 0}, {1, 11 * kMiB}};
  CHECK(caching({tight.begin(), tight.end()}).allocated_bytes == 12 * kMiB);
  const Events loose = {{0, 14 * kMiB}, {0, 0}, {1, 11 * kMiB}, {2, 3 * kMiB}};
  CHECK(caching(loose).allocated_bytes == 14 * kMiB);
  CHECK(caching(loose).reserved_bytes == 14 * kMiB);
  // Small pool: 1 MiB - 512 leaves exactly 512 bytes of a freed MiB.
  const Events small = {{0, kMiB}, {1, kMiB}, {0, 0}, {2, kMiB - 512}, {3, 512}};
  CHECK(caching(small).reserved_bytes == 2 * kMiB);
  // Expandable segments split off any rest of 512 bytes.
  CHECK(expandable(tight).allocated_bytes == 12 * kMiB);
  CHECK(expandable({{0, 12 * kMiB}, {0, 0}, {1, 11 * kMiB}, {2, kMiB + 512}}).allocated_bytes ==
        12 * kMiB + 512);
}

TEST_CASE("the smallest free block that fits is taken") {
  // Free blocks of 40 and 24 MiB; 22 MiB goes into the 24, so that 40 still fits.
  const Events events = {{0, 40 * kMiB}, {1, 24 * kMiB}, {0, 0}, {1, 0},
                         {2, 22 * kMiB}, {3, 40 * kMiB}, {2, 0}, {3, 0}};
  CHECK(caching(events).reserved_bytes == 64 * kMiB);
}

TEST_CASE("freed neighbours merge, whichever is freed first") {
  for (const bool first_before_second : {true, false}) {
    const std::int64_t first = first_before_second ? 1 : 2;
    const Events events = {{0, 60 * kMiB}, {0, 0},         {1, 30 * kMiB}, {2, 30 * kMiB},
                           {first, 0},     {3 - first, 0}, {3, 60 * kMiB}};
    CHECK(caching(events).reserved_bytes == 60 * kMiB);
  }
}

TEST_CASE("blocks of different segments never merge, and are given back when memory runs out") {
  const Events events = {{0, 30 * kMiB}, {1, 30 * kMiB}, {0, 0}, {1, 0}, {2, 60 * kMiB}};
  const AllocatorPeaks peaks = caching(events);
  CHECK(peaks.allocated_bytes == 60 * kMiB);
  CHECK(peaks.reserved_bytes == 120 * kMiB);
  CHECK(peaks.required_bytes == 60 * kMiB);
  // One address range that grows: the freed pages are used again.
  CHECK(expandable(events).reserved_bytes == 60 * kMiB);
}

TEST_CASE(
    "what another stream still works on is not taken before that ends, unless memory runs out") {
  const AllocationEvent free_in_use = {.id = 0, .kind = AllocationKind::kFreeInUse};
  const AllocationEvent end = {.kind = AllocationKind::kEndUses};
  const AllocatorPeaks waits = caching({{0, 40 * kMiB}, free_in_use, {1, 40 * kMiB}, end});
  CHECK(waits.allocated_bytes == 40 * kMiB);
  CHECK(waits.reserved_bytes == 80 * kMiB);
  CHECK(waits.required_bytes == 40 * kMiB);
  const AllocatorPeaks ended = caching({{0, 40 * kMiB}, free_in_use, end, {1, 40 * kMiB}});
  CHECK(ended.reserved_bytes == 40 * kMiB);
}

TEST_CASE("a segment with one live block cannot be given back") {
  // 8 MiB live at the front of a 60 MiB segment: 52 MiB are free, yet 56 MiB need their own.
  const Events events = {{0, 60 * kMiB}, {0, 0}, {1, 8 * kMiB}, {2, 56 * kMiB}};
  CHECK(caching(events).required_bytes == 116 * kMiB);
}

TEST_CASE("expandable segments map pages of 2 MiB for small and 20 MiB for large requests") {
  CHECK(expandable({{0, 1}}).reserved_bytes == 2 * kMiB);
  CHECK(expandable({{0, kMiB + 1}}).reserved_bytes == 20 * kMiB);
  CHECK(expandable({{0, 30 * kMiB}}).reserved_bytes == 40 * kMiB);
  // The second request continues in the mapped rest: 60 MiB in three pages.
  CHECK(expandable({{0, 30 * kMiB}, {1, 30 * kMiB}}).reserved_bytes == 60 * kMiB);
  // When memory runs out whole pages go back: 60 MiB of which 10 live, then 100 MiB.
  const Events events = {{0, 10 * kMiB}, {1, 50 * kMiB}, {1, 0}, {2, 100 * kMiB}};
  CHECK(expandable(events).reserved_bytes == 120 * kMiB);
}

TEST_CASE("static arenas hold the live tensors and nothing else") {
  const Events events = {{0, 1000}, {1, 3 * kMiB}, {0, 0}, {2, 257}};
  const AllocatorPeaks peaks = replay_allocator(events, AllocatorKind::kStaticArenas);
  CHECK(peaks.allocated_bytes == 3 * kMiB + 1024);
  CHECK(peaks.reserved_bytes == 4 * kMiB);
  CHECK(peaks.required_bytes == 4 * kMiB);
}

TEST_CASE("nothing allocated needs nothing") {
  for (const AllocatorKind kind : kBoth) {
    const AllocatorPeaks peaks = replay_allocator({}, kind);
    CHECK(peaks.allocated_bytes == 0);
    CHECK(peaks.reserved_bytes == 0);
    CHECK(peaks.required_bytes == 0);
  }
}

TEST_CASE("freeing what is not live, and allocating an id twice, are mistakes") {
  CHECK_THROWS_AS(caching({{0, 0}}), std::logic_error);
  CHECK_THROWS_AS(caching({{0, 512}, {0, 512}}), std::logic_error);
  CHECK_THROWS_AS(caching({{0, -1}}), std::logic_error);
}

TEST_CASE("allocated <= required <= reserved, and without frees required is reserved") {
  std::mt19937_64 random(7);
  std::int64_t broken = 0;
  for (std::int64_t trial = 0; trial < 600; ++trial) {
    Events events = random_events(random, trial % 2 == 0 ? 400 * kMiB : 3 * kMiB);
    for (const AllocatorKind kind : kBoth) {
      const AllocatorPeaks peaks = replay_allocator(events, kind);
      broken += peaks.allocated_bytes > peaks.required_bytes ||
                peaks.required_bytes > peaks.reserved_bytes ||
                peaks.required_bytes % (2 * kMiB) != 0;
      const std::int64_t enough = std::uniform_int_distribution(
          peaks.allocated_bytes / 2, peaks.reserved_bytes + peaks.reserved_bytes / 4)(random);
      const AllocatorPeaks early = replay_allocator(events, kind, enough);
      broken += early.allocated_bytes != peaks.allocated_bytes ||
                early.reserved_bytes != peaks.reserved_bytes ||
                std::max(early.required_bytes, enough) != std::max(peaks.required_bytes, enough);
    }
    std::erase_if(events, [](const AllocationEvent& event) { return event.bytes == 0; });
    const AllocatorPeaks grown = caching(events);
    broken += grown.required_bytes != grown.reserved_bytes;
  }
  CHECK(broken == 0);
}

TEST_CASE(
    "a card with what is required survives from the first step on, one with 2 MiB less fails") {
  std::mt19937_64 random(11);
  std::int64_t broken = 0;
  for (std::int64_t trial = 0; trial < 600; ++trial) {
    const Events events = random_events(random, trial % 2 == 0 ? 400 * kMiB : 3 * kMiB);
    for (const AllocatorKind kind : kBoth) {
      const std::int64_t required = replay_allocator(events, kind).required_bytes;
      const auto at = [&](std::int64_t bytes) {
        return replay_at_capacity(events, kind, bytes).outcome;
      };
      broken += at(required) == CapacityOutcome::kFails ||
                at(required - 2 * kMiB) != CapacityOutcome::kFails;
    }
  }
  CHECK(broken == 0);
}

TEST_CASE("a replay at a capacity says which other capacities end alike") {
  std::mt19937_64 random(12);
  std::array<std::int64_t, 3> num_outcomes{};
  std::int64_t broken = 0;
  for (std::int64_t trial = 0; trial < 600; ++trial) {
    const Events events = random_events(random, trial % 2 == 0 ? 400 * kMiB : 3 * kMiB);
    for (const AllocatorKind kind : kBoth) {
      const AllocatorPeaks peaks = replay_allocator(events, kind);
      const std::int64_t least = peaks.allocated_bytes / 2;
      const std::int64_t most = peaks.reserved_bytes + peaks.reserved_bytes / 4;
      const std::int64_t capacity = std::uniform_int_distribution(least, most)(random);
      const CapacityReplay replay = replay_at_capacity(events, kind, capacity);
      ++num_outcomes[static_cast<std::size_t>(replay.outcome)];
      broken += replay.from_bytes > capacity || replay.below_bytes <= capacity;
      for (const std::int64_t other : {replay.from_bytes, replay.below_bytes - 1}) {
        const CapacityReplay same = replay_at_capacity(events, kind, other);
        broken += same.outcome != replay.outcome || same.from_bytes != replay.from_bytes ||
                  same.below_bytes != replay.below_bytes;
      }
    }
  }
  CHECK(broken == 0);
  CHECK(std::ranges::min(num_outcomes) > 0);
}
