#include "validator/check/checks.h"

#include <stdexcept>

#include "validator/check/communication.h"
#include "validator/check/memory.h"
#include "validator/check/operations.h"
#include "validator/check/streams.h"

namespace shardplan {
namespace {

void append(Problems& all, const Problems& some) {
  all.insert(all.end(), some.begin(), some.end());
}

}  // namespace

Problems problems_of(const std::vector<Program>& programs) {
  Problems problems;
  for (const Program& program : programs) {
    append(problems, table_problems(program));
    append(problems, operation_problems(program));
  }
  if (!problems.empty()) {
    return problems;
  }
  for (const Program& program : programs) {
    append(problems, write_problems(program));
    append(problems, stream_problems(program));
  }
  append(problems, communication_problems(programs));
  if (problems.empty()) {
    append(problems, deadlock_problems(programs));
  }
  return problems;
}

void require_sound(const std::vector<Program>& programs) {
  const Problems problems = problems_of(programs);
  if (!problems.empty()) {
    throw std::logic_error("unsound program, " + std::to_string(problems.size()) +
                           " problems: " + problems.front());
  }
}

}  // namespace shardplan
