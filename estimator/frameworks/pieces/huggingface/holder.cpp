#include "estimator/frameworks/pieces/huggingface/holder.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {

// A leaf keeps its first gradient as it comes, later ones are added in place.
void Holder::load(eager::Parameter& parameter, const eager::Label& label, const Shape& shape,
                  DType dtype, bool is_trained) {
  const eager::InRow row(graph_.tape, label);
  parameter.rows = shape.rows;
  parameter.dtype = dtype;
  parameter.is_trained = is_trained;
  if (parameter.whole_elements > 0) {
    wholes_.push_back({&parameter, graph_.make(parameter.whole_elements, dtype)});
    parameter.data = {.storage = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{}),
                      .elements = shape.elements(),
                      .dtype = dtype,
                      .node = nullptr};
  } else {
    parameter.data = graph_.make(shape.elements(), dtype);
  }
  if (parameter.data.storage != nullptr) {
    parameter.data.storage->is_parameter = true;
  }
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [this, &parameter](eager::Tensor gradient) {
      if (!parameter.gradient.is_defined()) {
        parameter.gradient = std::move(gradient);
      }
      took(parameter);
    });
  }
}

void Holder::keep_parts() {
  const eager::InRow row(graph_.tape, kParametersRow);
  for (Whole& whole : wholes_) {
    const eager::Tensor& part = whole.parameter->data;
    part.storage->fill(part.bytes(), part.dtype);
    whole.data = {};
  }
  wholes_.clear();
}

DataParallel::DataParallel(eager::Graph& graph, bool finds_unused, bool are_views)
    : Holder(graph), finds_unused_(finds_unused), are_views_(are_views) {}

// One tensor for each parameter stands for the buckets, whose number changes no sum. Parts that
// other ranks have not are left alone (_ddp_params_and_buffers_to_ignore).
void DataParallel::make_buckets() {
  const eager::InRow row(graph_.tape, kBucketRow);
  for (const eager::Parameter* parameter : trained_) {
    if (parameter->whole_elements == 0) {
      buckets_.push_back(graph_.make(parameter->data.elements, parameter->data.dtype));
    }
  }
}

void DataParallel::wrap(const std::vector<eager::Parameter*>& trained) {
  keep_parts();
  trained_ = trained;
  make_buckets();
}

void DataParallel::begin_microbatch(bool syncs) {
  syncs_ = syncs;
  if (has_reduced_ && !has_rebuilt_ && !finds_unused_) {
    has_rebuilt_ = true;
    buckets_.clear();
    make_buckets();
  }
}

void DataParallel::took(eager::Parameter& parameter) {
  if (are_views_ && parameter.whole_elements == 0) {
    parameter.gradient.storage = nullptr;
  }
}

void DataParallel::end_backward() {
  has_reduced_ = has_reduced_ || syncs_;
}

}  // namespace shardplan::huggingface
