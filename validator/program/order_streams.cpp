// Derives the events between streams from the bytes that operations touch.
#include "validator/program/order_streams.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "validator/program/builder.h"
#include "validator/program/byte_runs.h"

namespace shardplan {
namespace {

// For every stream, the last of its operations that is surely complete, by its place in the order
// of launches (-1: none).
using Clock = std::array<std::int64_t, kNumStreams>;

constexpr Clock never() {
  Clock clock{};
  clock.fill(-1);
  return clock;
}

// Who wrote a run of bytes last and who has read it since, by stream.
struct Users {
  Clock writer = never();
  Clock readers = never();
};

std::size_t index_of(Stream stream) {
  return static_cast<std::size_t>(stream);
}

class Orderer {
 public:
  explicit Orderer(Program& program) : program_(program) {}

  void run() {
    launches_ = launch_order(program_);
    done_.assign(launches_.size(), never());
    streams_.fill(never());
    for (std::size_t i = 0; i < launches_.size(); ++i) { order(i); }
    program_.num_events = num_events_;
  }

 private:
  template <class Visit>
  void for_each_run(const std::vector<View>& views, const Visit& visit) {
    for (const View& view : views) { runs_.visit(program_, view, visit); }
  }

  // The latest operation of every stream that this one must follow.
  Clock needed_before(const Operation& op) {
    Clock needed = never();
    const auto follow = [&](const Clock& users) {
      for (std::size_t s = 0; s < needed.size(); ++s) { needed[s] = std::max(needed[s], users[s]); }
    };
    for_each_run(read_views(program_, op), [&](Users& users) { follow(users.writer); });
    for_each_run(written_views(program_, op), [&](Users& users) {
      follow(users.writer);
      follow(users.readers);
    });
    return needed;
  }

  void order(std::size_t i) {
    Operation& op = launched(i);
    const std::size_t own = index_of(op.stream);
    const Clock needed = needed_before(op);
    Clock& clock = streams_[own];
    // The latest first: what it is behind of need not be waited for.
    std::array<std::size_t, kNumStreams> order{};
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, std::greater{}, [&](std::size_t s) { return needed[s]; });
    for (const std::size_t s : order) {
      if (s == own || needed[s] <= clock[s]) {
        continue;
      }
      Operation& earlier = launched(static_cast<std::size_t>(needed[s]));
      if (earlier.records < 0) {
        earlier.records = num_events_++;
      }
      op.waits.push_back(earlier.records);
      const Clock& behind = done_[static_cast<std::size_t>(needed[s])];
      for (std::size_t k = 0; k < clock.size(); ++k) { clock[k] = std::max(clock[k], behind[k]); }
    }
    clock[own] = static_cast<std::int64_t>(i);
    done_[i] = clock;
    for_each_run(read_views(program_, op),
                 [&](Users& users) { users.readers[own] = static_cast<std::int64_t>(i); });
    for_each_run(written_views(program_, op), [&](Users& users) {
      users = {};
      users.writer[own] = static_cast<std::int64_t>(i);
    });
  }

  Operation& launched(std::size_t place) {
    return program_.operations[static_cast<std::size_t>(launches_[place])];
  }

  Program& program_;
  std::vector<std::int64_t> launches_;
  ByteRuns<Users> runs_;
  std::array<Clock, kNumStreams> streams_{};
  std::vector<Clock> done_;  // by launch: what is complete when it is
  std::int64_t num_events_ = 0;
};

}  // namespace

void order_streams(Program& program) {
  Orderer(program).run();
}

}  // namespace shardplan
