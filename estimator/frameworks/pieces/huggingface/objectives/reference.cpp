#include "estimator/frameworks/pieces/huggingface/objectives/reference.h"

#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

// LLaMA-Factory ff6d4d1 src/llamafactory/model/adapter.py, init_adapter: what is not trained has
// the type of products.
Job reference_job(const Job& trained) {
  Job reference = trained;
  reference.name_rules = {{.pattern = "", .trains = false}};
  const bool is_anchor = trained.profile.head_loss == HeadLoss::kAnchored;
  reference.profile.narrow_frozen =
      is_anchor || trained.profile.objective_trainer == ObjectiveTrainer::kFactory;
  return reference;
}

Plan reference_plan(Plan plan) {
  plan.recompute = {};
  plan.offload = {};
  return plan;
}

}  // namespace

void ReferenceHolder::load(eager::Parameter& parameter, const eager::Label& /*label*/,
                           const Shape& shape, DType dtype, bool is_trained) {
  Holder::load(parameter, kReferenceRow, shape, dtype, is_trained);
}

Reference::Reference(eager::Graph& graph, const Job& trained, const Plan& plan)
    : job_(reference_job(trained)),
      plan_(reference_plan(plan)),
      holder_(graph),
      model_(graph, holder_, job_, plan_) {
  if (trained.profile.head_loss == HeadLoss::kAnchored) {
    model_.keep_keys();
  }
}

}  // namespace shardplan::huggingface
