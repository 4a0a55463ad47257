#include "estimator/ledger/state_row.h"

#include "estimator/plan/units.h"

namespace shardplan {

namespace {

std::int64_t aligned_bytes(const StateRow& row, std::int64_t alignment_bytes) {
  return round_up(row.elements * bytes_of(row.dtype), alignment_bytes);
}

}  // namespace

void StateRowList::add(StateRow row) {
  if (row.elements == 0 || row.copies == 0) {
    return;
  }
  row.bytes = aligned_bytes(row, alignment_bytes);
  rows.push_back(row);
}

SequenceRows sized(SequenceRows rows, std::int64_t alignment_bytes) {
  for (StateRow& row : rows) { row.bytes = aligned_bytes(row, alignment_bytes); }
  return rows;
}

void StateBytes::add(const StateRow& row) {
  const std::int64_t bytes = row.total_bytes();
  if (bytes == 0) {
    return;
  }
  const std::size_t last = static_cast<std::size_t>(row.last);
  for (std::size_t phase = static_cast<std::size_t>(row.first); phase <= last; ++phase) {
    alive[phase] += bytes;
  }
  made_by_first_step += row.made_by_first_step ? bytes : 0;
  ends_before_made += row.ends_before_made ? bytes : 0;
  frame += row.first == Phase::kGradientNorm && row.last == Phase::kGradientNorm ? bytes : 0;
  widened += row.name == kWidenedStateRow || row.name == kCastMomentRow ? bytes : 0;
  block_ends += is_block_ends(row.name) ? bytes : 0;
  start_up_only += row.last <= Phase::kBuilt ? bytes : 0;
  remade += row.first > Phase::kForward && row.last == Phase::kIdle && !row.made_by_first_step
                ? bytes
                : 0;
}

}  // namespace shardplan
