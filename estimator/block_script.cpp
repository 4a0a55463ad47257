#include "estimator/block_script.h"

namespace shardplan {
namespace {

std::vector<RowEvent> script_between(const std::vector<BlockRow>& rows, Step first, Step last,
                                     Step BlockRow::*dies) {
  std::vector<RowEvent> script;
  for (int step = static_cast<int>(first); step <= static_cast<int>(last); ++step) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].born == static_cast<Step>(step)) {
        script.push_back({.row = static_cast<std::int64_t>(i), .allocates = true});
      }
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].*dies == static_cast<Step>(step)) {
        script.push_back({.row = static_cast<std::int64_t>(i), .allocates = false});
      }
    }
  }
  return script;
}

// A row for every tensor.
std::vector<BlockRow> tensor_rows(const std::vector<BlockRow>& rows) {
  std::vector<BlockRow> tensors;
  for (const BlockRow& row : rows) {
    tensors.push_back(row);
    for (std::size_t i = 0; i < row.parts.size(); ++i) {
      if (i > 0) {
        tensors.push_back(row);
      }
      tensors.back().bytes = row.parts[i];
    }
  }
  return tensors;
}

}  // namespace

BlockScript script_of(const BlockMemory& block) {
  BlockScript script;
  const std::vector<BlockRow> rows = tensor_rows(block.rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const BlockRow& row = rows[i];
    script.bytes.push_back(row.bytes);
    const std::int64_t index = static_cast<std::int64_t>(i);
    script.is_gradient.push_back(row.is_gradient);
    script.stays.push_back(is_alive(row, BlockState::kCheckpointed, row.born));
    script.streams.push_back(row.stream);
    script.output_gradient_row =
        is_alive(row, BlockState::kReplaying, row.born) ? index : script.output_gradient_row;
  }
  script.forward = script_between(rows, Step::kForwardInput, kLastForward, &BlockRow::dies);
  script.forward_unkept =
      script_between(rows, Step::kForwardInput, kLastForward, &BlockRow::last_forward_use);
  script.backward = script_between(rows, kFirstBackward, kLastBackward, &BlockRow::dies);
  script.weight = script_between(rows, Step::kWeight, kLastWeight, &BlockRow::dies);
  return script;
}

}  // namespace shardplan
