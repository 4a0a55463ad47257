#include "estimator/ledger/timeline_writer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardplan {

TimelineWriter::TimelineWriter(const BlockSet& blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    scripts_[i] = script_of(blocks[i]);
    has_gradients_ = has_gradients_ || std::ranges::find(scripts_[i].is_gradient, true) !=
                                           scripts_[i].is_gradient.end();
  }
}

std::int64_t TimelineWriter::allocate(std::int64_t bytes, AllocationStream stream) {
  if (bytes == 0) {
    return 0;
  }
  ++last_id_;
  events.push_back({.id = last_id_, .bytes = bytes, .stream = stream});
  return last_id_;
}

void TimelineWriter::free(std::int64_t& id) {
  if (id != 0) {
    events.push_back({.id = id, .bytes = 0});
    id = 0;
  }
}

void TimelineWriter::end_uses() {
  if (std::exchange(has_uses_, false)) {
    events.push_back({.kind = AllocationKind::kEndUses});
  }
}

void TimelineWriter::add(const std::vector<AllocationEvent>& built) {
  events.insert(events.end(), built.begin(), built.end());
  for (const AllocationEvent& event : built) { last_id_ = std::max(last_id_, event.id); }
}

void TimelineWriter::hold_input(std::int64_t& id) {
  drop_input();
  last_input_ = std::exchange(id, 0);
}

void TimelineWriter::drop_received() {
  drop_input();
  free(last_input_gradient_);
}

std::int64_t TimelineWriter::take_handed() {
  return std::exchange(handed_.id, 0);
}

std::int64_t TimelineWriter::take_over(std::int64_t bytes, AllocationStream stream) {
  return handed_.id == 0 || handed_.bytes != bytes ? allocate(bytes, stream) : take_handed();
}

void TimelineWriter::end_forward() {
  free(handed_.id);
  drop_input();
}

void TimelineWriter::end_backward() {
  for (const std::int64_t bytes : std::exchange(awaited_once_, {})) { allocate(bytes); }
  if (receives_) {
    free(last_input_gradient_);
    last_input_gradient_ = take_handed();
  }
  free(handed_.id);
}

void TimelineWriter::run(BlockKind kind, const std::vector<RowEvent>& part, BlockTensors& tensors,
                         bool heads_group) {
  const BlockScript& rows = script(kind);
  tensors.resize(rows.bytes.size(), 0);
  for (const RowEvent& event : part) {
    const std::size_t row = static_cast<std::size_t>(event.row);
    if (event.allocates && tensors[row] == 0) {
      tensors[row] = make(rows, row);
    }
    if (!event.allocates && !(heads_group && rows.stays[row])) {
      end(rows, row, tensors[row]);
    }
  }
}

void TimelineWriter::run_backward(BlockKind kind, BlockTensors& tensors,
                                  std::int64_t held_gradient) {
  const BlockScript& rows = script(kind);
  tensors.resize(rows.bytes.size(), 0);
  for (const RowEvent& event : rows.backward) {
    const std::size_t row = static_cast<std::size_t>(event.row);
    if (event.allocates && tensors[row] == 0) {
      tensors[row] = make(rows, row);
    }
    if (!event.allocates && rows.is_added[row]) {
      std::int64_t& gradient = tensors[static_cast<std::size_t>(rows.output_gradient_row)];
      gradient = gradient == held_gradient ? allocate(rows.bytes[row]) : gradient;
    }
    if (!event.allocates) {
      end(rows, row, tensors[row]);
    }
  }
}

std::int64_t TimelineWriter::loaded_bytes(const BlockScript& rows, std::size_t row) const {
  const std::int64_t bytes = rows.bytes[row];
  return rows.follows_load[row] ? std::llround(load_ * static_cast<double>(bytes)) : bytes;
}

std::int64_t TimelineWriter::make(const BlockScript& rows, std::size_t row) {
  if (rows.is_made_once[row]) {
    make_awaited(rows.bytes[row]);
    return 0;
  }
  if (rows.is_taken_over[row]) {
    return take_over(rows.bytes[row], rows.streams[row]);
  }
  if (!rows.is_first_product[row]) {
    return allocate(loaded_bytes(rows, row), rows.streams[row]);
  }
  make_once(gather_bytes_);
  const std::int64_t id = allocate(loaded_bytes(rows, row), rows.streams[row]);
  make_once(workspace_bytes_[static_cast<std::size_t>(thread_)]);
  return id;
}

void TimelineWriter::make_once(std::int64_t& bytes) {
  if (bytes > 0) {
    allocate(std::exchange(bytes, 0));
  }
}

void TimelineWriter::make_awaited(std::int64_t bytes) {
  const auto awaited = std::ranges::find(awaited_once_, bytes);
  if (awaited != awaited_once_.end()) {
    awaited_once_.erase(awaited);
    allocate(bytes);
  }
}

void TimelineWriter::end(const BlockScript& rows, std::size_t row, std::int64_t& id) {
  if (rows.is_gradient[row]) {
    return;  // until the step
  }
  if (rows.is_freed_in_use[row] && id != 0) {
    events.push_back({.id = std::exchange(id, 0), .bytes = 0, .kind = AllocationKind::kFreeInUse});
    has_uses_ = true;
    return;
  }
  if (!rows.is_handed_on[row]) {
    free(id);
    return;
  }
  free(handed_.id);
  handed_ = {.id = std::exchange(id, 0), .bytes = rows.bytes[row]};
}

}  // namespace shardplan
