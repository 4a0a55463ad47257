#include "estimator/frameworks/torchtitan/notes.h"

namespace shardplan::torchtitan {

void add_assumptions(const Job&, const Plan& plan, const PlanPieces&,
                     std::vector<Assumption>& assumptions) {
  if (plan.precision == Precision::kFp8) {
    assumptions.push_back(
        {.text = "precision fp8: float8 linear layers keep their bf16 inputs; estimated as bf16"});
  }
}

std::vector<std::string> not_counted(const FrameworkProfile&) {
  return {"evaluation", "checkpoint save and load", "the compiler's own memory",
          "other processes on the GPU"};
}

}  // namespace shardplan::torchtitan
