#include "validator/program/builder.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "validator/program/order_launches.h"
#include "validator/program/order_streams.h"
#include "validator/program/start_gathers_early.h"

namespace shardplan {

std::int64_t padded_bytes(const TensorSpec& spec) {
  return round_up(spec.rows * spec.cols * bytes_of(spec.dtype), kTensorAlignment);
}

View ProgramBuilder::add(const TensorSpec& spec, const Cell& cell, Arena arena) {
  const std::int64_t index = static_cast<std::int64_t>(program_.tensors.size());
  program_.tensors.push_back({.component = spec.component,
                              .name = spec.name,
                              .dtype = spec.dtype,
                              .rows = spec.rows,
                              .cols = spec.cols,
                              .bytes = padded_bytes(spec),
                              .arena = arena,
                              .placement = cell.placement,
                              .offset = cell.offset});
  cells_.push_back(cell);
  return {.tensor = index, .rows = spec.rows, .cols = spec.cols, .stride = spec.cols};
}

View ProgramBuilder::persistent(const TensorSpec& spec) {
  const Cell cell{
      .placement = Placement::kFixed, .offset = persistent_bytes_, .bytes = padded_bytes(spec)};
  persistent_bytes_ += cell.bytes;
  return add(spec, cell, Arena::kPersistent);
}

Cell ProgramBuilder::fixed_cell(std::int64_t bytes) {
  const Cell cell{.placement = Placement::kFixed, .offset = fixed_bytes_, .bytes = bytes};
  fixed_bytes_ += bytes;
  return cell;
}

Cell ProgramBuilder::standing_cell(std::int64_t bytes) {
  Cell cell = fixed_cell(bytes);
  cell.stands = true;
  return cell;
}

Cell ProgramBuilder::frame_cell(std::int64_t bytes) {
  const Cell cell{.placement = Placement::kFrame, .offset = frame_bytes_, .bytes = bytes};
  frame_bytes_ += bytes;
  largest_frame_bytes_ = std::max(largest_frame_bytes_, frame_bytes_);
  return cell;
}

View ProgramBuilder::place(const Cell& cell, const TensorSpec& spec) {
  if (padded_bytes(spec) > cell.bytes) {
    throw std::logic_error("place: " + spec.name + " does not fit its cell");
  }
  return add(spec, cell, Arena::kDynamic);
}

View ProgramBuilder::push(const TensorSpec& spec) {
  return place(frame_cell(padded_bytes(spec)), spec);
}

Slot ProgramBuilder::take_slot(SlotRing ring) {
  Slots& slots = slots_of(ring);
  const auto free = std::ranges::find(slots.taken, false);
  const std::int64_t index = free - slots.taken.begin();
  if (free == slots.taken.end()) {
    slots.taken.push_back(false);
    slots.bytes.push_back(0);
  }
  slots.taken[static_cast<std::size_t>(index)] = true;
  slots.bytes[static_cast<std::size_t>(index)] = 0;
  return {.ring = ring, .index = index};
}

void ProgramBuilder::free_slot(const Slot& slot) {
  slots_of(slot.ring).taken.at(static_cast<std::size_t>(slot.index)) = false;
}

View ProgramBuilder::keep(const Slot& slot, const TensorSpec& spec) {
  Slots& slots = slots_of(slot.ring);
  std::int64_t& used = slots.bytes.at(static_cast<std::size_t>(slot.index));
  const Cell cell{
      .placement = Placement::kSlot, .slot = slot, .offset = used, .bytes = padded_bytes(spec)};
  used += cell.bytes;
  slots.largest_bytes = std::max(slots.largest_bytes, used);
  return add(spec, cell, Arena::kDynamic);
}

void ProgramBuilder::emit(Operation operation) {
  program_.operations.push_back(std::move(operation));
}

void ProgramBuilder::cut(std::string label) {
  program_.cuts.push_back({.operation = static_cast<std::int64_t>(program_.operations.size()),
                           .label = std::move(label)});
}

void ProgramBuilder::resolve_addresses() {
  std::array<std::int64_t, kNumRings> ring_begin{};
  std::int64_t frame_begin = fixed_bytes_;
  for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
    ring_begin[ring] = frame_begin;
    frame_begin += rings_[ring].total_bytes();
  }
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    Tensor& tensor = program_.tensors[i];
    switch (cells_[i].placement) {
      case Placement::kFixed: break;
      case Placement::kSlot:
        tensor.offset += ring_begin[static_cast<std::size_t>(cells_[i].slot.ring)] +
                         cells_[i].slot.index * slots_of(cells_[i].slot.ring).largest_bytes;
        break;
      case Placement::kFrame: tensor.offset += frame_begin; break;
    }
  }
  program_.persistent_bytes = round_up(persistent_bytes_, kArenaMultiple);
  program_.dynamic_bytes = round_up(frame_begin + largest_frame_bytes_, kArenaMultiple);
}

void ProgramBuilder::resolve_lifetimes() {
  const std::int64_t last = static_cast<std::int64_t>(program_.operations.size()) - 1;
  std::vector<bool> used(program_.tensors.size(), false);
  for (std::int64_t i = 0; i <= last; ++i) {
    const Operation& op = program_.operations[static_cast<std::size_t>(i)];
    for (const std::vector<View>* views : {&op.in, &op.out}) {
      for (const View& view : *views) {
        if (!view.present()) {
          continue;
        }
        const std::size_t index = static_cast<std::size_t>(view.tensor);
        Tensor& tensor = program_.tensors[index];
        tensor.born = used[index] ? tensor.born : i;
        tensor.dies = i;
        used[index] = true;
      }
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    Tensor& tensor = program_.tensors[i];
    if (tensor.arena == Arena::kPersistent) {
      tensor.born = 0;
      tensor.dies = last;
    } else if (!used[i]) {
      throw std::logic_error("finish: no operation uses tensor " + tensor.name);
    }
  }
}

// Tensors of standing cells come in the order of their births.
void ProgramBuilder::extend_lifetimes() {
  std::map<std::int64_t, std::size_t> last;  // by offset
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    if (!cells_[i].stands) {
      continue;
    }
    Tensor& tensor = program_.tensors[i];
    if (const auto before = last.find(tensor.offset); before != last.end()) {
      program_.tensors[before->second].dies = tensor.born - 1;
    } else {
      tensor.born = 0;
    }
    last[tensor.offset] = i;
  }
  for (const auto& [offset, tensor] : last) {
    program_.tensors[tensor].dies = static_cast<std::int64_t>(program_.operations.size()) - 1;
  }
}

Program ProgramBuilder::finish() {
  if (frame_bytes_ != 0) {
    throw std::logic_error("finish: the frame is not empty");
  }
  resolve_addresses();
  start_gathers_early(program_);  // out of the way of what is fused
  fuse_add_norm(program_);
  resolve_lifetimes();
  extend_lifetimes();
  order_launches(program_);
  order_streams(program_);
  return std::move(program_);
}

namespace {

bool share_memory(const Program& program, const View& a, const View& b) {
  const Tensor& first = program.tensors[static_cast<std::size_t>(a.tensor)];
  const Tensor& second = program.tensors[static_cast<std::size_t>(b.tensor)];
  return first.arena == second.arena && first.offset < second.offset + second.bytes &&
         second.offset < first.offset + first.bytes;
}

// The norm's output may lie where the addition's inputs lay: then both cannot be alive at once.
// That of the final norm, which belongs to no layer, may or may not; it is never fused, so that
// what is alive does not hang on addresses.
bool can_fuse(const Program& program, const Operation& add, const Operation& norm) {
  if (add.kind != OpKind::kAdd || norm.kind != OpKind::kRmsNormForward || norm.layer < 0 ||
      add.out[0] != norm.in[0] || !norm.out[1].present()) {
    return false;
  }
  for (const View& in : add.in) {
    for (const View& out : norm.out) {
      if (share_memory(program, in, out)) {
        return false;
      }
    }
  }
  return true;
}

// The addition whose sum a norm takes, in the row of additions before it: pieces of one tensor are
// added up piece by piece, then normed piece by piece.
std::vector<Operation>::iterator addition_before(const Program& program,
                                                 std::vector<Operation>& operations,
                                                 std::size_t first, const Operation& norm) {
  for (std::size_t i = operations.size(); i > first; --i) {
    const Operation& op = operations[i - 1];
    if (can_fuse(program, op, norm)) {
      return operations.begin() + static_cast<std::ptrdiff_t>(i - 1);
    }
    if (op.kind != OpKind::kAdd && op.kind != OpKind::kAddRmsNormForward) {
      break;
    }
  }
  return operations.end();
}

}  // namespace

// x' = a + b; y = norm(x') as one operation. Cut points move with the operations behind them.
void fuse_add_norm(Program& program) {
  std::vector<Operation> fused;
  std::vector<std::int64_t> moved_to;
  std::size_t action = 0;  // where it begins
  auto next = program.cuts.begin();
  for (Operation& op : program.operations) {
    for (; next != program.cuts.end() && next->operation == std::ssize(moved_to); ++next) {
      action = fused.size();
    }
    if (const auto found = addition_before(program, fused, action, op); found != fused.end()) {
      const Operation add = std::move(*found);
      fused.erase(found);
      op.kind = OpKind::kAddRmsNormForward;
      op.in = {add.in[0], op.in[1], add.in[1]};
      op.out.push_back(add.out[0]);
    }
    moved_to.push_back(static_cast<std::int64_t>(fused.size()));
    fused.push_back(std::move(op));
  }
  for (CutPoint& cut : program.cuts) {
    cut.operation = moved_to.at(static_cast<std::size_t>(cut.operation));
  }
  program.operations = std::move(fused);
}

}  // namespace shardplan
