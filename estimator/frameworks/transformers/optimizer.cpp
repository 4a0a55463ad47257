#include "estimator/frameworks/transformers/optimizer.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/reduction.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/moments_of_8_bits.h"
#include "estimator/frameworks/transformers/muon.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {
namespace {

using eager::Label;
using eager::Parameter;
using eager::Tensor;
using huggingface::kExpAvgRow;
using huggingface::kExpAvgSqRow;
using huggingface::kLeastOf8bit;
using huggingface::kLeastPaged;
using huggingface::kMomentBlock;
using huggingface::kScalesRow;
using huggingface::kStepRow;
using huggingface::kUpdateRow;
using huggingface::kValuesOf8Bits;

// What PyTorch's compiler writes between runs of a kernel that it tunes: as large as the
// second-level cache. Seen on H200 (torch/_inductor/runtime/benchmarking.py, L2_cache_size).
constexpr std::int64_t kCacheBytes = std::int64_t{60} << 20;

// Lion has no second moment (bitsandbytes 0.50 optim/lion.py, Optimizer1State).
std::int64_t num_moments(OptimizerKind kind) {
  using enum OptimizerKind;
  return kind == kLion || kind == kPagedLion || kind == kLion8bit || kind == kPagedLion8bit ? 1 : 2;
}

bool is_vector(const Parameter& parameter) {
  return parameter.rows == parameter.data.elements;
}

}  // namespace

Optimizer::Optimizer(eager::Graph& graph, const huggingface::Holder& holder, const Job& job,
                     const Plan& plan)
    : graph_(graph),
      holder_(holder),
      job_(job),
      is_mixed_(plan.tp > 1 && job.profile.tensor_parallel_dtensors),
      program_(program_optimizer(graph, job)) {}

void Optimizer::begin(const std::vector<Parameter*>& trained) {
  if (program_ != nullptr) {
    program_->begin(trained);
  }
}

bool Optimizer::is_factored(const Parameter& parameter) const {
  return !is_vector(parameter) && !holder_.flattens();
}

Tensor Optimizer::make(const Label& label, std::int64_t elements, DType dtype) {
  const eager::InRow row(graph_.tape, label);
  return graph_.make(elements, dtype);
}

void Optimizer::keep(const Label& label, std::int64_t elements, DType dtype) {
  states_.push_back(make(label, elements, dtype));
}

// The embedding's states stay in 32 bits (trainer.py, create_optimizer: register_module_override).
bool Optimizer::is_wide(const Parameter& parameter) const {
  return job_.optimizer == OptimizerKind::kPagedAdamW || job_.optimizer == OptimizerKind::kLion ||
         job_.optimizer == OptimizerKind::kPagedLion || parameter.is_embedding ||
         holder_.held_elements(parameter) < kLeastOf8bit;
}

bool Optimizer::is_managed(const Parameter& parameter) const {
  return is_paged(job_.optimizer) && holder_.held_elements(parameter) >= kLeastPaged;
}

std::int64_t Optimizer::managed_bytes(const Parameter& parameter) const {
  const std::int64_t width = bytes_of(is_wide(parameter) ? DType::kFp32 : DType::kFp8);
  return is_managed(parameter)
             ? num_moments(job_.optimizer) * width * holder_.held_elements(parameter)
             : 0;
}

void Optimizer::make_bitsandbytes_state(const Parameter& parameter) {
  const std::int64_t elements = holder_.held_elements(parameter);
  const bool in_32_bits = is_wide(parameter);
  const std::int64_t moments = num_moments(job_.optimizer);
  if (!in_32_bits && !std::exchange(has_maps_, true)) {
    for (std::int64_t i = 0; i < moments; ++i) { keep(kScalesRow, kValuesOf8Bits, DType::kFp32); }
  }
  if (!is_managed(parameter)) {
    const DType dtype = in_32_bits ? DType::kFp32 : DType::kFp8;
    keep(kExpAvgRow, elements, dtype);
    keep(kExpAvgSqRow, moments == 2 ? elements : 0, dtype);
  }
  for (std::int64_t i = 0; i < moments && !in_32_bits; ++i) {
    keep(kScalesRow, div_ceil(elements, kMomentBlock), DType::kFp32);
  }
}

// _new_buffer, OptimState8bit.zeros, OptimState4bit.zeros.
void Optimizer::make_torchao_state(const Parameter& parameter) {
  const std::int64_t elements = holder_.held_elements(parameter);
  const bool is_8bit = job_.optimizer == OptimizerKind::kTorchaoAdamW8bit;
  for (const Label* label : {&kExpAvgRow, &kExpAvgSqRow}) {
    if (elements < kLeastOf8bit || elements % kMomentBlock != 0) {
      keep(*label, elements, parameter.dtype);
      continue;
    }
    keep(*label, is_8bit ? elements : elements / 2, DType::kFp8);
    keep(kScalesRow, elements / kMomentBlock, DType::kFp32);
    keep(kScalesRow, is_8bit ? kValuesOf8Bits : 16, DType::kFp32);
  }
}

// A row and a column of the squares' means in fp32 (optimization.py, Adafactor).
void Optimizer::make_adafactor_state(const Parameter& parameter) {
  if (!is_factored(parameter)) {
    keep(kExpAvgSqRow, holder_.held_elements(parameter), DType::kFp32);
    return;
  }
  keep(kExpAvgSqRow, parameter.rows, DType::kFp32);
  keep(kExpAvgSqRow, parameter.data.elements / parameter.rows, DType::kFp32);
}

void Optimizer::make_adamw_state(const Parameter& parameter) {
  const std::int64_t elements = holder_.held_elements(parameter);
  if (job_.profile.fused_optimizer && !is_mixed_) {  // else on the host
    keep(kStepRow, 1, DType::kFp32);
  }
  keep(kExpAvgRow, elements, parameter.dtype);
  keep(kExpAvgSqRow, elements, parameter.dtype);
}

void Optimizer::make_state(const Parameter& parameter) {
  const std::int64_t elements = holder_.held_elements(parameter);
  using enum OptimizerKind;
  switch (job_.optimizer) {
    case kAdamW: make_adamw_state(parameter); break;
    case kMuon:
      if (is_for_muon(parameter)) {
        keep(kExpAvgRow, elements, parameter.dtype);
      } else {
        make_adamw_state(parameter);
      }
      break;
    case kAdamW8bit:
    case kPagedAdamW:
    case kPagedAdamW8bit:
    case kLion:
    case kPagedLion:
    case kLion8bit:
    case kPagedLion8bit: make_bitsandbytes_state(parameter); break;
    case kTorchaoAdamW8bit:
    case kTorchaoAdamW4bit: make_torchao_state(parameter); break;
    case kAdafactor: make_adafactor_state(parameter); break;
    case kSgdMomentum: keep(kExpAvgRow, elements, parameter.dtype); break;
    case kSgd:
    case kDistMuon:
    case kGaLore:
    case kApollo:
    case kAdamMini:
    case kBAdam:
    case kMuonClip: break;
  }
}

// _multi_tensor_adam: square roots of all second moments of a group; under the Trainer vectors,
// which do not decay, are a group of their own (trainer.py, get_decay_parameter_names).
void Optimizer::step_foreach(const std::vector<Parameter*>& trained) {
  const auto step_group = [&](auto is_in) {
    eager::Tensors roots;
    for (const Parameter* parameter : trained) {
      if (is_in(*parameter)) {
        roots.push_back(make(kUpdateRow, holder_.held_elements(*parameter), parameter->dtype));
      }
    }
  };
  if (job_.profile.loop != TrainerLoop::kTrainer) {
    return step_group([](const Parameter&) { return true; });
  }
  step_group([](const Parameter& each) { return !is_vector(each); });
  step_group([](const Parameter& each) { return is_vector(each); });
}

// _single_tensor_adam: the root of the second moment, and its quotient, which is named until the
// next parameter's is there.
void Optimizer::step_one_by_one(const std::vector<Parameter*>& trained) {
  Tensor quotient;
  for (const Parameter* parameter : trained) {
    const std::int64_t elements = holder_.held_elements(*parameter);
    const Tensor root = make(kUpdateRow, elements, parameter->dtype);
    quotient = make(kUpdateRow, elements, parameter->dtype);
  }
}

// Adafactor.step: the gradient and the parameter in fp32 where they are not, the update's squares,
// then itself, which stays until the next parameter's is there, and its negative.
void Optimizer::step_adafactor(const std::vector<Parameter*>& trained) {
  Tensor gradient, parameter_copy, update;
  for (const Parameter* parameter : trained) {
    const std::int64_t elements = holder_.held_elements(*parameter);
    const auto make_wide = [&] { return make(kUpdateRow, elements, DType::kFp32); };
    if (parameter->dtype != DType::kFp32) {
      gradient = make_wide();
      parameter_copy = make_wide();
    }
    {
      const Tensor squares = make_wide();
      update = make_wide();
    }
    if (is_factored(*parameter)) {
      const std::int64_t columns = elements / parameter->rows;
      const Tensor mean = make(kUpdateRow, columns, DType::kFp32);
      const Tensor partial = make(
          kUpdateRow, eager::column_sum_bytes(parameter->rows, columns, job_.cluster.gpu.num_sms),
          DType::kBool);
    }
    update = make_wide();
    const Tensor negative = make_wide();
    parameter_copy = {};
  }
}

// Compiled: both moments in fp32 and what they are rounded with, of 4 bits places in int64 as well.
// The first parameter of a size has its kernels tuned, on copies of the states that they write: of
// 8 bits by one kernel, of 4 bits by one each.
void Optimizer::step_torchao(const Parameter& parameter) {
  const std::int64_t elements = holder_.held_elements(parameter);
  if (elements < kLeastOf8bit || elements % kMomentBlock != 0) {
    return;
  }
  const bool is_8bit = job_.optimizer == OptimizerKind::kTorchaoAdamW8bit;
  eager::Tensors made;
  for (int i = 0; i < 2; ++i) {
    made.push_back(make(kUpdateRow, elements / kMomentBlock, DType::kFp32));
    made.push_back(make(kUpdateRow, elements, DType::kFp32));
    if (!is_8bit) {
      made.push_back(make(kUpdateRow, elements, DType::kInt64));
    }
  }
  if (tuned_.insert(elements).second) {
    made.push_back(make(kUpdateRow, kCacheBytes, DType::kBool));
    made.push_back(make(kUpdateRow, is_8bit ? 2 * elements : elements / 2, DType::kFp8));
  }
}

void Optimizer::step_muon(const std::vector<Parameter*>& trained) {
  const eager::InRow row(graph_.tape, kUpdateRow);
  const bool is_moonshot = !job_.profile.fused_optimizer;
  Tensor last;
  for (const Parameter* parameter : trained) {
    if (!is_for_muon(*parameter)) {
      continue;
    }
    if (is_moonshot) {
      play_moonshot_muon(graph_, *parameter, holder_.held_elements(*parameter), last);
    } else {
      play_muon(graph_, *parameter, last);
    }
  }
  for (const Parameter* parameter : trained) {
    if (is_moonshot && !is_for_muon(*parameter)) {
      play_moonshot_adamw(graph_, *parameter, holder_.held_elements(*parameter), last);
    }
  }
}

// torchao makes a parameter's states in front of its step, others those of all.
void Optimizer::step(const std::vector<Parameter*>& trained) {
  if (program_ != nullptr) {
    return program_->step(trained);
  }
  const bool is_first = !std::exchange(has_state_, true);
  const bool is_torchao = job_.optimizer == OptimizerKind::kTorchaoAdamW8bit ||
                          job_.optimizer == OptimizerKind::kTorchaoAdamW4bit;
  for (const Parameter* parameter : trained) {
    if (is_first && holder_.held_elements(*parameter) > 0) {
      make_state(*parameter);
    }
    if (is_torchao) {
      step_torchao(*parameter);
    }
  }
  if (job_.optimizer == OptimizerKind::kAdafactor) {
    step_adafactor(trained);
  } else if (job_.optimizer == OptimizerKind::kMuon) {
    step_muon(trained);
  } else if (job_.optimizer == OptimizerKind::kAdamW && is_mixed_) {
    step_one_by_one(trained);
  } else if (job_.optimizer == OptimizerKind::kAdamW && !job_.profile.fused_optimizer &&
             job_.profile.foreach_optimizer) {
    step_foreach(trained);
  }
}

}  // namespace shardplan::transformers
