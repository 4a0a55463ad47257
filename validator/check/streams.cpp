// Hazards between the streams of one rank. A vector clock says for every operation which operations
// of each stream are complete before it starts; whoever touched its bytes before must be among
// them. Written independently of the pass that places the events.
#include "validator/check/streams.h"

#include <algorithm>
#include <array>

#include "validator/check/checks.h"

namespace shardplan {
namespace {

// Last complete operation by stream, as its place in the order of launches; -1: none.
using Clock = std::array<std::int64_t, kNumStreams>;

struct Touch {  // of one view: bytes [begin, end) of an arena
  std::size_t arena = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Touch touch_of(const Program& program, const View& view) {
  const Tensor& tensor = program.tensors[static_cast<std::size_t>(view.tensor)];
  const std::int64_t size = bytes_of(tensor.dtype);
  return {.arena = static_cast<std::size_t>(tensor.arena),
          .begin = tensor.offset + view.offset * size,
          .end = tensor.offset + view.end() * size};
}

// Bytes between two neighbouring boundaries of any views: who used them.
struct Piece {
  std::int64_t writer = -1;
  Clock readers{};  // last reader since, by stream; -1: none
};

// The clocks of all launches, from the order within streams and the events.
std::vector<Clock> clocks_of(const Program& program, const std::vector<std::int64_t>& launches) {
  std::vector<Clock> clocks(launches.size());
  std::vector<std::int64_t> recorder(static_cast<std::size_t>(program.num_events), -1);
  Clock last;
  last.fill(-1);
  const auto launched = [&](std::size_t place) -> const Operation& {
    return program.operations[static_cast<std::size_t>(launches[place])];
  };
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const Operation& op = launched(i);
    const std::size_t stream = static_cast<std::size_t>(op.stream);
    Clock clock;
    clock.fill(-1);
    const auto follow = [&](std::int64_t earlier) {
      if (earlier < 0) {
        return;
      }
      const Clock& before = clocks[static_cast<std::size_t>(earlier)];
      for (std::size_t s = 0; s < clock.size(); ++s) { clock[s] = std::max(clock[s], before[s]); }
      const auto own = static_cast<std::size_t>(launched(static_cast<std::size_t>(earlier)).stream);
      clock[own] = std::max(clock[own], earlier);
    };
    follow(last[stream]);
    for (const std::int64_t event : op.waits) { follow(recorder[static_cast<std::size_t>(event)]); }
    clocks[i] = clock;
    last[stream] = static_cast<std::int64_t>(i);
    if (op.records >= 0) {
      recorder[static_cast<std::size_t>(op.records)] = static_cast<std::int64_t>(i);
    }
  }
  return clocks;
}

class StreamCheck {
 public:
  explicit StreamCheck(const Program& program)
      : program_(program),
        launches_(launch_order(program)),
        places_(launches_.size()),
        clocks_(clocks_of(program, launches_)) {
    for (std::size_t place = 0; place < launches_.size(); ++place) {
      places_[static_cast<std::size_t>(launches_[place])] = static_cast<std::int64_t>(place);
    }
    for (const Operation& op : program.operations) {
      for (const std::vector<View>& views :
           {read_views(program_, op), written_views(program_, op)}) {
        for (const View& view : views) {
          const Touch touch = touch_of(program, view);
          bounds_[touch.arena].push_back(touch.begin);
          bounds_[touch.arena].push_back(touch.end);
        }
      }
    }
    for (std::size_t arena = 0; arena < bounds_.size(); ++arena) {
      std::vector<std::int64_t>& bounds = bounds_[arena];
      std::ranges::sort(bounds);
      bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
      Piece nobody;
      nobody.readers.fill(-1);
      pieces_[arena].assign(bounds.size(), nobody);
    }
  }

  // In the order of the list, which says who reads whose bytes.
  Problems run() {
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      index_ = static_cast<std::int64_t>(i);
      const std::int64_t place = places_[i];
      const Operation& op = program_.operations[i];
      const auto stream = static_cast<std::size_t>(op.stream);
      const std::vector<View> reads = read_views(program_, op);
      const std::vector<View> writes = written_views(program_, op);
      for_each_piece(
          reads, [&](Piece& piece, const View& view) { must_follow(piece.writer, view, "reads"); });
      for_each_piece(writes, [&](Piece& piece, const View& view) {
        must_follow(piece.writer, view, "writes");
        for (const std::int64_t reader : piece.readers) { must_follow(reader, view, "writes"); }
      });
      for_each_piece(reads, [&](Piece& piece, const View&) {
        piece.readers[stream] = std::max(piece.readers[stream], place);
      });
      for_each_piece(writes, [&](Piece& piece, const View&) {
        piece.writer = place;
        piece.readers.fill(-1);
      });
    }
    return std::move(problems_);
  }

 private:
  template <class Visit>
  void for_each_piece(const std::vector<View>& views, const Visit& visit) {
    for (const View& view : views) {
      const Touch touch = touch_of(program_, view);
      const std::vector<std::int64_t>& bounds = bounds_[touch.arena];
      const auto first = std::ranges::lower_bound(bounds, touch.begin) - bounds.begin();
      for (auto i = static_cast<std::size_t>(first); bounds[i] < touch.end; ++i) {
        visit(pieces_[touch.arena][i], view);
      }
    }
  }

  void must_follow(std::int64_t place, const View& view, const std::string& how) {
    const std::int64_t own = places_[static_cast<std::size_t>(index_)];
    if (place < 0 || place == own) {
      return;
    }
    const std::int64_t earlier = launches_[static_cast<std::size_t>(place)];
    const Operation& other = program_.operations[static_cast<std::size_t>(earlier)];
    const auto stream = static_cast<std::size_t>(other.stream);
    if (clocks_[static_cast<std::size_t>(own)][stream] >= place || last_reported_ == index_) {
      return;
    }
    last_reported_ = index_;
    problems_.push_back(
        place_of(program_, index_) + " " + how + " tensor " + std::to_string(view.tensor) + " '" +
        program_.tensors[static_cast<std::size_t>(view.tensor)].name +
        "' while nothing orders it behind operation " + std::to_string(earlier) + " (" +
        std::string(name_of(other.kind)) + " " + other.label + ") of stream " +
        std::string(name_of(other.stream)) + ", which uses the same bytes");
  }

  const Program& program_;
  std::vector<std::int64_t> launches_;
  std::vector<std::int64_t> places_;  // of operations among the launches
  std::vector<Clock> clocks_;         // by launch
  std::array<std::vector<std::int64_t>, 2> bounds_;
  std::array<std::vector<Piece>, 2> pieces_;
  std::int64_t index_ = 0;
  std::int64_t last_reported_ = -1;
  Problems problems_;
};

}  // namespace

Problems stream_problems(const Program& program) {
  return StreamCheck(program).run();
}

}  // namespace shardplan
