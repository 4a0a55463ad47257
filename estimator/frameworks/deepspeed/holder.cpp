#include "estimator/frameworks/deepspeed/holder.h"

#include "estimator/frameworks/deepspeed/flat.h"
#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/frameworks/deepspeed/whole.h"

namespace shardplan::deepspeed {

using eager::Parameter;
using eager::Tensor;

ZeroHolder::ZeroHolder(eager::Graph& graph, const Job& job, const Plan& plan, std::int64_t rank)
    : Holder(graph), job_(job), plan_(plan), rank_(rank) {}

// ZeRO-3 divides a parameter as soon as it is there (zero.Init).
void ZeroHolder::load(Parameter& parameter, const eager::Label& label,
                      const huggingface::Shape& shape, DType dtype, bool is_trained) {
  const eager::InRow row(graph_.tape, label);
  parameter.rows = shape.rows;
  parameter.dtype = dtype;
  parameter.is_trained = is_trained;
  if (divides_parameters()) {
    parameter.data.elements = shape.elements();
    parameter.data.dtype = dtype;
    parameter.data.storage = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{});
  } else {
    parameter.data = graph_.make(shape.elements(), dtype);
  }
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [this, &parameter](Tensor gradient) {
      take(parameter, std::move(gradient));
    });
  }
  loaded_.push_back(&parameter);
}

// Frozen parameters come first, as adapters are made when a model has been divided; trained ones
// are in the order in which the optimizer has it, which ZeRO-1 and 2 alone count. Without ZeRO
// frozen ones are none of its business.
void ZeroHolder::wrap(const std::vector<Parameter*>& trained) {
  std::vector<ZeroTensor> tensors;
  const auto add = [&](const Parameter& parameter) {
    place_of_.emplace(&parameter, std::ssize(tensors));
    tensors.push_back({.elements = parameter.data.elements,
                       .dtype = parameter.dtype,
                       .is_trained = parameter.is_trained,
                       .data = parameter.data.storage});
  };
  if (plan_.zero == 0) {
    for (const Parameter* parameter : loaded_) {
      if (parameter->is_trained) {
        add(*parameter);
      }
    }
    zero_ = std::make_unique<WholeOptimizer>(job_, plan_, graph_.tape, tensors);
    return;
  }
  for (const Parameter* parameter : loaded_) {
    if (!parameter->is_trained) {
      add(*parameter);
    }
  }
  const std::int64_t frozen = std::ssize(tensors);
  for (const Parameter* parameter : trained) { add(*parameter); }
  if (divides_parameters()) {
    auto zero = std::make_unique<PartitionedZero>(job_, plan_, graph_.tape, std::move(tensors));
    zero->build();
    zero_ = std::move(zero);
    return;
  }
  for (auto& [parameter, place] : place_of_) { place -= frozen; }
  auto zero = std::make_unique<FlatZero>(job_, plan_, rank_, graph_.tape, tensors);
  const auto drop = [&trained] {
    for (Parameter* parameter : trained) { parameter->data.storage->empty(); }
  };
  if (!zero->flattens_on_gpu()) {
    num_moved_ = std::ssize(trained);
    drop();
  }
  zero->flatten(drop);
  zero_ = std::move(zero);
}

void ZeroHolder::begin_microbatch(bool syncs) {
  zero_->begin_microbatch(syncs);
}

void ZeroHolder::take(const Parameter& parameter, Tensor gradient) {
  const std::int64_t place = place_of_.at(&parameter);
  if (of_leaves_.contains(place)) {
    waiting_.emplace_back(place, std::move(gradient));
  } else {
    zero_->take(place, std::move(gradient));
  }
}

const ZeroHolder::Hooked& ZeroHolder::hooked(const eager::Module& module) {
  const auto [found, is_new] = modules_.try_emplace({module.place, module.name});
  Hooked& hooked = found->second;
  if (is_new) {
    const bool is_whole = module.name == eager::kWholeModel;
    for (const Parameter* parameter : module.parameters) {
      if (parameter->data.is_defined()) {
        hooked.places.push_back(place_of_.at(parameter));
      }
    }
    hooked.is_leaf = module.is_leaf && divides_parameters();
    if (hooked.is_leaf) {
      of_leaves_.insert(hooked.places.begin(), hooked.places.end());
    }
    hooked.call = {.module = is_whole ? ModuleCall::kWholeModel : std::ssize(modules_),
                   .parameters = hooked.places,
                   .is_external = module.reads_others};
  }
  return hooked;
}

// create_reduce_and_remove_grad_hooks, reduce_leaf_module_grads.
void ZeroHolder::end_call(const Hooked& module) {
  if (module.is_leaf) {
    for (auto& [place, gradient] : waiting_) { zero_->take(place, std::move(gradient)); }
    waiting_.clear();
  }
  zero_->after_backward(module.call);
}

// A module whose input has no gradient does not tell when its backward pass ends.
Tensor ZeroHolder::before_call(const eager::Module& module, const Tensor& input) {
  if (!divides_parameters()) {
    return input;
  }
  const Hooked& of = hooked(module);
  zero_->before_forward(of.call);
  return eager::with_backward_hook(graph_, input, [this, &of] { end_call(of); });
}

Tensor ZeroHolder::behind_call(const eager::Module& module, const Tensor& output) {
  if (!divides_parameters() && (plan_.zero == 0 || module.name != eager::kWholeModel)) {
    return output;
  }
  const Hooked& of = hooked(module);
  zero_->after_forward(of.call);
  return eager::with_backward_hook(graph_, output,
                                   [this, &of] { zero_->before_backward(of.call); });
}

void ZeroHolder::read(const eager::Module& module) {
  if (divides_parameters()) {
    zero_->read_external(hooked(module).call);
  }
}

}  // namespace shardplan::deepspeed
