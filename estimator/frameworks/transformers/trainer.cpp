#include "estimator/frameworks/transformers/trainer.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/objectives/reference.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/transformers/flat_shard.h"
#include "estimator/frameworks/transformers/fsdp.h"
#include "estimator/frameworks/transformers/host_memory.h"
#include "estimator/frameworks/transformers/optimizer.h"

namespace shardplan::transformers {
namespace {

using eager::Graph;
using eager::Parameter;
using huggingface::CausalLm;
using huggingface::compute_dtype;
using huggingface::DataParallel;
using huggingface::Holder;
using huggingface::uses_autocast;

// The second microbatch of a step meets the gradients of the first, later ones repeat it.
constexpr std::int64_t kMicrobatches = 2;

// A parameter is updated as soon as its gradient is there, which is freed behind its step.
class StepsInBackward final : public Holder {
 public:
  StepsInBackward(Graph& graph, std::function<void(Parameter&)> step)
      : Holder(graph), step_(std::move(step)) {}

 protected:
  void took(Parameter& parameter) override {
    step_(parameter);
    parameter.gradient = {};
  }

 private:
  const std::function<void(Parameter&)> step_;
};

std::unique_ptr<Holder> holder_of(Graph& graph, const Job& job, const Plan& plan,
                                  std::function<void(Parameter&)> step) {
  if (plan.zero > 0 && job.profile.fsdp_version == 1) {
    return std::make_unique<FlatShard>(graph, job, plan);
  }
  if (plan.zero > 0) {
    return std::make_unique<FullyShard>(graph, job, plan);
  }
  if (dense_shard_size(job, plan) > 1) {
    return std::make_unique<DataParallel>(graph, huggingface::finds_unused(job, plan),
                                          job.profile.gradient_as_bucket_view);
  }
  if (steps_in_backward(job)) {
    return std::make_unique<StepsInBackward>(graph, std::move(step));
  }
  return std::make_unique<Holder>(graph);
}

// Bytes of this rank's weights.
std::int64_t loaded_bytes(const Job& job, const Plan& plan) {
  Graph graph(job.profile.fixed_workspace_bytes, job.cluster.gpu.num_sms);
  Holder holder(graph);
  CausalLm model(graph, holder, job, plan);
  model.build();
  std::int64_t bytes = 0;
  for (const AllocationEvent& event : graph.tape.take_events()) { bytes += event.bytes; }
  return bytes;
}

// Weights that a checkpoint's reader puts on the GPU have their place allocated in one piece, which
// is returned before they come (transformers 5.17 modeling_utils.py caching_allocator_warmup).
// Divided layers are read so; a Trainer moves other models.
void make_room_for_weights(Graph& graph, const Job& job, const Plan& plan) {
  if (plan.tp > 1 && plan.zero == 0) {
    const eager::InRow row(graph.tape, huggingface::kParametersRow);
    const eager::Tensor room = graph.make(loaded_bytes(job, plan), DType::kBool);
  }
}

class Trainer {
 public:
  Trainer(const Job& job, const Plan& plan)
      : job_(job),
        plan_(plan),
        graph_(job.profile.fixed_workspace_bytes, job.cluster.gpu.num_sms),
        holder_(holder_of(graph_, job, plan,
                          [this](Parameter& parameter) { optimizer_.step_alone(parameter); })),
        model_(graph_, *holder_, job, plan),
        optimizer_(graph_, *holder_, job, plan),
        importance_(graph_) {
    if (huggingface::has_whole_reference(job)) {
      reference_ = std::make_unique<huggingface::Reference>(graph_, job, plan);
      model_.refer_to(&reference_->model());
    }
  }

  PlayedRun run(int steps) {
    PlayedRun run;
    graph_.tape.begin(MomentKind::kStartUp);
    make_room_for_weights(graph_, job_, plan_);
    build();
    trained_ = model_.trained();
    holder_->wrap(trained_);
    optimizer_.begin(trained_);
    // Optimizers pass over parameters without a gradient.
    std::erase_if(trained_, [](const Parameter* each) { return !each->is_reached; });
    const std::int64_t microbatches = std::min(num_microbatches(job_, plan_), kMicrobatches);
    for (int step = 0; step < steps; ++step) {
      for (std::int64_t i = 0; i < microbatches; ++i) {
        microbatch(i + 1 == microbatches || job_.profile.loop != TrainerLoop::kTrainer);
      }
      update();
      run.num_first_step = step == 0 ? graph_.tape.num_events() : run.num_first_step;
    }
    run.events = graph_.tape.take_events();
    run.labels = graph_.tape.take_labels();
    run.moments = graph_.tape.take_moments();
    run.dtypes = graph_.tape.take_dtypes();
    return run;
  }

  std::int64_t run_for_host_bytes() {
    build();
    trained_ = model_.trained();
    holder_->wrap(trained_);
    microbatch(true);
    return model_.most_host_bytes();
  }

 private:
  void build() {
    model_.build();
    if (reference_ != nullptr) {
      reference_->model().build();
    }
  }
  void microbatch(bool is_last) {
    const bool has_autocast = uses_autocast(job_, plan_);
    model_.train(is_last, has_autocast ? std::optional(compute_dtype(plan_)) : std::nullopt);
  }

  void update() {
    graph_.tape.begin(MomentKind::kOptimizer);
    if (!plan_.offload.parameters) {  // else the host's
      optimizer_.step(trained_);
    }
    if (job_.adapters.rank > 0 && job_.adapters.kind == AdapterKind::kAdaLora) {
      importance_.update(trained_);
    }
    for (Parameter* parameter : trained_) { parameter->gradient = {}; }
  }

  const Job& job_;
  const Plan& plan_;
  Graph graph_;
  std::unique_ptr<Holder> holder_;
  CausalLm model_;
  std::unique_ptr<huggingface::Reference> reference_;
  std::vector<Parameter*> trained_;
  Optimizer optimizer_;
  RankImportance importance_;
};

}  // namespace

// A step of two microbatches, of which the host has one at a time.
std::int64_t host_bytes(const Job& job, const Plan& plan) {
  return plan.offload.activations ? Trainer(job, plan).run_for_host_bytes() : 0;
}

PlayedRun trainer_run(const Job& job, const Plan& plan, int steps) {
  return Trainer(job, plan).run(steps);
}

}  // namespace shardplan::transformers
