// The order in which operations are launched where tensor parallelism goes by pieces of tokens. The
// list goes from one product to the next: all pieces of one, their sums over tp, the norm, the
// gathers, all pieces of the next. Launched like that, the products of a piece would wait for the
// communication of all pieces before it. Here the streams of one action are played with rough times
// for every operation, and what can start first is launched first: sums, norms and copies as soon
// as their pieces have arrived, then what comes first in the list. Operations that share bytes, one
// of them writing, keep the list's order, so that nothing is computed from other numbers.
#include "validator/program/order_launches.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "validator/program/builder.h"
#include "validator/program/byte_runs.h"
#include "validator/program/operation_work.h"

namespace shardplan {
namespace {

// Rough and slow: an operation that is launched before its input has arrived keeps its stream from
// everything behind it.
constexpr double kLaunchS = 5e-6;
constexpr double kProductFlopsPerS = 600e12;
constexpr double kAttentionFlopsPerS = 400e12;
constexpr double kMemoryBytesPerS = 3e12;
constexpr double kMeetingS = 15e-6;
constexpr double kOtherS = 1e-4;
constexpr double kLinkBytesPerS = 250e9;

bool is_free(Stream stream) {
  return stream == Stream::kCompute || stream == Stream::kTensor;
}

bool is_large(OpKind kind) {
  return kind == OpKind::kGemm || kind == OpKind::kAttentionForward ||
         kind == OpKind::kAttentionBackward;
}

// Ranks that meet must find the same order, whatever they hold: of sequences, so all pairs of an
// attention call count half, or of the vocabulary and the optimizer's state, whose times are one.
double seconds_of(const Program& program, const Operation& op) {
  if (op.layer < 0 || !is_free(op.stream)) {
    return kOtherS;
  }
  switch (op.kind) {
    case OpKind::kGemm: return kLaunchS + flops_of(op) / kProductFlopsPerS;
    case OpKind::kAttentionForward:
    case OpKind::kAttentionBackward: {
      const std::size_t q = op.kind == OpKind::kAttentionForward ? 0 : 1;
      const double pairs = static_cast<double>(op.in[q].rows) *
                           static_cast<double>(op.in[q + 1].rows / op.attributes.batch) / 2;
      const double products = op.kind == OpKind::kAttentionForward ? 2 : 5;
      return kLaunchS +
             products * 2 * pairs * static_cast<double>(op.in[q].cols) / kAttentionFlopsPerS;
    }
    default: break;
  }
  const double bytes = bytes_of(program, op);
  return is_communication(op.kind) ? kMeetingS + bytes / 2 / kLinkBytesPerS
                                   : kLaunchS + bytes / kMemoryBytesPerS;
}

// Who wrote a run of bytes last, and who has read it since.
struct Users {
  std::int64_t writer = -1;
  std::vector<std::int64_t> readers = {};
};

// Which operations of an action must follow which others.
class Order {
 public:
  Order(const Program& program, std::int64_t begin, std::int64_t end)
      : program_(program), begin_(begin), followers_(static_cast<std::size_t>(end - begin)) {
    waits_for_.resize(followers_.size(), 0);
    std::array<std::int64_t, kNumStreams> last{};
    last.fill(-1);
    std::int64_t last_fp8 = -1;
    std::int64_t last_outside = -1;          // of the layers, on the tensor stream
    std::vector<std::int64_t> tensor_calls;  // since then
    std::int64_t last_of_keys = -1;
    for (std::int64_t i = begin; i < end; ++i) {
      const Operation& op = program.operations[static_cast<std::size_t>(i)];
      add_shared_bytes(i, op);
      if (!is_free(op.stream)) {
        add(std::exchange(last[static_cast<std::size_t>(op.stream)], i), i);
      }
      if (op.stream == Stream::kTensor && op.layer < 0) {  // the loss: as it is listed
        for (const std::int64_t earlier : tensor_calls) { add(earlier, i); }
        tensor_calls.clear();
        last_outside = i;
      }
      if (op.stream == Stream::kTensor) {
        add(last_outside, i);
        tensor_calls.push_back(i);
      }
      if (is_of_keys(op)) {
        add(std::exchange(last_of_keys, i), i);
      }
      if (op.attributes.fp8) {  // finds what the product before it has rounded
        add(std::exchange(last_fp8, i), i);
      }
    }
  }

  const std::vector<std::int64_t>& followers(std::int64_t operation) const {
    return followers_[static_cast<std::size_t>(operation - begin_)];
  }
  std::int64_t& waits_for(std::int64_t operation) {
    return waits_for_[static_cast<std::size_t>(operation - begin_)];
  }

 private:
  // Ranks see different keys and find different sharers: what they do together is as it is listed.
  bool is_of_keys(const Operation& op) const {
    return op.stream == Stream::kTensor &&
           program_.groups[static_cast<std::size_t>(op.group)].kind == GroupKind::kCp;
  }

  void add_shared_bytes(std::int64_t i, const Operation& op) {
    const std::vector<View> reads = read_views(program_, op);
    const std::vector<View> writes = written_views(program_, op);
    for (const View& view : reads) {
      runs_.visit(program_, view, [&](Users& users) { add(users.writer, i); });
    }
    for (const View& view : writes) {
      runs_.visit(program_, view, [&](Users& users) {
        add(users.writer, i);
        for (const std::int64_t reader : users.readers) { add(reader, i); }
      });
    }
    for (const View& view : reads) {
      runs_.visit(program_, view, [&](Users& users) { users.readers.push_back(i); });
    }
    for (const View& view : writes) {
      runs_.visit(program_, view, [&](Users& users) { users = {.writer = i, .readers = {}}; });
    }
  }

  void add(std::int64_t earlier, std::int64_t later) {
    if (earlier < begin_ || earlier == later) {
      return;
    }
    std::vector<std::int64_t>& known = followers_[static_cast<std::size_t>(earlier - begin_)];
    if (known.empty() || known.back() != later) {
      known.push_back(later);
      ++waits_for(later);
    }
  }

  const Program& program_;
  std::int64_t begin_;
  std::vector<std::vector<std::int64_t>> followers_;
  std::vector<std::int64_t> waits_for_;
  ByteRuns<Users> runs_;
};

// Plays one action: operations [begin, end) of the list.
class Play {
 public:
  Play(const Program& program, std::int64_t begin, std::int64_t end)
      : program_(program), order_(program, begin, end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (order_.waits_for(i) == 0) {
        ready_[stream_of(i)].push_back({.operation = i});
      }
    }
  }

  void run(std::vector<std::int64_t>& launches) {
    while (true) {
      std::size_t first = kNumStreams;
      Choice best;
      for (std::size_t stream = 0; stream < ready_.size(); ++stream) {
        const Choice choice = choose(stream);
        if (choice.index < ready_[stream].size() && choice.begin_s < best.begin_s) {
          first = stream;
          best = choice;
        }
      }
      if (first == kNumStreams) {
        return;
      }
      launches.push_back(launch(first, best));
    }
  }

 private:
  struct Candidate {
    std::int64_t operation = 0;
    double ready_s = 0;  // when all that it follows is done
  };
  struct Choice {
    std::size_t index = std::numeric_limits<std::size_t>::max();
    double begin_s = std::numeric_limits<double>::infinity();
  };

  std::size_t stream_of(std::int64_t operation) const {
    return static_cast<std::size_t>(
        program_.operations[static_cast<std::size_t>(operation)].stream);
  }

  // What the stream starts next: of what is ready then, on the compute stream what is small first
  // and then the order of the list, on the others what was ready first.
  Choice choose(std::size_t stream) const {
    const std::vector<Candidate>& candidates = ready_[stream];
    double begin_s = std::numeric_limits<double>::infinity();
    for (const Candidate& one : candidates) {
      begin_s = std::min(begin_s, std::max(one.ready_s, free_s_[stream]));
    }
    Choice choice{.begin_s = begin_s};
    const auto key = [&](const Candidate& one) {
      const Operation& op = program_.operations[static_cast<std::size_t>(one.operation)];
      const bool is_compute = op.stream == Stream::kCompute;
      return std::tuple(is_compute && is_large(op.kind), is_compute ? 0 : one.ready_s,
                        one.operation);
    };
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].ready_s <= begin_s &&
          (choice.index >= candidates.size() ||
           key(candidates[i]) < key(candidates[choice.index]))) {
        choice.index = i;
      }
    }
    return choice;
  }

  std::int64_t launch(std::size_t stream, const Choice& choice) {
    const std::int64_t operation = ready_[stream][choice.index].operation;
    ready_[stream].erase(ready_[stream].begin() + static_cast<std::ptrdiff_t>(choice.index));
    const double end_s =
        choice.begin_s +
        seconds_of(program_, program_.operations[static_cast<std::size_t>(operation)]);
    free_s_[stream] = end_s;
    for (const std::int64_t follower : order_.followers(operation)) {
      double& ready_s = ready_s_[follower];
      ready_s = std::max(ready_s, end_s);
      if (--order_.waits_for(follower) == 0) {
        ready_[stream_of(follower)].push_back({.operation = follower, .ready_s = ready_s});
        ready_s_.erase(follower);
      }
    }
    return operation;
  }

  const Program& program_;
  Order order_;
  std::array<std::vector<Candidate>, kNumStreams> ready_;
  std::array<double, kNumStreams> free_s_{};
  std::map<std::int64_t, double> ready_s_;  // of what waits for something
};

bool goes_by_pieces(const Program& program) {
  return std::ranges::any_of(program.operations, [&](const Operation& op) {
    return op.kind == OpKind::kExchange &&
           program.groups[static_cast<std::size_t>(op.group)].kind == GroupKind::kTp;
  });
}

}  // namespace

void order_launches(Program& program) {
  if (!goes_by_pieces(program)) {
    return;
  }
  std::vector<std::int64_t> begins = {0};
  for (const CutPoint& cut : program.cuts) { begins.push_back(cut.operation); }
  begins.push_back(std::ssize(program.operations));
  std::vector<std::int64_t> launches;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    Play(program, begins[i], begins[i + 1]).run(launches);
  }
  program.launches = std::move(launches);
}

}  // namespace shardplan
