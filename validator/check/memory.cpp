// Checks of one rank's table: sizes, addresses, lifetimes, and that what is read has been written.
#include "validator/check/memory.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "validator/check/checks.h"

namespace shardplan {
namespace {

std::string named(const Program& program, std::int64_t tensor) {
  return "tensor " + std::to_string(tensor) + " '" +
         program.tensors[static_cast<std::size_t>(tensor)].name + "'";
}

std::string placed(const Program& program, std::int64_t tensor) {
  const Tensor& row = program.tensors[static_cast<std::size_t>(tensor)];
  return "rank " + std::to_string(program.rank) + ", " + named(program, tensor) + " at byte " +
         std::to_string(row.offset) + ", alive from operation " + std::to_string(row.born) +
         " to " + std::to_string(row.dies);
}

void check_row(const Program& program, std::int64_t index, Problems& problems) {
  const Tensor& tensor = program.tensors[static_cast<std::size_t>(index)];
  const std::int64_t needed = tensor.elements() * bytes_of(tensor.dtype);
  const std::int64_t arena =
      tensor.arena == Arena::kPersistent ? program.persistent_bytes : program.dynamic_bytes;
  const std::int64_t operations = static_cast<std::int64_t>(program.operations.size());
  if (tensor.bytes < needed || tensor.bytes % kTensorAlignment != 0) {
    problems.push_back(placed(program, index) + ": " + std::to_string(tensor.bytes) +
                       " bytes for " + std::to_string(needed) + " of content, expected a multiple" +
                       " of " + std::to_string(kTensorAlignment));
  }
  if (tensor.offset < 0 || tensor.offset % kTensorAlignment != 0) {
    problems.push_back(placed(program, index) + ": not aligned to " +
                       std::to_string(kTensorAlignment) + " bytes");
  }
  if (tensor.offset + tensor.bytes > arena) {
    problems.push_back(placed(program, index) + ": ends behind its arena of " +
                       std::to_string(arena) + " bytes");
  }
  if (tensor.born < 0 || tensor.born > tensor.dies || tensor.dies >= operations) {
    problems.push_back(placed(program, index) + ": lifetime outside the " +
                       std::to_string(operations) + " operations");
  }
}

// Tensors in order of birth enter a map by address; a neighbour that is still alive must end
// before.
void check_overlaps(const Program& program, Arena arena, Problems& problems) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    if (program.tensors[i].arena == arena && program.tensors[i].bytes > 0) {
      order.push_back(static_cast<std::int64_t>(i));
    }
  }
  const auto row = [&](std::int64_t index) -> const Tensor& {
    return program.tensors[static_cast<std::size_t>(index)];
  };
  std::ranges::stable_sort(order, {}, [&](std::int64_t index) { return row(index).born; });
  std::map<std::int64_t, std::int64_t> alive;  // offset: tensor
  for (const std::int64_t index : order) {
    const Tensor& tensor = row(index);
    auto near = alive.lower_bound(tensor.offset);
    near = near == alive.begin() ? near : std::prev(near);
    while (near != alive.end() && near->first < tensor.offset + tensor.bytes) {
      const Tensor& other = row(near->second);
      const bool is_apart = other.offset + other.bytes <= tensor.offset;
      if (!is_apart && other.dies >= tensor.born) {
        problems.push_back(placed(program, index) + " overlaps " + placed(program, near->second));
      }
      near = is_apart ? std::next(near) : alive.erase(near);
    }
    alive[tensor.offset] = index;
  }
}

// Rows [row, end_row) and columns [col, end_col) of a tensor.
struct Rectangle {
  std::int64_t row = 0;
  std::int64_t end_row = 0;
  std::int64_t col = 0;
  std::int64_t end_col = 0;

  bool is_empty() const { return row >= end_row || col >= end_col; }
};

// A view as rectangles: a run of elements may begin and end within a row.
std::vector<Rectangle> rectangles_of(const View& view, const Tensor& tensor) {
  const std::int64_t width = tensor.cols;
  if (view.elements() == 0) {
    return {};
  }
  if (!view.contiguous()) {
    const std::int64_t col = view.offset % width;
    return {{.row = view.offset / width,
             .end_row = view.offset / width + view.rows,
             .col = col,
             .end_col = col + view.cols}};
  }
  std::vector<Rectangle> rectangles;
  const std::int64_t end = view.offset + view.elements();
  for (std::int64_t begin = view.offset; begin < end;) {
    const std::int64_t row = begin / width;
    const std::int64_t col = begin % width;
    const std::int64_t whole_rows = col == 0 ? (end - begin) / width : 0;
    if (whole_rows > 0) {
      rectangles.push_back({.row = row, .end_row = row + whole_rows, .col = 0, .end_col = width});
      begin += whole_rows * width;
    } else {
      const std::int64_t last = std::min(width, col + end - begin);
      rectangles.push_back({.row = row, .end_row = row + 1, .col = col, .end_col = last});
      begin += last - col;
    }
  }
  return rectangles;
}

// What of `from` lies outside `hole`.
void subtract(const Rectangle& from, const Rectangle& hole, std::vector<Rectangle>& rest) {
  const Rectangle common{.row = std::max(from.row, hole.row),
                         .end_row = std::min(from.end_row, hole.end_row),
                         .col = std::max(from.col, hole.col),
                         .end_col = std::min(from.end_col, hole.end_col)};
  if (common.is_empty()) {
    rest.push_back(from);
    return;
  }
  const Rectangle pieces[] = {
      {from.row, common.row, from.col, from.end_col},
      {common.end_row, from.end_row, from.col, from.end_col},
      {common.row, common.end_row, from.col, common.col},
      {common.row, common.end_row, common.end_col, from.end_col},
  };
  for (const Rectangle& piece : pieces) {
    if (!piece.is_empty()) {
      rest.push_back(piece);
    }
  }
}

// What has been written of one tensor.
class Written {
 public:
  void add(const Rectangle& rectangle) {
    std::vector<Rectangle> rest;
    for (const Rectangle& old : rectangles_) { subtract(old, rectangle, rest); }
    rest.push_back(rectangle);
    rectangles_ = std::move(rest);
  }

  bool covers(const Rectangle& rectangle) const {
    std::vector<Rectangle> missing = {rectangle};
    for (const Rectangle& hole : rectangles_) {
      std::vector<Rectangle> rest;
      for (const Rectangle& piece : missing) { subtract(piece, hole, rest); }
      missing = std::move(rest);
    }
    return missing.empty();
  }

 private:
  std::vector<Rectangle> rectangles_;
};

class WriteCheck {
 public:
  explicit WriteCheck(const Program& program)
      : program_(program), written_(program.tensors.size()) {}

  Problems run() {
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      const Operation& op = program_.operations[i];
      for (std::int64_t k = 0; k < std::ssize(op.in); ++k) {
        for (const View& view : read_views(program_, op, k)) { read(i, view); }
      }
      for (std::size_t k = 0; k < op.out.size(); ++k) {
        if (reads_output(op, static_cast<std::int64_t>(k))) {
          read(i, op.out[k]);
        }
      }
      for (std::int64_t k = 0; k < std::ssize(op.out); ++k) {
        for (const View& view : written_views(program_, op, k)) { write(view); }
      }
    }
    return std::move(problems_);
  }

 private:
  // What is persistent has a value before the first step.
  bool is_tracked(const View& view) const {
    return view.present() &&
           program_.tensors[static_cast<std::size_t>(view.tensor)].arena == Arena::kDynamic;
  }

  void read(std::size_t operation, const View& view) {
    if (!is_tracked(view)) {
      return;
    }
    const std::size_t tensor = static_cast<std::size_t>(view.tensor);
    for (const Rectangle& part : rectangles_of(view, program_.tensors[tensor])) {
      if (!written_[tensor].covers(part)) {
        problems_.push_back(place_of(program_, static_cast<std::int64_t>(operation)) + " reads " +
                            named(program_, view.tensor) + ", which nothing has written there");
        return;
      }
    }
  }

  void write(const View& view) {
    if (!is_tracked(view)) {
      return;
    }
    const std::size_t tensor = static_cast<std::size_t>(view.tensor);
    for (const Rectangle& part : rectangles_of(view, program_.tensors[tensor])) {
      written_[tensor].add(part);
    }
  }

  const Program& program_;
  std::vector<Written> written_;
  Problems problems_;
};

}  // namespace

Problems table_problems(const Program& program) {
  Problems problems;
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    check_row(program, static_cast<std::int64_t>(i), problems);
  }
  for (const std::int64_t bytes : {program.persistent_bytes, program.dynamic_bytes}) {
    if (bytes % kArenaMultiple != 0) {
      problems.push_back("rank " + std::to_string(program.rank) + ": an arena of " +
                         std::to_string(bytes) + " bytes, expected a multiple of " +
                         std::to_string(kArenaMultiple));
    }
  }
  check_overlaps(program, Arena::kPersistent, problems);
  check_overlaps(program, Arena::kDynamic, problems);
  return problems;
}

Problems write_problems(const Program& program) {
  return WriteCheck(program).run();
}

}  // namespace shardplan
