#include "estimator/frameworks/transformers/program_optimizers.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/transformers/muon.h"
#include "estimator/frameworks/transformers/projected_adam.h"

namespace shardplan::transformers {
namespace {

using eager::Graph;
using eager::InRow;
using eager::Label;
using eager::Parameter;
using eager::Tensor;
using huggingface::kExpAvgRow;
using huggingface::kExpAvgSqRow;
using huggingface::kGradientsRow;
using huggingface::kStepRow;
using huggingface::kUpdateRow;

constexpr Label kImportanceRow = {
    Component::kOptimizer,
    "adapters.importance",
    DType::kFp32,
    "3 Nt: AdaLoRA's importance of trained numbers, its mean and its spread",
    nullptr,
    true};
constexpr Label kMasterRow = {Component::kParameters, "parameters.master", DType::kFp32,
                              "Nt: the block that is trained"};

// A moment of every element, and the mean of squares of a head's part of queries and keys, of a row
// of other matrices, of a whole vector; of biases of every element.
class AdamMini final : public ProgramOptimizer {
 public:
  AdamMini(Graph& graph, const Job& job)
      : graph_(graph), head_elements_(adam_mini_head_elements(job.model)) {}

  void step(const std::vector<Parameter*>& trained) override {
    const InRow row(graph_.tape, kUpdateRow);
    Tensor update, means, root, size;
    for (const Parameter* parameter : trained) {
      const std::int64_t elements = parameter->data.elements;
      const DType dtype = parameter->dtype;
      const std::int64_t seconds = num_second_moments(*parameter);
      State& state = states_[parameter];
      if (!state.exp_avg.is_defined()) {
        state.exp_avg = made_in(graph_, kExpAvgRow, elements, dtype);
        state.exp_avg_sq = made_in(graph_, kExpAvgSqRow, seconds, dtype);
      }
      const auto divided_root = [&] {
        const Tensor square_root = graph_.make(seconds, dtype);
        return graph_.make(seconds, dtype);
      };
      if (parameter->is_bias) {
        root = divided_root();
        continue;
      }
      {
        const Tensor squares = graph_.make(elements, dtype);
        means = graph_.make(seconds, dtype);
      }
      root = divided_root();
      size = graph_.make(seconds, dtype);
      update = graph_.make(elements, dtype);
      const Tensor negative = graph_.make(elements, dtype);
    }
  }

 private:
  struct State {
    Tensor exp_avg, exp_avg_sq;
  };

  std::int64_t num_second_moments(const Parameter& parameter) const {
    const std::int64_t elements = parameter.data.elements;
    if (parameter.is_bias) {
      return elements;
    }
    if (parameter.rows == elements) {
      return 1;
    }
    return parameter.is_query_or_key ? elements / head_elements_ : parameter.rows;
  }

  Graph& graph_;
  const std::int64_t head_elements_;
  std::map<const Parameter*, State> states_;
};

// The block that is trained lies in fp32 beside its weights, with moments of its own; gradients
// become fp32 one after the other before PyTorch's fused AdamW.
class BlockAdam final : public ProgramOptimizer {
 public:
  explicit BlockAdam(Graph& graph) : graph_(graph) {}

  void begin(const std::vector<Parameter*>& trained) override {
    for (const Parameter* parameter : trained) {
      const Tensor clone = made_in(graph_, kUpdateRow, parameter->data.elements, parameter->dtype);
      masters_.push_back(parameter->dtype == DType::kFp32
                             ? clone
                             : made_in(graph_, kMasterRow, parameter->data.elements, DType::kFp32));
    }
  }

  void step(const std::vector<Parameter*>& trained) override {
    eager::Tensors gradients;
    for (Parameter* parameter : trained) {
      gradients.push_back(
          parameter->dtype == DType::kFp32
              ? parameter->gradient
              : made_in(graph_, kGradientsRow, parameter->data.elements, DType::kFp32));
      parameter->gradient = {};
    }
    if (states_.empty()) {
      for (const Parameter* parameter : trained) {
        states_.push_back(made_in(graph_, kStepRow, 1, DType::kFp32));
        for (const Label* label : {&kExpAvgRow, &kExpAvgSqRow}) {
          states_.push_back(made_in(graph_, *label, parameter->data.elements, DType::kFp32));
        }
      }
    }
    for (const Parameter* parameter : trained) {
      if (parameter->dtype != DType::kFp32) {
        const Tensor narrow =
            made_in(graph_, kUpdateRow, parameter->data.elements, parameter->dtype);
      }
    }
  }

 private:
  Graph& graph_;
  eager::Tensors masters_;
  eager::Tensors states_;
};

// A moment of every parameter; of matrices that are not tables it becomes orthogonal by operators
// of PyTorch, and is scaled. Of queries and keys it is scaled once more where their products' bound
// is above the limit, as it is taken to be.
class MuonClip final : public ProgramOptimizer {
 public:
  explicit MuonClip(Graph& graph) : graph_(graph) {}

  void step(const std::vector<Parameter*>& trained) override {
    const InRow row(graph_.tape, kUpdateRow);
    Tensor orthogonal, update;
    const auto step_all = [&](auto is_in) {
      for (const Parameter* parameter : trained) {
        if (is_in(*parameter)) {
          step_one(*parameter, orthogonal, update);
        }
      }
    };
    step_all([](const Parameter& each) { return is_for_muon(each) && each.is_query_or_key; });
    step_all([](const Parameter& each) { return is_for_muon(each) && !each.is_query_or_key; });
    step_all([](const Parameter& each) { return !is_for_muon(each); });
  }

 private:
  void step_one(const Parameter& parameter, Tensor& orthogonal, Tensor& update) {
    const std::int64_t elements = parameter.data.elements;
    Tensor& moment = moments_[&parameter];
    if (!moment.is_defined()) {
      moment = made_in(graph_, kExpAvgRow, elements, parameter.dtype);
    }
    if (!is_for_muon(parameter)) {
      update = moment;
      return;
    }
    Tensor narrow;
    {
      const Tensor cast = graph_.make(parameter.dtype == DType::kBf16 ? 0 : elements, DType::kBf16);
      narrow = graph_.make(elements, DType::kBf16);
    }
    {
      SquareMatrices squares;
      orthogonalize_by_operators(graph_, narrow, squares,
                                 std::min(parameter.rows, elements / parameter.rows));
      orthogonal =
          parameter.dtype == DType::kBf16 ? narrow : graph_.make(elements, parameter.dtype);
    }
    narrow = {};
    update = graph_.make(elements, parameter.dtype);
    if (parameter.is_query_or_key) {
      update = graph_.make(elements, parameter.dtype);
    }
  }

  Graph& graph_;
  std::map<const Parameter*, Tensor> moments_;
};

}  // namespace

Tensor made_in(Graph& graph, const Label& label, std::int64_t elements, DType dtype) {
  const InRow row(graph.tape, label);
  return graph.make(elements, dtype);
}

std::int64_t adam_mini_head_elements(const ModelSpec& model) {
  return model.hidden * model.hidden / model.num_heads;
}

void RankImportance::update(const std::vector<Parameter*>& trained) {
  const InRow row(graph_.tape, kImportanceRow);
  for (const Parameter* parameter : trained) {
    const std::int64_t elements = parameter->data.elements;
    const auto make = [&] { return graph_.make(elements, parameter->dtype); };
    const auto mixed = [&](bool takes_distance) {
      const Tensor kept = make();
      Tensor distance;
      if (takes_distance) {
        const Tensor difference = make();
        distance = make();
      }
      const Tensor taken = make();
      distance = {};
      return make();
    };
    Scores& scores = scores_[parameter];
    if (!scores.mean.is_defined()) {
      scores = {.importance = make(), .mean = make(), .spread = make()};
    }
    {
      const Tensor product = make();
      scores.importance = make();
    }
    scores.mean = mixed(false);
    scores.spread = mixed(true);
  }
}

bool steps_in_backward(const Job& job) {
  return (job.optimizer == OptimizerKind::kGaLore || job.optimizer == OptimizerKind::kApollo) &&
         job.profile.optimizer_steps == OptimizerSteps::kInBackward;
}

std::unique_ptr<ProgramOptimizer> program_optimizer(Graph& graph, const Job& job) {
  switch (job.optimizer) {
    case OptimizerKind::kGaLore:
    case OptimizerKind::kApollo: return projected_adamw(graph, job);
    case OptimizerKind::kAdamMini: return std::make_unique<AdamMini>(graph, job);
    case OptimizerKind::kBAdam: return std::make_unique<BlockAdam>(graph);
    case OptimizerKind::kMuonClip: return std::make_unique<MuonClip>(graph);
    default: return nullptr;
  }
}

}  // namespace shardplan::transformers
