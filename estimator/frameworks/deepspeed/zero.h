// A ZeRO optimizer around the work of a model, whoever plays the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::deepspeed {

// A tensor of the model, as it lies in memory while it is whole.
struct ZeroTensor {
  std::int64_t elements = 0;
  DType dtype = DType::kBf16;
  bool is_trained = true;
  std::shared_ptr<eager::Storage> data;  // while ZeRO-3 has it gathered; whoever plays shares it
};

// A call of a module, with its parameters by their places among the model's tensors.
struct ModuleCall {
  static constexpr std::int64_t kWholeModel = 0;
  std::int64_t module = kWholeModel;
  std::span<const std::int64_t> parameters;
  // They are another module's: nobody knows before they have been read once.
  bool is_external = false;
};

class DeepspeedZero {
 public:
  virtual ~DeepspeedZero() = default;
  // `is_last`: of a step.
  virtual void begin_microbatch(bool is_last) = 0;
  virtual void end_backward() = 0;
  virtual void step() = 0;

  virtual void before_forward(const ModuleCall&) {}
  // A call that is running reads its external parameters.
  virtual void read_external(const ModuleCall&) {}
  virtual void after_forward(const ModuleCall&) {}
  virtual void before_backward(const ModuleCall&) {}
  virtual void after_backward(const ModuleCall&) {}
  // A parameter's gradient has been accumulated.
  virtual void take(std::int64_t parameter, eager::Tensor gradient) = 0;
};

}  // namespace shardplan::deepspeed
