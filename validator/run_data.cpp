#include "validator/run_data.h"

#include <algorithm>

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

}  // namespace shardplan
