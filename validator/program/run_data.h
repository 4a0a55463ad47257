// The numbers of a run: which element of a logical tensor a local one is, which inputs a rank
// holds, whose loss counts, and a batch to run where no data is given.
#pragma once

#include <cstdint>
#include <vector>

#include "validator/program/matrix.h"
#include "validator/program/program.h"

namespace shardplan {

struct Batch {
  std::int64_t sequence_length = 0;
  std::vector<std::int64_t> tokens;   // [sequences, sequence_length]
  std::vector<std::int64_t> targets;  // the same shape
};

// The element of the logical matrix that a local element is.
double& logical_element(Matrix& matrix, const ParameterPart& part, std::int64_t element);

// Every tp rank has the whole sum; the first of each group speaks for it.
bool speaks_for_loss(const Program& program);

// A global batch of uniform tokens and targets, the same for the same seed.
Batch uniform_batch(const Job& job, std::uint64_t seed);

// set(tensor, row, value) for every token id and target of the batch that this rank holds, tensor
// by tensor, rows ascending.
template <class Set>
void for_each_input(const Program& program, const Batch& batch, const Set& set) {
  const auto visit = [&](std::int64_t tensor, const std::vector<std::int64_t>& values,
                         std::int64_t first_sequence) {
    if (tensor < 0) {
      return;
    }
    std::int64_t row = 0;
    for (const TokenRun& run : program.token_order) {
      const std::int64_t begin =
          (first_sequence + run.sequence) * batch.sequence_length + run.first_position;
      for (std::int64_t i = 0; i < run.count; ++i) {
        set(tensor, row++, values.at(static_cast<std::size_t>(begin + i)));
      }
    }
  };
  for (const MicrobatchInputs& inputs : program.inputs) {
    visit(inputs.ids, batch.tokens, inputs.first_sequence);
    visit(inputs.targets, batch.targets, inputs.first_sequence);
  }
}

}  // namespace shardplan
