#include "validator/program/run_data.h"

#include <algorithm>
#include <random>

namespace shardplan {

double& logical_element(Matrix& matrix, const ParameterPart& part, std::int64_t element) {
  const std::int64_t row = element / part.cols;
  const std::int64_t col = element % part.cols;
  return part.transposed ? at(matrix, part.first_row + col, part.first_col + row)
                         : at(matrix, part.first_row + row, part.first_col + col);
}

bool speaks_for_loss(const Program& program) {
  return program.loss >= 0 && std::ranges::all_of(program.groups, [&](const Group& group) {
           return group.kind != GroupKind::kTp || group.ranks.front() == program.rank;
         });
}

Batch uniform_batch(const Job& job, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_int_distribution<std::int64_t> token(0, job.model.vocab - 1);
  Batch batch{.sequence_length = job.sequence_length, .tokens = {}, .targets = {}};
  for (std::int64_t i = 0; i < job.global_batch * job.sequence_length; ++i) {
    batch.tokens.push_back(token(generator));
    batch.targets.push_back(token(generator));
  }
  return batch;
}

}  // namespace shardplan
