#include "estimator/ledger/timeline_writer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardplan {

TimelineWriter::TimelineWriter(const BlockSet& blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    scripts_[i] = script_of(blocks[i]);
    has_gradients_ =
        has_gradients_ || std::ranges::any_of(scripts_[i].rows, &ScriptRow::is_gradient);
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
  const std::vector<ScriptRow>& rows = script(kind).rows;
  tensors.resize(rows.size(), 0);
  for (const RowEvent& event : part) {
    const std::size_t at = static_cast<std::size_t>(event.row);
    if (event.allocates && tensors[at] == 0) {
      tensors[at] = make(rows[at]);
    }
    if (!event.allocates && !(heads_group && rows[at].stays)) {
      end(rows[at], tensors[at]);
    }
  }
}

void TimelineWriter::run_backward(BlockKind kind, BlockTensors& tensors,
                                  std::int64_t held_gradient) {
  const BlockScript& block = script(kind);
  tensors.resize(block.rows.size(), 0);
  for (const RowEvent& event : block.backward) {
    const std::size_t at = static_cast<std::size_t>(event.row);
    const ScriptRow& row = block.rows[at];
    if (event.allocates && tensors[at] == 0) {
      tensors[at] = make(row);
    }
    if (!event.allocates && row.is_added) {
      std::int64_t& gradient = tensors[static_cast<std::size_t>(block.output_gradient_row)];
      gradient = gradient == held_gradient ? allocate(row.bytes) : gradient;
    }
    if (!event.allocates) {
      end(row, tensors[at]);
    }
  }
}

std::int64_t TimelineWriter::loaded_bytes(const ScriptRow& row) const {
  return row.follows_load ? std::llround(load_ * static_cast<double>(row.bytes)) : row.bytes;
}

std::int64_t TimelineWriter::make(const ScriptRow& row) {
  return row.is_plain ? allocate(row.bytes, row.stream) : make_special(row);
}

std::int64_t TimelineWriter::make_special(const ScriptRow& row) {
  if (row.is_made_once) {
    make_awaited(row.bytes);
    return 0;
  }
  if (row.is_taken_over) {
    return take_over(row.bytes, row.stream);
  }
  if (!row.is_first_product) {
    return allocate(loaded_bytes(row), row.stream);
  }
  make_once(gather_bytes_);
  const std::int64_t id = allocate(loaded_bytes(row), row.stream);
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

void TimelineWriter::end(const ScriptRow& row, std::int64_t& id) {
  row.is_plain ? free(id) : end_special(row, id);
}

void TimelineWriter::end_special(const ScriptRow& row, std::int64_t& id) {
  if (row.is_gradient) {
    return;  // until the step
  }
  if (row.is_freed_in_use && id != 0) {
    events.push_back({.id = std::exchange(id, 0), .bytes = 0, .kind = AllocationKind::kFreeInUse});
    has_uses_ = true;
    return;
  }
  if (!row.is_handed_on) {
    free(id);
    return;
  }
  free(handed_.id);
  handed_ = {.id = std::exchange(id, 0), .bytes = row.bytes};
}

}  // namespace shardplan
