#include "estimator/frameworks/transformers/holder.h"

#include <utility>

#include "estimator/frameworks/transformers/labels.h"

namespace shardplan::transformers {

// A leaf keeps its first gradient as it comes, later ones are added in place.
void Holder::load(eager::Parameter& parameter, const eager::Label& label, const Shape& shape,
                  DType dtype, bool is_trained) {
  const eager::InRow row(graph_.tape, label);
  parameter.rows = shape.rows;
  parameter.dtype = dtype;
  parameter.is_trained = is_trained;
  parameter.data = graph_.make(shape.elements(), dtype);
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [&parameter](eager::Tensor gradient) {
      if (!parameter.gradient.is_defined()) {
        parameter.gradient = std::move(gradient);
      }
    });
  }
}

// One tensor for each parameter stands for the buckets, whose number changes no sum.
void DataParallel::wrap(const std::vector<eager::Parameter*>& trained) {
  const eager::InRow row(graph_.tape, kBucketRow);
  for (const eager::Parameter* parameter : trained) {
    buckets_.push_back(graph_.make(parameter->data.elements, parameter->data.dtype));
  }
}

}  // namespace shardplan::transformers
