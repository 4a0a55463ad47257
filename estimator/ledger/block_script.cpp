#include "estimator/ledger/block_script.h"

#include <algorithm>
#include <tuple>

namespace shardplan {
namespace {

// A tensor of a row. Those that pass within a step are freed by tensors that come after them.
struct RowTensor {
  BlockRow row;
  std::vector<std::int64_t> frees = {};  // indices of tensors, once this one has been allocated
  bool passes = false;                   // freed by another one
};

// A row that is born or dies. In a step all births come first.
struct RowMoment {
  Step step = Step::kForwardInput;
  bool dies = false;
  std::size_t row = 0;
};

std::vector<RowEvent> script_between(const std::vector<RowTensor>& tensors, Step first, Step last,
                                     Step BlockRow::*dies) {
  std::vector<RowMoment> moments;
  const auto add = [&](const RowMoment& moment) {
    if (first <= moment.step && moment.step <= last) {
      moments.push_back(moment);
    }
  };
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    add({.step = tensors[i].row.born, .dies = false, .row = i});
    if (!tensors[i].passes) {
      add({.step = tensors[i].row.*dies, .dies = true, .row = i});
    }
  }
  std::ranges::sort(moments, {}, [](const RowMoment& moment) {
    return std::tuple(moment.step, moment.dies, moment.row);
  });
  std::vector<RowEvent> script;
  for (const RowMoment& moment : moments) {
    script.push_back({.row = static_cast<std::int64_t>(moment.row), .allocates = !moment.dies});
    if (!moment.dies) {
      for (const std::int64_t freed : tensors[moment.row].frees) {
        script.push_back({.row = freed, .allocates = false});
      }
    }
  }
  return script;
}

void add_passing(std::vector<RowTensor>& tensors, const BlockRow& row) {
  const std::size_t first = tensors.size();
  for (const PassingTensor& tensor : row.passing) {
    tensors.push_back({.row = row});
    tensors.back().row.bytes = tensor.bytes;
  }
  for (std::size_t i = 0; i < row.passing.size(); ++i) {
    const std::size_t after = i + static_cast<std::size_t>(row.passing[i].lives);
    if (after < row.passing.size()) {
      tensors[first + i].passes = true;
      tensors[first + after].frees.push_back(static_cast<std::int64_t>(first + i));
    }
  }
}

// A row for every tensor.
std::vector<RowTensor> tensor_rows(const std::vector<BlockRow>& rows) {
  std::vector<RowTensor> tensors;
  for (const BlockRow& row : rows) {
    if (row.is_of_group) {
      continue;  // the timeline of a group holds them
    }
    if (!row.passing.empty()) {
      add_passing(tensors, row);
      continue;
    }
    tensors.push_back({.row = row});
    for (std::size_t i = 0; i < row.parts.size(); ++i) {
      if (i > 0) {
        tensors.push_back({.row = row});
      }
      tensors.back().row.bytes = row.parts[i];
    }
  }
  return tensors;
}

}  // namespace

BlockScript script_of(const BlockMemory& block) {
  BlockScript script;
  const std::vector<RowTensor> rows = tensor_rows(block.rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const BlockRow& row = rows[i].row;
    ScriptRow added = {.bytes = row.bytes + row.made_once_bytes,
                       .stream = row.stream,
                       .is_first_product = row.is_first_product,
                       .is_handed_on = row.is_handed_on,
                       .is_taken_over = row.is_taken_over,
                       .is_added = row.is_added,
                       .follows_load = row.follows_load,
                       .is_freed_in_use = row.is_freed_in_use,
                       .is_gradient = row.is_gradient,
                       .is_made_once = row.made_once_bytes > 0,
                       .stays = is_alive(row, BlockState::kCheckpointed, row.born)};
    added.is_plain =
        !(added.is_first_product || added.is_handed_on || added.is_taken_over || added.is_added ||
          added.follows_load || added.is_freed_in_use || added.is_gradient || added.is_made_once);
    script.rows.push_back(added);
    if (is_alive(row, BlockState::kReplaying, row.born)) {
      script.output_gradient_row = static_cast<std::int64_t>(i);
    }
  }
  script.forward = script_between(rows, Step::kForwardInput, kLastForward, &BlockRow::dies);
  script.forward_unkept =
      script_between(rows, Step::kForwardInput, kLastForward, &BlockRow::last_forward_use);
  script.backward = script_between(rows, kFirstBackward, kLastBackward, &BlockRow::dies);
  script.weight = script_between(rows, Step::kWeight, kLastWeight, &BlockRow::dies);
  return script;
}

}  // namespace shardplan
