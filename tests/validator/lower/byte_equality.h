// Holds the estimator's native profile against programs. Every operation of a program belongs to a
// step of a block of an action (byte_steps.cpp says which); there the tensors alive in the program
// and the rows alive in the estimate must have the same bytes, name by name and component by
// component. Then the peak over all operations and the sizes of both arenas. No tolerance anywhere,
// but in one place the estimate is a bound: where a window hides the last hops of a ring from a
// rank, tensors die one by one behind its last block, in an order that hangs on the rank; until the
// ring ends, what is alive must be among what the estimate has alive at that block.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "estimator/answer/stage_memory.h"
#include "validator/program/program.h"

namespace shardplan {

// Where an operation stands within its action.
enum class Where {
  kFirstBlock,    // of the chunk
  kLayer,         // the block of the operation's layer
  kLayerBefore,   // the block before it, whose output it writes, too
  kBehindLayers,  // head, or what sends the output
  kNoBlock,       // between actions
};

struct OperationStep {
  std::string_view phase;  // "forward"; "replay" of recomputed groups is "forward"
  std::string_view label;
  Where where = Where::kLayer;
  Step step = Step::kForwardInput;
  bool enters = false;  // writes the first rows of the block behind
  Phase state = Phase::kForward;
  // Of operations that a layer of an action runs several times: steps of the first, of those
  // between and of the last one; `step` is that of an only one.
  std::optional<std::array<Step, 3>> steps = {};
  // The first of them runs before anything that begins at `step`, the last behind all that ends
  // there; an only one is both.
  bool begins_early = false;
  bool ends_late = false;
};

// nullptr: no row has that phase and label.
const OperationStep* step_of(const Operation& operation, bool is_recomputed_group);

// Bytes by "name [component]".
using NamedBytes = std::map<std::string, std::int64_t>;

// One plan's estimate, ready to be held against its ranks.
class ByteEquality {
 public:
  ByteEquality(const Job& job, const Plan& plan)
      : job_(job), plan_(plan), pieces_(plan_pieces(job, plan)) {}

  // Nothing, or the first difference: rank, operation, tensor, both bytes.
  std::optional<std::string> difference(const Program& program) const;

 private:
  const Job& job_;
  const Plan& plan_;
  PlanPieces pieces_;
};

}  // namespace shardplan
