#include "tools/validate/case.h"

#include <numeric>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "validator/host/backend.h"
#include "validator/lower/lower.h"
#include "validator/program/run_data.h"
#include "validator/supervise/message.h"

namespace shardplan {

namespace {

// Where a pattern was seen only once, is what stands at the front no part of it?
enum class Once { kHasFront, kIsPeriod };

// How many layers before the next one stands the one that it repeats in this field: a period,
// behind layers at the front that are none of it, both as short as they can be.
template <class Field>
std::int64_t period_of(const std::vector<LayerSpec>& layers, Field LayerSpec::*field, Once once) {
  const std::int64_t count = std::ssize(layers);
  std::int64_t best = 1;
  std::int64_t fewest = count + 1;
  for (std::int64_t period = 1; period <= count; ++period) {
    std::int64_t front = 0;
    for (std::int64_t i = period; i < count; ++i) {
      const bool repeats = layers[static_cast<std::size_t>(i)].*field ==
                           layers[static_cast<std::size_t>(i - period)].*field;
      front = repeats ? front : i - period + 1;
    }
    const std::int64_t needed = front + period;
    if (needed < fewest || (needed == fewest && once == Once::kIsPeriod)) {
      fewest = needed;
      best = period;
    }
  }
  return best;
}

// Dense layers come first and experts then stay (first_k_dense_replace) or come and go; windows
// come and go.
void resize_layers(std::vector<LayerSpec>& layers, std::int64_t count) {
  const std::int64_t experts = period_of(layers, &LayerSpec::is_moe, Once::kHasFront);
  const std::int64_t windows = period_of(layers, &LayerSpec::attention_window, Once::kIsPeriod);
  layers.reserve(static_cast<std::size_t>(count));
  while (std::ssize(layers) < count) {
    LayerSpec next = *(layers.end() - windows);
    next.is_moe = (layers.end() - experts)->is_moe;
    layers.push_back(next);
  }
  layers.resize(static_cast<std::size_t>(count));
}

}  // namespace

Case sized_case(Case question, SizeAxis axis, std::int64_t value) {
  Job& job = question.job;
  Plan& plan = question.plan;
  switch (axis) {
    case SizeAxis::kMicroBatch:
      job.global_batch = value * data_parallel_size(job, plan) * num_microbatches(job, plan);
      plan.micro_batch = value;
      break;
    case SizeAxis::kSequenceLength: job.sequence_length = value; break;
    case SizeAxis::kLayers: resize_layers(job.model.layers, value); break;
  }
  return question;
}

std::int64_t size_of(const Case& question, SizeAxis axis) {
  switch (axis) {
    case SizeAxis::kMicroBatch: return question.plan.micro_batch;
    case SizeAxis::kSequenceLength: return question.job.sequence_length;
    case SizeAxis::kLayers: return question.job.model.num_layers();
  }
  return 0;
}

// A sequence is cut into 2 cp pieces, and with sequence parallelism each of them into tp; chunks
// hold equally many layers. Whatever else a plan asks for divides its own size.
std::int64_t size_step(const Case& question, SizeAxis axis) {
  const Plan& plan = question.plan;
  std::int64_t step = 1;
  if (axis == SizeAxis::kSequenceLength) {
    step = plan.cp > 1 ? 2 * plan.cp : 1;
    step = plan.sequence_parallel ? std::lcm(step, plan.cp * plan.tp) : step;
  } else if (axis == SizeAxis::kLayers) {
    step = plan.pp * plan.vpp;
  }
  for (std::int64_t factor = 1; factor <= (1 << 10); factor *= 2) {
    if (!why_not_run(sized_case(question, axis, step * factor)) &&
        !why_not_run(sized_case(question, axis, 3 * step * factor))) {
      return step * factor;
    }
  }
  return size_of(question, axis);
}

std::string text_of(const CaseSource& source) {
  Message message;
  message.add("case", source.text);
  message.add("place", source.place);
  message.add("data", source.data_folder);
  if (source.axis) {
    message.add("axis", std::string(name_of(*source.axis)));
    message.add("value", source.value);
  }
  return message.text();
}

Case case_of(const std::string& plan_text) {
  const Message message(plan_text);
  const std::string& folder = message.word("data");
  const Library library = folder.empty() ? Library() : Library(folder);
  Case question = read_case(message.word("case"), message.word("place"), library);
  if (message.has("axis")) {
    question = sized_case(std::move(question), value_of<SizeAxis>(message.word("axis")).value(),
                          message.integer("value"));
  }
  return question;
}

std::optional<std::string> why_not_run(const Case& question) {
  if (!question.supported || question.job.profile.memory_model != MemoryModel::kNative) {
    return "framework: found " + question.framework + ", expected native: what validate runs";
  }
  if (const auto invalid = why_invalid(question.job, question.plan)) {
    return invalid->rule + ": " + invalid->message;
  }
  if (const auto reason = why_not_lowered(question.job, question.plan)) {
    return *reason + ": the trainer does not run this yet";
  }
  return std::nullopt;
}

RankTask rank_run_of(const RunRequest& request, std::int64_t rank) {
  const Case question = case_of(request.plan);
  RankTask run;
  run.program = lower(question.job, question.plan, rank, {});
  run.model = question.job.model;
  run.batch = uniform_batch(question.job, request.seed);
  return run;
}

HostSteps host_steps(const RunRequest& request) {
  const Case question = case_of(request.plan);
  HostBackend<double> backend(lower_all(question.job, question.plan), DeadMemory::kKept);
  backend.load(initial_tensors(question.job.model, request.seed));
  const Batch batch = uniform_batch(question.job, request.seed);
  HostSteps steps;
  for (std::int64_t step = 0; step < request.warmup + request.steps; ++step) {
    const double loss = backend.step(batch, request.learning_rate);
    if (step >= request.warmup) {
      steps.losses.push_back(loss);
      steps.gradient_norms.push_back(backend.gradient_norm());
    }
  }
  return steps;
}

HostTolerance host_tolerance(bool on_host, Precision planned, RunPrecision run) {
  if (on_host) {
    return {.loss = 1e-10, .gradient_norm = 1e-10};
  }
  if (planned == Precision::kFp8) {
    return kFp8Tolerance;
  }
  if (run == RunPrecision::kFloat) {
    return {.loss = 1e-5, .gradient_norm = 1e-5};
  }
  return {.loss = 2e-3, .gradient_norm = 1e-2};
}

}  // namespace shardplan
