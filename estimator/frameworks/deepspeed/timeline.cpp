#include "estimator/frameworks/deepspeed/timeline.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "estimator/frameworks/deepspeed/flat.h"
#include "estimator/frameworks/deepspeed/holder.h"
#include "estimator/frameworks/deepspeed/liger.h"
#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/pieces/huggingface/objectives/reference.h"
#include "estimator/frameworks/pieces/huggingface/objectives/rules.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::deepspeed {
namespace {

// The second step meets the optimizer's state in the cache that the first has left, the third what
// the second has left; the second microbatch of a step meets what the first keeps, later ones
// repeat it.
constexpr std::int64_t kMicrobatches = 2;

// Of a dense model that is trained whole.
std::unique_ptr<DeepspeedZero> zero_of(const Job& job, const Plan& plan, std::int64_t rank,
                                       eager::Tape& tape) {
  std::vector<ZeroTensor> tensors;
  for (const std::int64_t elements : deepspeed_tensors(job.model)) {
    tensors.push_back(
        {.elements = elements, .data = std::make_shared<eager::Storage>(tape, TapeTensor{})});
  }
  if (plan.zero == 3) {
    auto zero = std::make_unique<PartitionedZero>(job, plan, tape, std::move(tensors));
    zero->build();
    return zero;
  }
  auto zero = std::make_unique<FlatZero>(job, plan, rank, tape, tensors);
  zero->build();
  return zero;
}

std::unique_ptr<EagerLlama> model_of(const Job& job, const Plan& plan, const LlamaSizes& sizes,
                                     eager::Tape& tape, DeepspeedZero& zero) {
  const bool checkpoints = plan.recompute.granularity == RecomputeGranularity::kFull;
  if (uses_liger(job)) {
    return std::make_unique<LigerLlama>(job, sizes, checkpoints, tape, zero);
  }
  return std::make_unique<EagerLlama>(sizes, checkpoints, tape, zero);
}

// What a step of a run does, whoever plays the model.
struct PlayedModel {
  std::function<void(bool is_last)> microbatch;
  std::function<void()> step;
};

PlayedRun play(const Job& job, const Plan& plan, eager::Tape& tape, int steps,
               const PlayedModel& model) {
  const std::int64_t microbatches = std::min(num_microbatches(job, plan), kMicrobatches);
  PlayedRun run;
  for (int step = 0; step < steps; ++step) {
    for (std::int64_t i = 0; i < microbatches; ++i) { model.microbatch(i + 1 == microbatches); }
    tape.begin(MomentKind::kOptimizer);
    model.step();
    run.num_first_step = step == 0 ? tape.num_events() : run.num_first_step;
  }
  run.events = tape.take_events();
  run.labels = tape.take_labels();
  run.moments = tape.take_moments();
  return run;
}

// By id: a tensor that was made without a type has its row's. Moments of 8 bits have another than
// their row, whose type a partition of an odd size does not divide.
std::vector<DType> types_of(std::vector<DType> made, const std::vector<LabelStart>& labels,
                            DType half) {
  std::size_t label = 0;
  for (std::size_t id = 0; id < made.size(); ++id) {
    while (label + 1 < labels.size() &&
           labels[label + 1].after_id < static_cast<std::int64_t>(id)) {
      ++label;
    }
    const DType dtype = made[id] == DType::kBool ? labels[label].label->dtype : made[id];
    made[id] = dtype == DType::kBf16 ? half : dtype;
  }
  return made;
}

PlayedRun tensors_run(const Job& job, const Plan& plan, std::int64_t rank, int steps) {
  eager::Tape tape(job.profile.fixed_workspace_bytes);
  tape.begin(MomentKind::kStartUp);
  const std::unique_ptr<DeepspeedZero> zero = zero_of(job, plan, rank, tape);
  const LlamaSizes sizes(job, plan);
  const std::unique_ptr<EagerLlama> model = model_of(job, plan, sizes, tape, *zero);
  PlayedRun run = play(job, plan, tape, steps,
                       {.microbatch =
                            [&](bool is_last) {
                              zero->begin_microbatch(is_last);
                              model->forward();
                              model->backward();
                              tape.begin(MomentKind::kReduction);
                              zero->end_backward();
                            },
                        .step = [&] { zero->step(); }});
  run.dtypes = types_of(tape.take_dtypes(), run.labels, activation_dtype(plan.precision));
  return run;
}

// Tensors that go to the host leave the allocator's cache as well (stage_1_and_2.py, empty_cache):
// as if they had never been there. Their frees are the first events behind the model's loading.
void forget_moved(PlayedRun& run, std::int64_t num_loaded, std::int64_t num_moved) {
  const auto first = run.events.begin() + num_loaded;
  std::vector<std::int64_t> moved;
  for (auto event = first; event != first + num_moved; ++event) { moved.push_back(event->id); }
  std::ranges::sort(moved);
  const auto behind = std::remove_if(
      run.events.begin(), first + num_moved,
      [&](const AllocationEvent& event) { return std::ranges::binary_search(moved, event.id); });
  run.events.erase(behind, first + num_moved);
  for (MomentStart& start : run.moments) {
    start.event = std::max<std::int64_t>(start.event - 2 * num_moved, 0);
  }
  run.num_first_step -= 2 * num_moved;
}

PlayedRun operators_run(const Job& asked, const Plan& plan, std::int64_t rank, int steps) {
  const Job job = as_trained(asked, plan);
  eager::Graph graph(job.profile.fixed_workspace_bytes, job.cluster.gpu.num_sms);
  ZeroHolder holder(graph, job, plan, rank);
  huggingface::CausalLm model(graph, holder, job, plan);
  graph.tape.begin(MomentKind::kStartUp);
  model.build();
  std::optional<huggingface::Reference> reference;
  if (huggingface::has_whole_reference(job)) {
    model.refer_to(&reference.emplace(graph, job, plan).model());
    reference->model().build();
  }
  const std::int64_t num_loaded = graph.tape.num_events();
  holder.wrap(model.trained());
  graph.modules = &holder;
  graph.calls_python_linear = plan.zero == 3;
  PlayedRun run = play(
      job, plan, graph.tape, steps,
      {.microbatch = [&](bool is_last) { model.train(is_last); }, .step = [&] { holder.step(); }});
  forget_moved(run, num_loaded, holder.num_moved());
  run.dtypes = graph.tape.take_dtypes();
  std::ranges::replace(run.dtypes, DType::kBf16, activation_dtype(plan.precision));
  return run;
}

}  // namespace

PlayedRun deepspeed_run(const Job& job, const Plan& plan, std::int64_t rank, int steps) {
  return plays_operators(job, plan) ? operators_run(job, plan, rank, steps)
                                    : tensors_run(job, plan, rank, steps);
}

std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan, std::int64_t rank,
                                      int steps) {
  return deepspeed_run(job, plan, rank, steps).events;
}

}  // namespace shardplan::deepspeed
